#pragma once

#include <future>
#include <memory>
#include <optional>

#include "engine/model.h"
#include "optim/optimizer.h"

namespace heddle {

/// Among which ranks copies are kept: every one keeps the state of the one before it on this axis,
/// the first that of the last. Nothing where a rank's state is on another rank anyway, or there is
/// only one.
std::optional<Axis> copies_axis(const MeshShape& mesh, int zero);
/// Whose state is kept so.
enum class KeptCopies : std::uint8_t {
  none,
  first_stage,  ///< of the first ranks of pipelines: embedding and head, where micro-batches swap
  all
};
/// The rank that keeps a copy of this one's state, and the one whose copy this one keeps; nothing
/// where it is not kept.
std::optional<int> keeper_of(int rank, const MeshShape& mesh, Axis axis, KeptCopies which);
std::optional<int> ward_of(int rank, const MeshShape& mesh, Axis axis, KeptCopies which);

/// What another rank has the state of, kept here too (docs/design/050-runs-that-outlive-ranks.md).
/// It follows every step: the other gives its summed gradients, and the same update is made here of
/// the same values. So it is exact, and costs what gradients take on the wire.
class PeerCopy {
 public:
  /// Of the one that `mesh` says to come before this rank. Its weights are to be started or
  /// restored like those of the rank's own model.
  PeerCopy(const Model& own, Axis axis, const BuildOptions& options,
           const OptimizerConfig& optimizer, Memory& memory);

  /// The part of the other: no pass goes through it, and nothing travels on its mesh. Waits for the
  /// update that is under way.
  Model& model() {
    settle();
    return model_;
  }
  /// StepArgs::units of its optimizer.
  void set_unit_rates(std::vector<StepArgs::OfUnit> rates) { unit_rates_ = std::move(rates); }
  /// The update of a step, by the gradients that have come; `args` as for the rank's own weights,
  /// but for the units. On a CPU a thread makes it, while the caller goes on.
  void update(const StepArgs& args, Stream& stream);

 private:
  /// Throws what the update has thrown.
  void settle() {
    if (updating_.valid()) updating_.get();
  }
  bool updates_in_background(const Stream& stream) const;

  const Mesh mesh_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_;
  const bool needs_memory_;  // the optimizer, beside its states
  const Tensor clip_;        // StepArgs::clip; its own, which is there as long as it is read
  std::vector<StepArgs::OfUnit> unit_rates_;
  std::future<void> updating_;  // behind all that it uses
};

/// What a rank gives of its state and keeps of another's in every step. Ranks by their place on the
/// axis.
struct CopyExchange {
  Axis axis = Axis::pp;
  std::optional<int> keeper = {};  ///< of this rank's state
  int ward = -1;                   ///< whose copy is `kept`
  PeerCopy* kept = nullptr;

  bool is_anything() const { return keeper || kept != nullptr; }
};
/// Of the rank of this mesh; `kept` where it keeps one.
CopyExchange copy_exchange(const Mesh& mesh, int zero, KeptCopies which,
                           std::optional<PeerCopy>& kept);
/// The copy that a rank keeps, made for `kept`; nothing where it keeps none.
void make_copy(const Model& own, KeptCopies which, const BuildOptions& options,
               const OptimizerConfig& optimizer, Memory& memory, std::optional<PeerCopy>& kept);

}  // namespace heddle
