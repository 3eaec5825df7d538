#include "model/layer_pattern.h"

#include <fmt/core.h>

#include <vector>

namespace heddle {
namespace {

/// The smallest p such that every block from p on equals the one p before it: what remains behind
/// the longest beginning that is an end as well (Knuth, Morris and Pratt).
std::size_t period_of(const std::vector<BlockSpec>& blocks) {
  std::vector<std::size_t> border(blocks.size(), 0);
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    std::size_t length = border[i - 1];
    while (length > 0 && blocks[i] != blocks[length]) length = border[length - 1];
    border[i] = blocks[i] == blocks[length] ? length + 1 : 0;
  }
  return blocks.size() - border.back();
}

}  // namespace

void check_layers(const ConfigReader& config, std::int64_t layers) {
  constexpr std::int64_t kMost = 65'536;
  if (layers > kMost) {
    config.refuse(fmt::format("{} layers are more than any model has", layers));
  }
}

void change_layers(ModelSpec& spec,
                   const std::function<void(std::int64_t layer, BlockSpec& block)>& change) {
  std::vector<BlockSpec> blocks;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    BlockSpec block = spec.block(layer);
    change(layer, block);
    blocks.push_back(std::move(block));
  }
  blocks.resize(period_of(blocks));
  spec.blocks = std::move(blocks);
}

}  // namespace heddle
