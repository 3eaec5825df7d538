#pragma once

#include <vector>

#include "comm/world.h"
#include "engine/executor.h"
#include "observe/report.h"
#include "parallel/schedule/schedule.h"

namespace heddle {

/// Remembers when the actions of the last step began and ended.
class StepRecorder {
 public:
  void begin_step() { actions_.clear(); }
  void add(const Action& action, double begin, double end) {
    actions_.push_back({action, begin, end});
  }

  struct Recorded {
    Action action;
    double begin = 0.0, end = 0.0;
  };
  const std::vector<Recorded>& actions() const { return actions_; }

 private:
  std::vector<Recorded> actions_;
};

/// The recorded step of a pipeline as the report shows it: what was measured, and below it the same
/// schedule played with the mean times of its computations. All ranks of `pipeline` call it; the
/// first one's answer counts.
std::vector<observe::TimelineFigure> step_timelines(const StepRecorder& recorder,
                                                    const Schedule& schedule,
                                                    Communicator& pipeline, Memory& memory,
                                                    Stream& stream);

}  // namespace heddle
