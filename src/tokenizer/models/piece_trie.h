#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle {

/// Finds all pieces that a text begins with. Immutable and thread-safe.
class PieceTrie {
 public:
  PieceTrie() = default;
  /// Of pieces that are given twice the last id counts. Empty pieces are left out.
  explicit PieceTrie(std::vector<std::pair<std::string, std::int32_t>> pieces);

  /// Calls `take(length, id)` for each piece that `text` begins with, shortest first.
  template <class Take>
  void for_each_prefix(std::string_view text, Take take) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node].id >= 0) take(i + 1, nodes_[node].id);
    }
  }

 private:
  struct Node {
    std::uint32_t first_edge = 0, edges = 0;
    std::int32_t id = -1;
  };
  struct Edge {
    unsigned char byte;
    std::uint32_t node;
  };
  using Sorted = std::vector<std::pair<std::string, std::int32_t>>;

  void build(const Sorted& pieces, std::size_t begin, std::size_t end, std::size_t depth,
             std::uint32_t node);

  std::uint32_t child(std::uint32_t node, unsigned char byte) const {
    if (node == 0) return roots_[byte];
    const Edge* edge = edges_.data() + nodes_[node].first_edge;
    for (std::uint32_t i = 0; i < nodes_[node].edges; ++i, ++edge) {
      if (edge->byte == byte) return edge->node;
      if (edge->byte > byte) break;
    }
    return 0;
  }

  std::vector<Node> nodes_{1};
  std::vector<Edge> edges_;  // of one node side by side, by byte
  std::array<std::uint32_t, 256> roots_{};
};

}  // namespace heddle
