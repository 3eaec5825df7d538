#include "planner/planned_windows.h"

#include <algorithm>
#include <cmath>

#include "planner/collectives.h"
#include "planner/experts_cost.h"
#include "planner/gradient_windows.h"
#include "planner/step_units.h"

namespace heddle::planner {
namespace {

/// Sizes that the line of a sum is fitted to: shares of all gradients of a rank.
constexpr int kFittedSizes = 16;

class WindowPlanner {
 public:
  WindowPlanner(const Machine& machine, const Job& job, const Candidate& candidate)
      : machine_(machine), job_(job), candidate_(candidate) {}

  PlannedWindows run(const std::vector<int>& rank_of_stage) const {
    const StepUnits units = step_units(machine_, job_, candidate_,
                                       block_cost(machine_, job_, candidate_), rank_of_stage);
    PlannedWindows planned{.windows = SumWindows(static_cast<std::size_t>(job_.spec.layers))};
    for (const StepRank& rank : units.ranks) {
      const GradientSlices slices = slices_of(rank, planned.windows);
      planned.seconds = std::max(planned.seconds, slices.seconds);
    }
    return planned;
  }

 private:
  /// Elements that are summed, over the ranks of the dense view and of the experts'.
  struct Summed {
    double dense = 0.0, experts = 0.0;

    double all() const { return dense + experts; }
    Summed& operator+=(const Summed& other) {
      dense += other.dense;
      experts += other.experts;
      return *this;
    }
  };

  bool has_experts(int block) const {
    return job_.spec.expert_layers_before(block + 1) > job_.spec.expert_layers_before(block);
  }

  Summed summed_by(const RankUnits& units, int unit) const {
    Summed summed;
    for (const RankUnits::Bucket& bucket : units.buckets) {
      if (bucket.owner != unit || !bucket.trains || bucket.over.empty() ||
          bucket.coded_gradients > 0) {
        continue;
      }
      (bucket.over.contains(Axis::edp) ? summed.experts : summed.dense) +=
          static_cast<double>(bucket.elements);
    }
    return summed;
  }

  /// Of so many elements, of which as many are experts' as of all of the rank.
  LinearTime line_of(const Summed& all) const {
    const CommOp op = candidate_.zero == 0 ? CommOp::all_reduce : CommOp::reduce_scatter;
    const GroupShape dense = group_shape(machine_, candidate_.token_ranks(), candidate_.tp),
                     experts = group_shape(machine_, candidate_.expert_token_ranks(),
                                           candidate_.ep * candidate_.etp);
    const auto seconds = [&](const GroupShape& group, double elements) {
      return elements > 0.0 ? collective_seconds(machine_, op, group,
                                                 elements * job_.stack.sent_gradient_bytes())
                            : 0.0;
    };
    std::vector<std::array<double, 2>> points;
    for (int i = 1; i <= kFittedSizes; ++i) {
      const double share = static_cast<double>(i) / kFittedSizes;
      points.push_back({share * all.all(),
                        seconds(dense, share * all.dense) + seconds(experts, share * all.experts)});
    }
    return fit_linear_time(points).time;
  }

  GradientSlices slices_of(const StepRank& rank, SumWindows& windows) const {
    std::vector<BackwardLayer> layers;
    std::vector<int> blocks;  // of the layers
    Summed all, carried;
    for (int unit = static_cast<int>(rank.times.size()) - 1; unit >= 0; --unit) {
      const int block = rank.units.units[static_cast<std::size_t>(unit)].block;
      const UnitTimes& times = rank.times[static_cast<std::size_t>(unit)];
      const bool is_embedding = unit == rank.units.embedding || (block < 0 && !layers.empty());
      if (is_embedding) continue;
      const Summed summed = summed_by(rank.units, unit);
      all += summed;
      double dense = times.b.seconds + times.w.seconds;
      if (block >= 0 && has_experts(block)) {
        dense -= times.in_bw.seconds;
        layers.push_back({.experts = pass_of(times.in_bw)});
        blocks.push_back(block);
      } else if (layers.empty()) {
        carried += summed;
        continue;
      }
      layers.back().dense_seconds += std::max(0.0, dense);
      layers.back().gradients += summed.all();
    }
    if (all.all() == 0.0 || layers.empty()) return {};
    GradientSlices slices = place_gradients(layers, line_of(all), carried.all());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      windows[static_cast<std::size_t>(blocks[i])] = {std::llround(slices.layers[i].with_experts),
                                                      std::llround(slices.layers[i].with_dense)};
    }
    return slices;
  }

  static std::function<ChosenPass(double)> pass_of(const ExpertsWindow& window) {
    return [window](double seconds) {
      return ChosenPass{.seconds = window.seconds + std::max(0.0, seconds - window.idle)};
    };
  }

  const Machine& machine_;
  const Job& job_;
  const Candidate& candidate_;
};

}  // namespace

PlannedWindows plan_windows(const Machine& machine, const Job& job, const Candidate& candidate,
                            const std::vector<int>& rank_of_stage) {
  return WindowPlanner(machine, job, candidate).run(rank_of_stage);
}

}  // namespace heddle::planner
