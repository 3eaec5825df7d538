#include "recover/neighbour_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"

namespace heddle::recover {
namespace {

/// The first part of a dotted name that is a number; an empty one behind all where there is none.
std::string_view number_in(std::string_view tensor) {
  for (std::size_t at = 0; at < tensor.size();) {
    const std::size_t end = std::min(tensor.find('.', at), tensor.size());
    const std::string_view part = tensor.substr(at, end - at);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      return part;
    }
    at = end + 1;
  }
  return tensor.substr(tensor.size());
}

const LostBlocks* find(const std::vector<LostBlocks>& lost, std::string_view tensor) {
  const int block = block_of(tensor);
  const auto found = std::ranges::find_if(
      lost, [&](const LostBlocks& blocks) { return block >= blocks.begin && block < blocks.end; });
  return found == lost.end() ? nullptr : &*found;
}

std::string neighbour(std::string_view tensor, const LostBlocks& blocks, int first) {
  return in_block(tensor, first + block_of(tensor) - blocks.begin);
}

}  // namespace

int block_of(std::string_view tensor) {
  const std::string_view digits = number_in(tensor);
  int block = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), block);
  return block;
}

std::string in_block(std::string_view tensor, int block) {
  const std::string_view digits = number_in(tensor);
  const auto at = static_cast<std::size_t>(digits.data() - tensor.data());
  return fmt::format("{}{}{}", tensor.substr(0, at), block, tensor.substr(at + digits.size()));
}

std::vector<LostBlocks> lost_blocks(const std::vector<PieceSource>& sources,
                                    const StageBlocks& blocks) {
  const auto first_of = [&](int stage) { return blocks.begins[static_cast<std::size_t>(stage)]; };
  std::vector<LostBlocks> lost;
  for (const PieceSource& source : sources) {
    if (source.kind != PieceSource::Kind::neighbours) continue;
    const StageRecovery& recovery = source.recovery;
    const bool is_copy = recovery.kind == StageRecovery::Kind::copy;
    lost.push_back({.begin = first_of(source.stage),
                    .end = first_of(source.stage + 1),
                    .before = first_of(recovery.before),
                    .after = first_of(is_copy ? recovery.before : recovery.after),
                    .weight_before = source.weight_before,
                    .weight_after = source.weight_after});
  }
  return lost;
}

std::vector<HeldBox> asked_of_neighbours(std::span<const HeldBox> wanted,
                                         const std::vector<LostBlocks>& lost) {
  std::vector<HeldBox> asked;
  for (const HeldBox& box : wanted) {
    const LostBlocks* const blocks = find(lost, box.name);
    if (blocks == nullptr) {
      asked.push_back(box);
      continue;
    }
    if (box.kind != kWeightsKind) continue;
    HEDDLE_CHECK(box.data.dtype() == DType::f32, "{} is not kept in float32", box.name);
    for (const int first : {blocks->before, blocks->after}) {
      HeldBox& beside = asked.emplace_back(box);
      beside.name = neighbour(box.name, *blocks, first);
      if (blocks->before == blocks->after) break;
    }
  }
  return asked;
}

std::optional<Shape> NeighbourSource::shape(std::string_view kind, std::string_view name) const {
  const LostBlocks* const blocks = find(lost_, name);
  return from_.shape(
      kind, blocks == nullptr ? std::string(name) : neighbour(name, *blocks, blocks->before));
}

void NeighbourSource::read(std::string_view kind, std::string_view name,
                           std::span<const std::int64_t> begin, std::span<const std::int64_t> end,
                           const Tensor& out) const {
  const LostBlocks* const blocks = find(lost_, name);
  if (blocks == nullptr) return from_.read(kind, name, begin, end, out);
  const std::span<float> made = out.host<float>();
  if (kind != kWeightsKind && kind != kMasterKind) {
    std::ranges::fill(made, 0.0F);
    return;
  }
  from_.read(kind, neighbour(name, *blocks, blocks->before), begin, end, out);
  if (blocks->before == blocks->after) return;
  Memory host;
  const Tensor after = host.alloc(out.shape(), DType::f32, MemoryTag::workspace);
  from_.read(kind, neighbour(name, *blocks, blocks->after), begin, end, after);
  mean_of_neighbours(made, blocks->weight_before, after.host<float>(), blocks->weight_after, made);
}

}  // namespace heddle::recover
