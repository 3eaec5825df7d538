#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "observe/trace.h"

namespace heddle::observe {

/// All spans of one kind on one rank, in the mean of the steps: "F3" and "F4" are of kind F, "F3s1"
/// is of kind F on stage 1, "step" and "all_reduce" are their own kinds.
struct TraceRow {
  std::string kind;
  int stage = -1;  ///< -1: not said, because the rank has only one
  int rank = 0;
  int stream = 0;
  double count = 0;    ///< a step
  double seconds = 0;  ///< a step, all of them together
  double bytes = 0;    ///< a step
  double mean() const { return count > 0 ? seconds / count : 0.0; }
};

/// Where a rank's step goes, by its actions (stream 0).
struct TraceRank {
  int rank = 0;
  double computing = 0;  ///< forward, backward, the vocabulary's passes, optimizer
  double waiting = 0;    ///< for messages and collectives, as far as they are actions
  double idle = 0;       ///< the rest of the step
};

struct TraceSummary {
  int steps = 0;            ///< that count: of several the first is left out, it warms up
  double step_seconds = 0;  ///< from the first action of any rank to the last, mean
  std::vector<TraceRank> ranks = {};
  std::vector<TraceRow> rows = {};  ///< what takes most first
};

/// Steps are told apart by the action "step" that ends them; a trace without one is one step.
TraceSummary summarize(const Trace& trace);

/// One kind on one rank in two traces.
struct TraceDifference {
  std::optional<TraceRow> measured, simulated;

  const TraceRow& either() const { return measured ? *measured : *simulated; }
  /// Of a step.
  double seconds() const {
    return (measured ? measured->seconds : 0.0) - (simulated ? simulated->seconds : 0.0);
  }
};

struct TraceComparison {
  TraceSummary measured, simulated;
  std::vector<TraceDifference> rows;  ///< of ranks that both have; the largest first
  /// Ranks that only one has: a simulation plays one rank for several that are equal.
  std::vector<int> only_measured, only_simulated;
};
TraceComparison compare(TraceSummary measured, TraceSummary simulated);

/// At most `most` rows of a table.
std::string to_text(const TraceSummary& summary, std::size_t most);
std::string to_text(const TraceComparison& comparison, std::size_t most);
JsonValue to_json(const TraceSummary& summary);
JsonValue to_json(const TraceComparison& comparison);

}  // namespace heddle::observe
