#pragma once

#include <memory>
#include <optional>

#include "engine/model.h"
#include "optim/optimizer.h"

namespace heddle {

/// Among which ranks copies are kept: every one keeps the state of the one before it on this axis,
/// the first that of the last. Nothing where a rank's state is on another rank anyway, or there is
/// only one.
std::optional<Axis> copies_axis(const MeshShape& mesh, int zero);
/// The rank that keeps a copy of this one's state.
int keeper_of(int rank, const MeshShape& mesh, Axis axis);

/// What another rank has the state of, kept here too (docs/design/050-runs-that-outlive-ranks.md).
/// It follows every step: the other gives its summed gradients, and the same update is made here of
/// the same values. So it is exact, and costs what gradients take on the wire.
class PeerCopy {
 public:
  /// Of the one that `mesh` says to come before this rank. Its weights are to be started or
  /// restored like those of the rank's own model.
  PeerCopy(const Model& own, Axis axis, const BuildOptions& options,
           const OptimizerConfig& optimizer, Memory& memory);

  /// The part of the other: no pass goes through it, and nothing travels on its mesh.
  Model& model() { return model_; }
  Optimizer& optimizer() { return *optimizer_; }
  Axis axis() const { return axis_; }
  /// On the axis.
  int keeper() const { return keeper_; }
  int ward() const { return ward_; }

 private:
  const Axis axis_;
  const int keeper_, ward_;
  const Mesh mesh_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace heddle
