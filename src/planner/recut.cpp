#include "planner/recut.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "model/cut_stages.h"
#include "model/given_cut.h"
#include "simulator/play.h"

namespace heddle::planner {
namespace {

/// Ranks without a block are taken for usual ones.
std::vector<double> all_known(std::span<const double> block_seconds) {
  std::vector<double> seconds(block_seconds.begin(), block_seconds.end());
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const auto known = std::ranges::count_if(seconds, [](double value) { return value > 0; });
  if (known == 0) fail(ErrorCode::usage, "no rank's speed is known");
  for (double& value : seconds) {
    if (value <= 0) value = sum / static_cast<double>(known);
  }
  return seconds;
}

class Cutter {
 public:
  Cutter(const ModelSpec& spec, const ParallelPlan& plan, std::int64_t seq_len, int microbatches,
         std::span<const double> block_seconds)
      : spec_(spec),
        plan_(plan),
        seconds_(all_known(block_seconds)),
        schedule_(step_schedule(plan, microbatches)),
        work_(unit_costs(spec, seq_len)) {
    if (plan.divides_vocabulary_over_pp()) work_.back() = 0.0;
    const double of_blocks =
        std::accumulate(work_.begin() + 1, work_.begin() + 1 + spec.layers, 0.0);
    for (double& work : work_) work *= static_cast<double>(spec.layers) / of_blocks;
  }

  Recut cut() const {
    const auto better = cut_stages(work_, plan_.rank_of_stage, seconds_);
    Recut made{.now = blocks_of(spec_, plan_.units_of_stage),
               .better = blocks_of(spec_, better),
               .seconds_now = played(plan_.units_of_stage),
               .seconds_better = played(better)};
    const bool is_whole = problem_of_cut(spec_, made.better, plan_.rank_of_stage).empty();
    if (is_whole && made.seconds_better < made.seconds_now) return made;
    made.better = made.now;
    made.seconds_better = made.seconds_now;
    return made;
  }

 private:
  double played(const std::vector<DecoderPart::Units>& stages) const {
    std::vector<StageTimes> times;
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      const double work = std::accumulate(work_.begin() + stages[stage].begin,
                                          work_.begin() + stages[stage].end, 0.0);
      const auto rank = static_cast<std::size_t>(plan_.rank_of_stage[stage]);
      // Both halves of a backward have as many products as the forward.
      const double third = work * seconds_[rank] / 3;
      times.push_back({.f = third, .b = third, .w = third, .hop = 0.0});
    }
    return play(schedule_, times).makespan;
  }

  const ModelSpec& spec_;
  const ParallelPlan& plan_;
  const std::vector<double> seconds_;  // by pipeline rank
  const Schedule schedule_;
  std::vector<double> work_;  // of units, in blocks
};

}  // namespace

Recut recut_stages(const ModelSpec& spec, const ParallelPlan& plan, std::int64_t seq_len,
                   int microbatches, std::span<const double> block_seconds) {
  if (plan.pp == 1) {
    throw Error(ErrorCode::usage, "parallel.pp = 1: there are no stages to cut", "");
  }
  if (plan.takes_routes()) {
    throw Error(ErrorCode::usage,
                "parallel.schedule = \"routes\" has equal stages, which are not cut by speeds",
                "use another schedule, or leave slow ranks out of more routes (heddle plan "
                "routes)");
  }
  return Cutter(spec, plan, seq_len, microbatches, block_seconds).cut();
}

}  // namespace heddle::planner
