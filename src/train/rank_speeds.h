#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "config/run_config.h"
#include "model/parallel_plan.h"
#include "observe/report.h"

namespace heddle {

/// What ranks of a mesh have to do, as far as their speeds are compared by it.
struct RankWork {
  std::vector<int> group = {};   ///< by rank: those who do equal work on a block have the same
  std::vector<int> stage = {};   ///< by rank: its place in the pipeline
  std::vector<int> blocks = {};  ///< by rank: how many it has
  int microbatches = 1;
};

/// Of one site. Blocks cost ranks the same unless the model's blocks differ (then those of a stage
/// are compared), cp divides attention unevenly or by documents (those at the same place of cp), or
/// experts are divided, which are not chosen equally often (those with the same experts).
RankWork rank_work(const config::RunConfig& config, const ModelSpec& spec,
                   const ParallelPlan& plan);

/// Finds ranks that are slower than others by what blocks take them
/// (docs/design/054-stragglers.md). It knows no clock: all ranks are told the same and find the
/// same.
class RankSpeeds {
 public:
  /// So many steps are looked at.
  static constexpr std::size_t kWindow = 10;
  /// A rank is slow where a block takes it so many times what it takes others and steps are longer
  /// for it by this share, and no longer slow below the second ratio.
  static constexpr double kSlow = 1.3, kRecovered = 1.15, kFelt = 0.05;
  /// In so many of the steps it is above the second ratio: ranks that share cores are slow in
  /// turns.
  static constexpr int kSteady = 8;

  explicit RankSpeeds(RankWork work);

  const RankWork& work() const { return work_; }
  /// A step that took so long. `block_seconds`: StepResult's; nothing where that tells nothing.
  observe::PacesChanged add(std::int64_t step, std::span<const double> block_seconds,
                            double step_seconds);
  /// Whether the last steps tell something.
  bool is_known() const { return window_.size() == kWindow; }
  /// Medians of the last steps, by rank; 0 of one that has no block.
  std::vector<double> recent() const;

 private:
  double median_of(std::size_t rank) const;
  bool is_steadily_slow(std::size_t rank) const;

  const RankWork work_;
  std::deque<std::vector<double>> window_;
  struct Said {
    bool is_slow = false;
    std::int64_t since = 0;         ///< steps that came since the last line about it
    std::int64_t needed = kWindow;  ///< before the next: twice as many each time
  };
  std::vector<Said> said_;  // by rank
};

/// The median of the others of its group, by rank; 0 of one that is alone or has no block.
std::vector<double> usual_of_others(const RankWork& work, std::span<const double> seconds);

/// What the report says of the whole run.
std::vector<observe::RankSpeedRow> speed_rows(const RankWork& work,
                                              const observe::History& history);

}  // namespace heddle
