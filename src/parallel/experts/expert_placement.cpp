#include "parallel/experts/expert_placement.h"

#include <algorithm>
#include <numeric>

namespace heddle {

double ExpertAffinity::total() const {
  double sum = 0.0;
  for (const auto& layer : counts) sum = std::accumulate(layer.begin(), layer.end(), sum);
  return sum;
}

ExpertAffinity affinity_of(const RoutingTrace& trace) {
  const auto size = static_cast<std::size_t>(trace.experts);
  ExpertAffinity affinity{.experts = trace.experts, .counts = {}};
  affinity.counts.assign(static_cast<std::size_t>(trace.layers) - 1,
                         std::vector<double>(size * size));
  const auto choices = static_cast<std::size_t>(trace.choices);
  for (std::int64_t token = 0; token < trace.tokens(); ++token) {
    const std::int32_t* own = trace.taken.data() + token * trace.layers * trace.choices;
    for (std::size_t layer = 0; layer < affinity.counts.size(); ++layer) {
      const std::int32_t *from = own + layer * choices, *to = from + choices;
      const auto made = [&](const std::int32_t* of) {
        return std::count_if(of, of + choices, [](std::int32_t expert) { return expert >= 0; });
      };
      const double pairs = static_cast<double>(made(from) * made(to));
      for (std::size_t i = 0; i < choices; ++i) {
        for (std::size_t j = 0; j < choices; ++j) {
          if (from[i] < 0 || to[j] < 0) continue;
          affinity.counts[layer][static_cast<std::size_t>(from[i]) * size +
                                 static_cast<std::size_t>(to[j])] += 1.0 / pairs;
        }
      }
    }
  }
  return affinity;
}

ExpertPlacement contiguous_placement(int layers, int experts, int ranks) {
  std::vector<int> one(static_cast<std::size_t>(experts));
  for (int expert = 0; expert < experts; ++expert) {
    one[static_cast<std::size_t>(expert)] = expert / (experts / ranks);
  }
  return {ranks, std::vector(static_cast<std::size_t>(layers), one)};
}

double hops(const ExpertAffinity& affinity, const ExpertPlacement& placement) {
  double sum = 0.0;
  for (int layer = 0; layer + 1 < affinity.layers(); ++layer) {
    const auto& here = placement.rank_of[static_cast<std::size_t>(layer)];
    const auto& next = placement.rank_of[static_cast<std::size_t>(layer) + 1];
    for (int from = 0; from < affinity.experts; ++from) {
      for (int to = 0; to < affinity.experts; ++to) {
        if (here[static_cast<std::size_t>(from)] == next[static_cast<std::size_t>(to)]) continue;
        sum += affinity.at(layer, from, to);
      }
    }
  }
  return sum;
}

std::vector<std::vector<int>> renumbering_of(const ExpertPlacement& placement) {
  std::vector<std::vector<int>> order;
  for (const auto& ranks : placement.rank_of) {
    std::vector<int> experts(ranks.size());
    std::iota(experts.begin(), experts.end(), 0);
    std::ranges::stable_sort(experts, {},
                             [&](int expert) { return ranks[static_cast<std::size_t>(expert)]; });
    order.push_back(std::move(experts));
  }
  return order;
}

}  // namespace heddle
