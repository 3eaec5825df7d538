#include "model/spec.h"

#include <algorithm>
#include <set>

#include "model/decoder.h"

namespace heddle {

std::int64_t ModelSpec::longest_sequence() const {
  using Scaling = RopeSpec::Scaling;
  const Scaling scaling = rope ? rope->scaling : Scaling::none;
  if (scaling != Scaling::dynamic && scaling != Scaling::yarn) return max_positions;
  // Of yarn the config may have either length: that before it, or that with it.
  const double from =
      scaling == Scaling::dynamic ? static_cast<double>(max_positions) : rope->original_positions;
  return std::max(max_positions, static_cast<std::int64_t>(from * rope->factor));
}

std::vector<std::int64_t> ModelSpec::windows() const {
  std::set<std::int64_t> all;
  for (const BlockSpec& block : blocks) {
    if (block.window) all.insert(*block.window);
  }
  return {all.begin(), all.end()};
}

std::int64_t ModelSpec::expert_layers_before(std::int64_t block_index) const {
  std::int64_t found = 0;
  for (std::int64_t index = 0; index < block_index; ++index) {
    found += std::ranges::count(block(index).branches, "experts");
  }
  return found;
}

double training_flops_per_token(const ModelSpec& spec, std::int64_t seq_len) {
  double flops = 0.0;
  for (const double of_unit : unit_costs(spec, seq_len)) flops += of_unit;
  return 3.0 * flops;
}

namespace {

/// Of one of each kind of block that the model repeats, by kind.
struct BlockCounts {
  std::int64_t all = 0;
  std::int64_t in_products = 0;  ///< that one token meets
};

std::vector<BlockCounts> block_counts(const ModelSpec& spec) {
  Memory memory(Memory::Mode::dry);
  const Decoder blocks = one_of_each_block(spec, memory);
  std::vector<BlockCounts> counts;
  for (const auto& block : blocks.stages[0]) {
    BlockCounts& of_block = counts.emplace_back();
    block->visit([&](const Parameter& parameter) { of_block.all += parameter.shape.count(); });
    for (const WeightProduct& product : block->cost({}).products) {
      of_block.in_products += static_cast<std::int64_t>(product.rows * product.in * product.out);
    }
  }
  return counts;
}

std::int64_t over_blocks(const ModelSpec& spec, std::int64_t BlockCounts::*count) {
  const auto counts = block_counts(spec);
  std::int64_t sum = 0;
  for (std::int64_t block = 0; block < spec.layers; ++block) {
    sum += counts[static_cast<std::size_t>(block) % counts.size()].*count;
  }
  return sum;
}

}  // namespace

std::int64_t ModelSpec::matmul_parameter_count() const {
  return over_blocks(*this, &BlockCounts::in_products) + vocab * hidden;
}

std::int64_t ModelSpec::parameter_count() const {
  const std::int64_t final_norm = norm == Norm::layer ? 2 * hidden : hidden;
  const std::int64_t tables = (tied_embeddings ? 1 : 2) * vocab * hidden;
  const std::int64_t positions = rope ? 0 : max_positions * hidden;
  return over_blocks(*this, &BlockCounts::all) + final_norm + tables + positions;
}

}  // namespace heddle
