#include <algorithm>

#include "base/log.h"
#include "model/given_cut.h"
#include "planner/recut.h"
#include "train/run.h"

namespace heddle {
namespace {

/// Of the ranks that share a stage the slowest counts: the others wait for it.
std::vector<double> slowest_by_stage(const MeshShape& mesh, const std::vector<double>& by_rank) {
  std::vector<double> slowest(static_cast<std::size_t>(mesh.size(Axis::pp)), 0.0);
  for (int rank = 0; rank < static_cast<int>(by_rank.size()); ++rank) {
    double& stage = slowest[static_cast<std::size_t>(mesh.coord(Axis::pp, rank))];
    stage = std::max(stage, by_rank[static_cast<std::size_t>(rank)]);
  }
  return slowest;
}

}  // namespace

/// All ranks know the same speeds and find the same cut, so they need not agree on it, but for
/// whether it fits and who remembers that it has changed too often: newcomers do not.
bool Run::cuts_again() {
  constexpr std::int64_t kEvery = RankSpeeds::kWindow;
  constexpr double kWorthwhile = 1.05;
  const RankSpeeds& speeds = recording_->speeds();
  // Blocks that are left out cost nothing, and have to be found where they are when a rank comes.
  const bool is_due = config_.recover.recut && state_.left_out.empty() && setup_->plan.pp > 1 &&
                      speeds.is_known() && state_.step % kEvery == 0 &&
                      state_.step + kEvery <= config_.total_steps();
  if (!is_due) return false;
  const std::vector<double> seconds = slowest_by_stage(setup_->plan.mesh, speeds.recent());
  if (std::ranges::max(seconds) <= 0) return false;  // not timed
  const planner::Recut cut =
      planner::recut_stages(setup_->spec, setup_->plan, config_.data.seq_len,
                            static_cast<int>(setup_->config.accumulation()), seconds);
  const std::string better = text_of_cut(cut.better);
  if (cut.gain() < kWorthwhile || better == carried_.refused_cut) return false;
  ParallelPlan plan = setup_->plan;
  plan.units_of_stage = units_of_cut(setup_->spec, cut.better);
  const std::string change = fmt::format(
      "{} blocks a stage in place of {}, by what blocks take ranks", better, text_of_cut(cut.now));
  // Speeds that come and go would have blocks move for ever: each cut stays twice as long as the
  // one before.
  constexpr int kMostDoubled = 20;
  const std::int64_t stays =
      carried_.cuts == 0 ? 0 : kEvery << std::min(carried_.cuts, kMostDoubled);
  const bool is_too_soon = state_.step < carried_.cut_step + stays;
  constexpr double kTooSoon = 1, kDoesNotFit = 2;
  const double objection = is_too_soon ? kTooSoon : fits(*setup_, plan) ? 0 : kDoesNotFit;
  const double heard = setup_->world.all().combine(objection, ReduceOp::max);
  if (heard == kTooSoon) return false;
  if (heard == kDoesNotFit) {
    carried_.refused_cut = better;
    if (setup_->is_first) {
      log_warn("step {}: {}, would make steps {:.2f} times as fast, but does not fit in memory",
               state_.step, change, cut.gain());
    }
    return false;
  }
  carried_.cut = better;
  carried_.cut_step = state_.step;
  ++carried_.cuts;
  carried_.why_cut = fmt::format("stages are cut again: {} ({:.2f} times as fast by reckoning)",
                                 change, cut.gain());
  // Who ends the epoch knows that all go on with the same cut, also those who then fail to hear it.
  setup_->world.all().barrier();
  return true;
}

}  // namespace heddle
