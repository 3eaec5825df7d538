#pragma once

#include <cstdint>
#include <vector>

namespace heddle {

/// Which experts tokens took, layer by layer (docs/formats/routing-trace.md).
struct RoutingTrace {
  int experts = 0, layers = 0, choices = 1;
  /// [tokens, layers, choices], the first choice first; -1: none.
  std::vector<std::int32_t> taken = {};

  std::int64_t tokens() const {
    return static_cast<std::int64_t>(taken.size()) / (std::int64_t{layers} * choices);
  }
};

/// How many tokens go from each expert of a layer to each of the next. A token with several choices
/// counts as 1 in all for each pair of layers.
struct ExpertAffinity {
  int experts = 0;
  std::vector<std::vector<double>> counts = {};  ///< by layer but the last: [from, to]

  int layers() const { return static_cast<int>(counts.size()) + 1; }
  double at(int layer, int from, int to) const {
    return counts[static_cast<std::size_t>(layer)]
                 [static_cast<std::size_t>(from) * static_cast<std::size_t>(experts) +
                  static_cast<std::size_t>(to)];
  }
  double total() const;
};
ExpertAffinity affinity_of(const RoutingTrace& trace);

/// Which rank has which expert: [layer][expert]. Every rank has as many of a layer as any other.
struct ExpertPlacement {
  int ranks = 1;
  std::vector<std::vector<int>> rank_of = {};
};

/// As ranks have experts without a placement: the first ones on the first rank, and so on.
ExpertPlacement contiguous_placement(int layers, int experts, int ranks);
/// Pairs of `affinity` that lie on different ranks.
double hops(const ExpertAffinity& affinity, const ExpertPlacement& placement);
/// By layer, for each new number the expert that gets it: those of rank 0 in their order, then
/// those of rank 1, ... With these numbers the placement is contiguous.
std::vector<std::vector<int>> renumbering_of(const ExpertPlacement& placement);

}  // namespace heddle
