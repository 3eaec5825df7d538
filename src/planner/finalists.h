#pragma once

#include <string>
#include <vector>

#include "planner/search.h"
#include "planner/simulated_step.h"

namespace heddle::planner {

/// A plan whose step was simulated.
struct Finalist {
  Found found;
  /// False where the step is too long to play: the closed form stands.
  bool is_simulated = false;
  double makespan = 0;  ///< seconds of the schedule, without what of the exchange and the optimizer
                        ///< comes behind it
  double bubble_fraction = 0;
  StepTimes times = {};  ///< mean of all devices
  double seconds = 0;    ///< of the whole step, with waiting for the slowest of many ranks
};

/// Simulates a plan's step: its real stages, messages and exchanges.
Finalist simulate_plan(const Machine& machine, const Job& job, const Found& found);

/// Simulates the best of a search, at most `count` of them that differ in mesh, schedule, chunks or
/// micro-batch; fastest first, and first of all the one to take: of those within kTie of the
/// fastest, the simplest.
std::vector<Finalist> choose_finalists(const Machine& machine, const Job& job,
                                       const SearchResult& result, int count);

/// The rule by which the first of them was taken before faster ones; empty when it is the fastest.
std::string why_taken(const std::vector<Finalist>& finalists);
/// Why `other` was not taken although its step is shorter: "1.2 % faster, but pp 8 instead of 4";
/// empty when it is not.
std::string why_not_taken(const Finalist& other, const Finalist& taken);

/// What makes `loser` slower than `winner`: "bubble +0.41 s, messages between stages +0.20 s".
std::string why_slower(const TimeEstimate& loser, const TimeEstimate& winner);

/// "tp 4, cp 2 by ring, pp 8, dp 16, zb-v, micro-batch 1, ZeRO 1, sequence, recompute".
std::string describe(const Candidate& candidate);

}  // namespace heddle::planner
