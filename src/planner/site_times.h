#pragma once

#include "comm/communicator.h"
#include "planner/candidate.h"
#include "planner/machine.h"

namespace heddle::planner {

/// Steps of a run whose sites meet seldom (docs/design/036-local-training.md), as the mean over
/// OuterPolicy::every of them.
struct SiteTimes {
  double step_seconds = 0;
  double inner_seconds = 0;   ///< of a step in which nobody meets
  double waited_seconds = 0;  ///< for other sites
  double work_seconds = 0;    ///< encoding, decoding and outer updates
  double utilisation = 0;     ///< inner over step
  /// What the first rank of the pipeline counts on axis `site` in `every` steps.
  CommCounts traffic = {};
  double sent_bytes = 0;  ///< in a step on average, to all other sites, by the rank that sends most
};

/// Plays the steps (play_sites). `job` is what one site does in a step, `plan` has all sites, whose
/// links are the machine's outermost tier; `inner_seconds` is a step of one of them. A fragment
/// goes behind the update, as one all-gather and one of notes, and is waited for behind the update
/// of `delay` steps later.
SiteTimes site_times(const Machine& machine, const Job& job, const Candidate& plan,
                     double inner_seconds);

/// A site for itself.
Candidate without_sites(Candidate plan);

}  // namespace heddle::planner
