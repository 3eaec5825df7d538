#include "tokenizer/models/piece_trie.h"

#include <algorithm>

namespace heddle {

PieceTrie::PieceTrie(Sorted pieces) {
  std::erase_if(pieces, [](const auto& piece) { return piece.first.empty(); });
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  build(pieces, 0, pieces.size(), 0, 0);
  for (std::uint32_t i = 0; i < nodes_[0].edges; ++i) {
    const Edge& edge = edges_[nodes_[0].first_edge + i];
    roots_[edge.byte] = edge.node;
  }
}

void PieceTrie::build(const Sorted& pieces, std::size_t begin, std::size_t end, std::size_t depth,
                      std::uint32_t node) {
  for (; begin < end && pieces[begin].first.size() == depth; ++begin) {
    nodes_[node].id = pieces[begin].second;
  }
  const auto byte_at = [&](std::size_t i) {
    return static_cast<unsigned char>(pieces[i].first[depth]);
  };
  const auto first = static_cast<std::uint32_t>(edges_.size());
  std::vector<std::size_t> starts;
  for (std::size_t i = begin; i < end; ++i) {
    if (i > begin && byte_at(i) == byte_at(i - 1)) continue;
    starts.push_back(i);
    edges_.push_back({byte_at(i), static_cast<std::uint32_t>(nodes_.size())});
    nodes_.emplace_back();
  }
  nodes_[node].first_edge = first;
  nodes_[node].edges = static_cast<std::uint32_t>(starts.size());
  starts.push_back(end);
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    build(pieces, starts[i], starts[i + 1], depth + 1, edges_[first + i].node);
  }
}

}  // namespace heddle
