#pragma once

#include <span>
#include <string>
#include <vector>

#include "recover/choose_sources.h"
#include "recover/peer_source.h"

namespace heddle::recover {

/// Blocks of a lost stage, and those that they are made of by position.
struct LostBlocks {
  int begin = 0, end = 0;
  int before = 0, after = 0;  ///< the first block of the neighbours; the same of a copy
  float weight_before = 0.0F, weight_after = 0.0F;
};
/// Of all stages that come from their neighbours; empty where none does.
std::vector<LostBlocks> lost_blocks(const std::vector<PieceSource>& sources,
                                    const StageBlocks& blocks);

/// The memory of ranks, where some blocks are on none of them any more: their weights are the mean
/// of their neighbours' or a copy of one (checkfree.h), in float32, and an optimizer's states are
/// zeros. A box of a lost tensor is made of the same box of its neighbours, so any mesh can read.
class NeighbourSource : public StateSource {
 public:
  /// As PeerSource. Blocks of neighbours are in the memory of some rank.
  NeighbourSource(World& world, std::span<const HeldBox> own, std::span<const HeldBox> wanted,
                  std::vector<LostBlocks> lost, Stream& stream);

  /// Beside what is made here.
  const std::vector<std::string>& missing() const { return peers_.missing(); }

  std::string place() const override { return peers_.place(); }
  std::vector<std::string> names(std::string_view kind) const override {
    return peers_.names(kind);
  }
  std::optional<Shape> shape(std::string_view kind, std::string_view name) const override;
  void read(std::string_view kind, std::string_view name, std::span<const std::int64_t> begin,
            std::span<const std::int64_t> end, const Tensor& out) const override;

 private:
  const std::vector<LostBlocks> lost_;
  const PeerSource peers_;
};

/// The number of the block that a tensor belongs to, the first in its name: 3 of
/// "model.layers.3.mlp.up_proj.weight"; -1: of none.
int block_of(std::string_view tensor);
/// The tensor in the same place of another block.
std::string in_block(std::string_view tensor, int block);

}  // namespace heddle::recover
