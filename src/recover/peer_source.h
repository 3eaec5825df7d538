#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/own_boxes.h"
#include "checkpoint/state_source.h"
#include "comm/world.h"
#include "tensor/stream.h"

namespace heddle::recover {

/// A box of a tensor that this rank has in memory, or wants to have.
struct HeldBox {
  std::string kind, name;
  Shape whole, begin;  ///< of the tensor; of the box in it
  Tensor data;         ///< as large as the box, in any memory
};

/// What a store has of a run's state: of every kind the boxes, which keep their memory also when
/// the store goes. `kinds` as states_of gives them.
std::vector<HeldBox> boxes_of(const std::vector<StateKind>& kinds);

/// State that is in the memory of ranks. They tell each other what they have and what they want,
/// and whoever wants something that others have gets it; what a rank has itself it reads where it
/// lies. Which rank gives what follows from what all were told, so nobody waits for an answer.
class PeerSource : public StateSource {
 public:
  /// What becomes of what is wanted and nobody has.
  enum class Missing : std::uint8_t {
    spoils_all,  ///< then nothing is given to anybody
    is_zero      ///< it reads as zeros
  };
  /// All ranks of `world` make theirs at the same time. `own` lives as long. Afterwards everything
  /// in `wanted` that some rank has can be read; `wanted` needs no data. Ranks that have the same
  /// box have the same values in it.
  PeerSource(World& world, std::span<const HeldBox> own, std::span<const HeldBox> wanted,
             Stream& stream, Missing missing = Missing::spoils_all);

  /// Names of what somebody wants and nobody has; the same on all ranks, each once.
  const std::vector<std::string>& missing() const { return missing_; }
  std::int64_t received_bytes() const { return received_bytes_; }

  std::string place() const override { return "the memory of other ranks"; }
  std::vector<std::string> names(std::string_view kind) const override;
  std::optional<Shape> shape(std::string_view kind, std::string_view name) const override;
  void read(std::string_view kind, std::string_view name, std::span<const std::int64_t> begin,
            std::span<const std::int64_t> end, const Tensor& out) const override;

 private:
  /// A box without its data, as ranks tell each other.
  struct Region {
    Shape begin, end;
    Shape extent() const;
  };
  struct Entry {
    std::size_t index = 0;  ///< in the list of its rank
    std::string kind, name;
    Shape whole;
    Region region;
    DType dtype = DType::f32;
  };
  struct Transfer {
    int from = 0, to = 0;
    const Entry* had = nullptr;     ///< of the sender
    const Entry* wanted = nullptr;  ///< of the receiver
    Region region;
  };
  using Lists = std::vector<std::vector<Entry>>;  // by rank

  static Lists tell(World& world, std::span<const HeldBox> boxes);
  static std::optional<Region> common(const Region& a, const Region& b);
  static std::vector<Region> without(const Region& all, const Region& part);
  std::vector<Transfer> plan(const Lists& had, const Lists& wanted);
  void carry_out(World& world, std::span<const Transfer> transfers);
  static Tensor part_of(const Tensor& data, const Shape& begin, const Region& region);
  void copy(const Tensor& from, const Tensor& to) const;

  const std::span<const HeldBox> own_;
  const Missing rule_;
  Stream& stream_;
  mutable Stream host_stream_{1};  // a GPU's has no kernels for host memory
  Memory host_;
  std::map<std::pair<std::string, std::string>, Shape, std::less<>> shapes_;  // by kind and name
  std::vector<HeldBox> received_;
  std::vector<std::string> missing_;
  std::int64_t received_bytes_ = 0;
};

}  // namespace heddle::recover
