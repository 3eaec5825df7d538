#include "planner/place_experts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/rng.h"
#include "planner/heaviest_cells.h"

namespace heddle::planner {
namespace {

/// Random placements from which descent starts, beside the contiguous and the greedy one.
constexpr int kRandomStarts = 8;
constexpr std::uint64_t kPlacementSeed = 0x9e1ace;
/// Of all pairs: what rounding may do to a sum of them.
constexpr double kSumSlack = 1e-12;

using Groups = std::vector<int>;  // the group, or the rank, of each expert of a layer

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// From a layer to the next: pairs by group here and expert there.
CellWeights pairs_from_groups(const ExpertAffinity& affinity, int layer, const Groups& here,
                              int ranks) {
  CellWeights pairs{ranks, affinity.experts, std::vector<double>(at(ranks) * at(affinity.experts))};
  for (int from = 0; from < affinity.experts; ++from) {
    for (int to = 0; to < affinity.experts; ++to) {
      pairs.weights[at(here[at(from)]) * at(affinity.experts) + at(to)] +=
          affinity.at(layer, from, to);
    }
  }
  return pairs;
}

/// The same by group on both sides.
CellWeights pairs_of_groups(const CellWeights& from_groups, const Groups& next) {
  const auto ranks = at(from_groups.rows);
  CellWeights cells{from_groups.rows, from_groups.rows, std::vector<double>(ranks * ranks)};
  for (std::size_t group = 0; group < ranks; ++group) {
    for (std::size_t to = 0; to < next.size(); ++to) {
      cells.weights[group * ranks + at(next[to])] += from_groups.weights[group * next.size() + to];
    }
  }
  return cells;
}

/// No matching is heavier.
double most_of_rows(const CellWeights& cells) {
  double sum = 0.0;
  for (auto row = cells.weights.begin(); row != cells.weights.end(); row += cells.columns) {
    sum += *std::max_element(row, row + cells.columns);
  }
  return sum;
}

double weight_of(const CellWeights& cells, const std::vector<char>& taken) {
  double sum = 0.0;
  for (std::size_t i = 0; i < taken.size(); ++i) sum += taken[i] != 0 ? cells.weights[i] : 0.0;
  return sum;
}

/// All divisions of experts into unnamed groups of `size`; groups are numbered by their first
/// expert.
class Partitions {
 public:
  Partitions(int experts, int ranks) : size_(experts / ranks), now_(at(experts), -1) {
    fill(0, 0, 0);
  }
  std::vector<Groups> take() { return std::move(all_); }

 private:
  /// Experts from `first` on may join `group`, which has `members`.
  void fill(int group, int members, int first) {
    if (members == size_) return fill(group + 1, 0, 0);
    if (members == 0) {
      const auto free = std::ranges::find(now_, -1);
      if (free == now_.end()) return all_.push_back(now_);
      return join(static_cast<int>(free - now_.begin()), group, 0);
    }
    for (int expert = first; expert < static_cast<int>(now_.size()); ++expert) {
      if (now_[at(expert)] < 0) join(expert, group, members);
    }
  }
  void join(int expert, int group, int members) {
    now_[at(expert)] = group;
    fill(group, members + 1, expert + 1);
    now_[at(expert)] = -1;
  }

  int size_;
  Groups now_;
  std::vector<Groups> all_;
};

/// The longest way through the partitions of all layers, where a step is as long as the pairs that
/// stay on their rank when groups are matched best.
ExpertPlacement best_placement(const ExpertAffinity& affinity, int ranks) {
  const std::vector<Groups> partitions = Partitions(affinity.experts, ranks).take();
  const std::size_t count = partitions.size();
  std::vector<double> kept(count);
  std::vector<std::vector<std::size_t>> from;  // by layer but the first
  for (int layer = 0; layer + 1 < affinity.layers(); ++layer) {
    std::vector<double> next(count, -1.0);
    from.emplace_back(count);
    // Those that kept most first: they leave little for the others to try.
    std::vector<std::size_t> best_first(count);
    std::iota(best_first.begin(), best_first.end(), std::size_t{0});
    std::ranges::stable_sort(best_first, std::greater(), [&](std::size_t a) { return kept[a]; });
    for (const std::size_t a : best_first) {
      const CellWeights from_groups = pairs_from_groups(affinity, layer, partitions[a], ranks);
      for (std::size_t b = 0; b < count; ++b) {
        const CellWeights cells = pairs_of_groups(from_groups, partitions[b]);
        if (kept[a] + most_of_rows(cells) <= next[b]) continue;
        const double sum = kept[a] + weight_of(cells, heaviest_cells(cells, 1, 1));
        if (sum <= next[b]) continue;
        next[b] = sum;
        from.back()[b] = a;
      }
    }
    kept = std::move(next);
  }
  std::vector<std::size_t> way = {
      static_cast<std::size_t>(std::ranges::max_element(kept) - kept.begin())};
  for (std::size_t layer = from.size(); layer-- > 0;) way.push_back(from[layer][way.back()]);
  std::ranges::reverse(way);

  ExpertPlacement placement{.ranks = ranks, .rank_of = {partitions[way.front()]}};
  for (int layer = 0; layer + 1 < affinity.layers(); ++layer) {
    Groups next = partitions[way[at(layer) + 1]];
    const CellWeights cells =
        pairs_of_groups(pairs_from_groups(affinity, layer, placement.rank_of.back(), ranks), next);
    const std::vector<char> matched = heaviest_cells(cells, 1, 1);
    for (int& group : next) {
      int rank = 0;
      while (matched[at(rank) * at(ranks) + at(group)] == 0) ++rank;
      group = rank;
    }
    placement.rank_of.push_back(std::move(next));
  }
  return placement;
}

/// Layer by layer the best assignment for given neighbours.
class Descent {
 public:
  Descent(const ExpertAffinity& affinity, ExpertPlacement start)
      : affinity_(affinity), placement_(std::move(start)), hops_(hops(affinity, placement_)) {}

  /// Each layer for the one before it only.
  void place_greedily() {
    for (int layer = 1; layer < affinity_.layers(); ++layer) assign(layer, false);
    hops_ = hops(affinity_, placement_);
  }
  void run() {
    const double enough = kSumSlack * affinity_.total();
    while (true) {
      const ExpertPlacement before = placement_;
      for (int layer = 0; layer < affinity_.layers(); ++layer) assign(layer, true);
      for (int layer = affinity_.layers() - 1; layer >= 0; --layer) assign(layer, true);
      const double now = hops(affinity_, placement_);
      if (now >= hops_ - enough) {
        if (now > hops_) placement_ = before;
        hops_ = std::min(now, hops_);
        return;
      }
      hops_ = now;
    }
  }
  const ExpertPlacement& placement() const { return placement_; }
  double found_hops() const { return hops_; }

 private:
  void assign(int layer, bool sees_next) {
    const int experts = affinity_.experts, ranks = placement_.ranks;
    CellWeights stays{experts, ranks, std::vector<double>(at(experts) * at(ranks))};
    for (int expert = 0; expert < experts; ++expert) {
      double* const by_rank = stays.weights.data() + at(expert) * at(ranks);
      for (int other = 0; other < experts; ++other) {
        if (layer > 0) {
          by_rank[rank_of(layer - 1, other)] += affinity_.at(layer - 1, other, expert);
        }
        if (sees_next && layer + 1 < affinity_.layers()) {
          by_rank[rank_of(layer + 1, other)] += affinity_.at(layer, expert, other);
        }
      }
    }
    const std::vector<char> taken = heaviest_cells(stays, 1, experts / ranks);
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (taken[i] != 0) {
        placement_.rank_of[at(layer)][i / at(ranks)] = static_cast<int>(i % at(ranks));
      }
    }
  }
  std::size_t rank_of(int layer, int expert) const {
    return at(placement_.rank_of[at(layer)][at(expert)]);
  }

  const ExpertAffinity& affinity_;
  ExpertPlacement placement_;
  double hops_;
};

ExpertPlacement random_placement(const ExpertAffinity& affinity, int ranks, std::uint64_t key) {
  ExpertPlacement placement = contiguous_placement(affinity.layers(), affinity.experts, ranks);
  std::uint64_t draw = 0;
  for (Groups& layer : placement.rank_of) {
    for (std::size_t i = layer.size(); i-- > 1;) {
      std::swap(layer[i], layer[random_u64(key, draw++) % (i + 1)]);
    }
  }
  return placement;
}

/// Every expert shares its rank with `experts / ranks` of the next layer, whichever these are, and
/// is shared by as many of the layer before.
double least_possible_hops(const ExpertAffinity& affinity, int ranks) {
  const int shared = affinity.experts / ranks;
  double sum = 0.0;
  for (const auto& counts : affinity.counts) {
    const CellWeights cells{affinity.experts, affinity.experts, counts};
    sum += std::accumulate(counts.begin(), counts.end(), 0.0) -
           weight_of(cells, heaviest_cells(cells, shared, shared));
  }
  return std::max(0.0, sum);
}

/// The experts of one node, numbered anew in each layer, and their affinity among themselves.
struct NodeExperts {
  std::vector<std::vector<int>> experts = {};  // by layer
  ExpertAffinity affinity = {};
};

NodeExperts experts_on(const ExpertAffinity& affinity, const ExpertPlacement& nodes, int node) {
  NodeExperts own;
  for (const Groups& layer : nodes.rank_of) {
    own.experts.emplace_back();
    for (int expert = 0; expert < affinity.experts; ++expert) {
      if (layer[at(expert)] == node) own.experts.back().push_back(expert);
    }
  }
  own.affinity.experts = static_cast<int>(own.experts.front().size());
  for (int layer = 0; layer + 1 < affinity.layers(); ++layer) {
    own.affinity.counts.emplace_back();
    for (const int from : own.experts[at(layer)]) {
      for (const int to : own.experts[at(layer) + 1]) {
        own.affinity.counts.back().push_back(affinity.at(layer, from, to));
      }
    }
  }
  return own;
}

}  // namespace

double count_partitions(int experts, int ranks) {
  const double size = static_cast<double>(experts) / ranks;
  return std::round(std::exp(std::lgamma(experts + 1.0) - ranks * std::lgamma(size + 1.0) -
                             std::lgamma(ranks + 1.0)));
}

PlacedExperts place_experts_by_descent(const ExpertAffinity& affinity, int ranks) {
  const int layers = affinity.layers();
  const ExpertPlacement plain = contiguous_placement(layers, affinity.experts, ranks);
  std::vector<Descent> starts = {Descent(affinity, plain), Descent(affinity, plain)};
  starts.back().place_greedily();
  for (std::uint64_t i = 0; i < kRandomStarts; ++i) {
    starts.emplace_back(affinity, random_placement(affinity, ranks, kPlacementSeed + i));
  }
  const Descent* best = nullptr;
  for (Descent& start : starts) {
    start.run();
    if (best == nullptr || start.found_hops() < best->found_hops()) best = &start;
  }
  const double least = least_possible_hops(affinity, ranks);
  return {.placement = best->placement(),
          .hops = best->found_hops(),
          .least_hops = std::min(least, best->found_hops()),
          .is_exact = best->found_hops() <= least + kSumSlack * affinity.total()};
}

PlacedExperts place_experts(const ExpertAffinity& affinity, int ranks) {
  if (count_partitions(affinity.experts, ranks) > kMostPartitions) {
    return place_experts_by_descent(affinity, ranks);
  }
  PlacedExperts placed{.placement = best_placement(affinity, ranks), .is_exact = true};
  placed.hops = placed.least_hops = hops(affinity, placed.placement);
  return placed;
}

PlacedOnNodes place_experts_on_nodes(const ExpertAffinity& affinity, int nodes, int per_node) {
  if (nodes == 1) return {.placed = place_experts(affinity, per_node), .between_nodes = 0.0};
  PlacedExperts outer = place_experts(affinity, nodes);
  PlacedOnNodes result{.placed = outer, .between_nodes = outer.hops};
  if (per_node == 1) return result;
  ExpertPlacement placement = outer.placement;
  placement.ranks = nodes * per_node;
  for (int node = 0; node < nodes; ++node) {
    const NodeExperts own = experts_on(affinity, outer.placement, node);
    const ExpertPlacement inner = place_experts(own.affinity, per_node).placement;
    for (std::size_t layer = 0; layer < own.experts.size(); ++layer) {
      for (std::size_t i = 0; i < own.experts[layer].size(); ++i) {
        placement.rank_of[layer][at(own.experts[layer][i])] =
            node * per_node + inner.rank_of[layer][i];
      }
    }
  }
  const double found = hops(affinity, placement);
  const double least = least_possible_hops(affinity, placement.ranks);
  result.placed = {.placement = std::move(placement),
                   .hops = found,
                   .least_hops = std::min(least, found),
                   .is_exact = false};
  return result;
}

}  // namespace heddle::planner
