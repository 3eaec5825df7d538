#pragma once

#include <string>
#include <vector>

#include "planner/search.h"

namespace heddle::planner {

/// A plan whose schedule was played action by action.
struct Finalist {
  Found found;
  bool is_simulated =
      false;            ///< false where the schedule is too long to play: the closed form stands
  double makespan = 0;  ///< seconds of the schedule, without exchange over dp and optimizer
  double bubble_fraction = 0;
  double seconds = 0;  ///< of the whole step
};

/// Plays the lowered schedule of a plan with the closed form's times of its real stages.
Finalist simulate_plan(const Machine& machine, const Job& job, const Found& found);

/// Simulates the best of a search, at most `count` of them that differ in mesh, schedule, chunks or
/// micro-batch; fastest first, and first of all the one to take: of those within kTie of the
/// fastest, the simplest.
std::vector<Finalist> choose_finalists(const Machine& machine, const Job& job,
                                       const SearchResult& result, int count);

/// What makes `loser` slower than `winner`: "bubble +0.41 s, messages between stages +0.20 s".
std::string why_slower(const TimeEstimate& loser, const TimeEstimate& winner);

/// "tp 4, pp 8, dp 16, zb-v, micro-batch 1, ZeRO 1, sequence, recompute".
std::string describe(const Candidate& candidate);

}  // namespace heddle::planner
