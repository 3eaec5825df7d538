#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/finalists.h"
#include "planner/given_links.h"
#include "planner/site_times.h"

namespace heddle::planner {

/// One way to send less between servers, in the layout in which it is fastest.
struct LinkRow {
  std::string what;  ///< "plain", "gradients int8:128", "onebit-adam"
  Job job;           ///< of one site, where there are several
  Candidate plan;
  double seconds = 0;     ///< of a step; of sites on average, of 1-bit Adam behind freezing
  double gain = 1;        ///< a plain step over it
  double run_gain = 1;    ///< the same of a whole run, whose first steps may be plain
  double sent_bytes = 0;  ///< in a step, to other servers, by the rank that sends most
  std::string accuracy;   ///< what is known of the price
  int price = 0;          ///< the same as a rank: more has to be faster to be advised
  std::optional<SiteTimes> sites = {};
};

struct LinkComparison {
  GivenLinks links;
  std::vector<LinkRow> rows;  ///< the first is plain
  std::size_t advised = 0;    ///< plain where nothing is worth it
  std::string advice;         ///< one sentence

  const LinkRow& best() const { return rows[advised]; }
};

/// Evaluates what may be sent less, and how, in the layouts of a search that was made for plain
/// steps: codecs by kind of traffic, all good ones together, presets, 1-bit Adam, and sites that
/// meet seldom. `machine` has the links; `plain` is the plan to take without any of it.
LinkComparison compare_links(const Machine& machine, const Job& job, const SearchOptions& options,
                             const SearchResult& result, const Finalist& plain,
                             const GivenLinks& links);

}  // namespace heddle::planner
