#include "model/cut_stages.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace heddle {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// With more stages than units some only pass on, but never the first, which has the tokens, nor
/// the last, which has the loss.
int least_units(int stage, int stages, int units) {
  return stages <= units || stage == 0 || stage == stages - 1 ? 1 : 0;
}

/// Costs of units one after the other.
class Costs {
 public:
  explicit Costs(const std::vector<double>& of_units) : before_(of_units.size() + 1, 0.0) {
    for (std::size_t i = 0; i < of_units.size(); ++i) before_[i + 1] = before_[i] + of_units[i];
  }
  int units() const { return static_cast<int>(before_.size()) - 1; }
  double of(int begin, int end) const { return before_[at(end)] - before_[at(begin)]; }

 private:
  std::vector<double> before_;
};

/// Of stages that lie on ranks of different speeds.
std::vector<double> factors_of(const std::vector<int>& rank_of_stage,
                               const std::vector<double>& slowness) {
  std::vector<double> factors(rank_of_stage.size(), 1.0);
  for (std::size_t stage = 0; stage < factors.size() && !slowness.empty(); ++stage) {
    factors[stage] = slowness[at(rank_of_stage[stage])];
  }
  return factors;
}

/// Where each stage begins, and the end, such that the costliest stage is as cheap as can be. Of
/// several such cuts the early ones: early stages hold more micro-batches.
std::vector<int> cuts_for_stages(const Costs& costs, const std::vector<double>& factors) {
  const int units = costs.units(), stages = static_cast<int>(factors.size());
  // worst[s][u]: the costliest of s stages over the first u units; last[s][u]: where the last of
  // them begins.
  const double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> worst(at(stages + 1),
                                         std::vector<double>(at(units + 1), kNever));
  std::vector<std::vector<int>> last(at(stages + 1), std::vector<int>(at(units + 1), 0));
  worst[0][0] = 0.0;
  for (int s = 1; s <= stages; ++s) {
    const int least = least_units(s - 1, stages, units);
    for (int u = 0; u <= units; ++u) {
      for (int cut = 0; cut <= u - least; ++cut) {
        const double candidate =
            std::max(worst[at(s - 1)][at(cut)], factors[at(s - 1)] * costs.of(cut, u));
        if (candidate < worst[at(s)][at(u)]) {
          worst[at(s)][at(u)] = candidate;
          last[at(s)][at(u)] = cut;
        }
      }
    }
  }
  std::vector<int> cuts(at(stages + 1), units);
  for (int s = stages; s > 0; --s) cuts[at(s - 1)] = last[at(s)][at(cuts[at(s)])];
  return cuts;
}

/// Moves single units from stages of the costliest rank to their neighbours as long as that helps
/// it and makes no stage costlier than the costliest. Where every rank has one stage, nothing does.
class RankBalancer {
 public:
  RankBalancer(const Costs& costs, const std::vector<int>& rank_of_stage,
               const std::vector<double>& factors, std::vector<int> cuts)
      : costs_(costs), rank_of_stage_(rank_of_stage), factors_(factors), cuts_(std::move(cuts)) {
    const int stages = static_cast<int>(rank_of_stage_.size());
    load_.resize(at(*std::ranges::max_element(rank_of_stage_) + 1), 0.0);
    for (int s = 0; s < stages; ++s) {
      load_[at(rank_of(s))] += stage_cost(s);
      worst_stage_ = std::max(worst_stage_, stage_cost(s));
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (int s = 0; s + 1 < stages; ++s) {
        moved = move_unit(s, s + 1) || move_unit(s + 1, s) || moved;
      }
    }
  }
  std::vector<int> cuts() && { return std::move(cuts_); }

 private:
  int rank_of(int stage) const { return rank_of_stage_[at(stage)]; }
  double stage_cost(int s) const {
    return factors_[at(s)] * costs_.of(cuts_[at(s)], cuts_[at(s + 1)]);
  }

  /// The unit at the border of two neighbours.
  bool move_unit(int from, int to) {
    const int stages = static_cast<int>(rank_of_stage_.size());
    int& cut = cuts_[at(std::max(from, to))];
    const int unit = from < to ? cut - 1 : cut;
    const int units_here = cuts_[at(from + 1)] - cuts_[at(from)];
    if (units_here <= least_units(from, stages, costs_.units())) return false;
    const double cost = costs_.of(unit, unit + 1), cost_there = factors_[at(to)] * cost;
    double &here = load_[at(rank_of(from))], &there = load_[at(rank_of(to))];
    const bool is_costliest = here >= *std::ranges::max_element(load_);
    if (!is_costliest || here - there <= cost_there || cost <= 0.0 ||
        stage_cost(to) + cost_there > worst_stage_) {
      return false;
    }
    cut += from < to ? -1 : 1;
    here -= factors_[at(from)] * cost;
    there += cost_there;
    return true;
  }

  const Costs& costs_;
  const std::vector<int>& rank_of_stage_;
  const std::vector<double>& factors_;  // by stage
  std::vector<int> cuts_;
  std::vector<double> load_;  // by rank
  double worst_stage_ = 0.0;
};

}  // namespace

std::vector<DecoderPart::Units> cut_stages(const std::vector<double>& costs,
                                           const std::vector<int>& rank_of_stage,
                                           const std::vector<double>& slowness) {
  const Costs sums(costs);
  const int stages = static_cast<int>(rank_of_stage.size());
  const std::vector<double> factors = factors_of(rank_of_stage, slowness);
  const std::vector<int> cuts =
      RankBalancer(sums, rank_of_stage, factors, cuts_for_stages(sums, factors)).cuts();
  std::vector<DecoderPart::Units> result;
  for (int s = 0; s < stages; ++s) result.push_back({cuts[at(s)], cuts[at(s + 1)]});
  return result;
}

bool comes_round(const std::vector<int>& rank_of_stage) {
  if (rank_of_stage.size() < 3 || rank_of_stage.back() != 0) return false;
  for (std::size_t stage = 0; stage + 1 < rank_of_stage.size(); ++stage) {
    if (rank_of_stage[stage] != static_cast<int>(stage)) return false;
  }
  return true;
}

namespace {

/// Embedding and what is left of the blocks; equal numbers of blocks; final norm and head.
std::vector<DecoderPart::Units> cut_round(int layers, int ranks) {
  const int blocks = layers / (ranks - 1), first = 1 + layers - blocks * (ranks - 1);
  std::vector<DecoderPart::Units> result = {{0, first}};
  for (int rank = 1; rank < ranks; ++rank) {
    result.push_back({first + (rank - 1) * blocks, first + rank * blocks});
  }
  result.push_back({1 + layers, layers + 3});
  return result;
}

}  // namespace

std::vector<DecoderPart::Units> cut_stages(const ModelSpec& spec, std::int64_t seq_len,
                                           VocabularyPlacement vocabulary,
                                           const std::vector<int>& rank_of_stage) {
  if (comes_round(rank_of_stage)) {
    return cut_round(static_cast<int>(spec.layers), static_cast<int>(rank_of_stage.size()) - 1);
  }
  std::vector<double> costs = unit_costs(spec, seq_len);
  if (vocabulary == VocabularyPlacement::pipeline) costs.back() = 0.0;
  return cut_stages(costs, rank_of_stage);
}

}  // namespace heddle
