#pragma once

#include <span>
#include <string>
#include <vector>

#include "recover/choose_sources.h"
#include "recover/peer_source.h"

namespace heddle::recover {

/// Of all stages that come from their neighbours; empty where none does.
std::vector<LostBlocks> lost_blocks(const std::vector<PieceSource>& sources,
                                    const StageBlocks& blocks);

/// What is to be asked of a source so that all that is `wanted` can be made of it: in place of the
/// weights of lost blocks those of their neighbours, and nothing in place of states.
std::vector<HeldBox> asked_of_neighbours(std::span<const HeldBox> wanted,
                                         const std::vector<LostBlocks>& lost);

/// The state of a run of which nobody has some blocks: their weights are the mean of their
/// neighbours' or a copy of one (checkfree.h), in float32, and an optimizer's states are zeros,
/// whatever `from` has in their place. A box of a lost tensor is made of the same box of its
/// neighbours, so any mesh can read.
class NeighbourSource : public StateSource {
 public:
  /// `from` outlives it.
  NeighbourSource(const StateSource& from, std::vector<LostBlocks> lost)
      : from_(from), lost_(std::move(lost)) {}

  std::string place() const override { return from_.place(); }
  std::vector<std::string> names(std::string_view kind) const override { return from_.names(kind); }
  std::optional<Shape> shape(std::string_view kind, std::string_view name) const override;
  void read(std::string_view kind, std::string_view name, std::span<const std::int64_t> begin,
            std::span<const std::int64_t> end, const Tensor& out) const override;

 private:
  const StateSource& from_;
  const std::vector<LostBlocks> lost_;
};

/// The number of the block that a tensor belongs to, the first in its name: 3 of
/// "model.layers.3.mlp.up_proj.weight"; -1: of none.
int block_of(std::string_view tensor);
/// The tensor in the same place of another block.
std::string in_block(std::string_view tensor, int block);

}  // namespace heddle::recover
