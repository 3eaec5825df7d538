#pragma once

#include <vector>

#include "nn/experts/experts_pass.h"

namespace heddle {

struct PlayedTask {
  double begin = 0.0, end = 0.0;
};

/// Plays a pass event by event: each lane does its tasks in their order, as a rank does its
/// instructions (play_step), and waits for what a task needs. In the order of the pass.
std::vector<PlayedTask> play_experts(const ExpertsPass& pass, const ExpertsSeconds& seconds);

}  // namespace heddle
