#pragma once

#include <mutex>

#include "observe/trace.h"
#include "parallel/schedule/schedule.h"
#include "train/keepers.h"

namespace heddle {

/// Collects a timeline of a rank's steps: its actions, and the calls of its communicators with
/// their bytes, each axis on a stream of its own. Times count from the construction, which all
/// ranks do at the same time.
class StepTrace {
 public:
  /// Waits for all ranks, so that their clocks start together. `rank`: in the mesh. `schedule` is
  /// the step's.
  StepTrace(Keepers keepers, int rank, Schedule schedule);
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  void begin_step(std::int64_t step);
  /// An action of the step begun last, with seconds from its start.
  void add(const Action& action, double begin, double end);
  /// A call of this rank's that has ended in that step, from any thread.
  void add_call(const CommCall& call);

  /// Whether this rank has so much, or has had it for so long, that it should be gathered.
  bool is_part_full() const;
  /// What came since the last call. All keepers call it; the first one's answer has the spans of
  /// all of them.
  observe::Trace gather();

 private:
  double seconds_at(CommCall::Clock::time_point time) const;

  const Keepers keepers_;
  const int rank_;
  const Schedule schedule_;
  const CommCall::Clock::time_point start_;
  double step_start_ = 0.0;
  double part_start_ = 0.0;
  std::int64_t step_ = 0;
  mutable std::mutex mutex_;  // calls end on other threads too
  observe::Trace trace_;
};

}  // namespace heddle
