#pragma once

#include <functional>
#include <span>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace heddle {

/// How long one micro-batch takes on one stage, in any unit; bw takes b + w. `hop` is from the end
/// of a send of this stage to the end of its receive. The rank that sends does not wait.
struct StageTimes {
  double f = 1.0, b = 1.0, w = 1.0, hop = 0.0;
};

/// What one rank takes for its part of a split vocabulary, per micro-batch. The input layer's
/// passes are too short to matter.
struct VocabularyTimes {
  double s = 0.0, t = 0.0;
};

/// The times of a rank's whole part of the model divided over its stages: what every stage of
/// `schedule` takes when all ranks take the same. A hop is not divided.
std::vector<StageTimes> even_times(const Schedule& schedule, const StageTimes& whole_rank);

struct PlayedAction {
  Action action;
  double begin = 0.0, end = 0.0;  ///< of a receive: from when it is waited for
};

/// What became of a step. Idle time is what a rank does not compute between 0 and `makespan`.
struct Played {
  std::vector<std::vector<PlayedAction>> by_rank;
  double makespan = 0.0;

  // Three metrics that papers use for "the bubble"; they are not interchangeable.
  double bubble_fraction = 0.0;    ///< idle over makespan, mean of ranks (GPipe)
  double bubble_over_ideal = 0.0;  ///< idle over computing (Megatron-LM's (p-1)/m)
  /// (cost - ideal) / cost, where cost is the longest time from a rank's first computation to its
  /// last and ideal the longest time that a rank computes (Zero Bubble).
  double bubble_cost_rate = 0.0;
  double cost = 0.0, ideal = 0.0;
};

/// Plays a lowered and valid schedule: each rank does its actions in order, as soon as it is free
/// and what it receives has arrived. `times` by stage. A collective takes the hop of the stage it
/// serves, from the last begin that it needs.
Played play(const Schedule& lowered, std::span<const StageTimes> times,
            const VocabularyTimes& vocabulary = {});

/// What a message takes from rank to rank. A link carries one after the other.
struct HopTime {
  double latency = 0.0, carried = 0.0;
};
using HopTimes = std::function<HopTime(int from, int to)>;
/// The same with hops that depend on who sends to whom, in place of StageTimes::hop.
Played play(const Schedule& lowered, std::span<const StageTimes> times, const HopTimes& hops);

}  // namespace heddle
