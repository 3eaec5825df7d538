#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/experts/expert_placement.h"
#include "planner/experts_generation.h"

namespace heddle::planner {

/// What joins ranks: each has a link of its own, with so much room for what it sends to all others
/// and as much for what it receives.
struct GenerationLinks {
  double latency_s = 0.0;
  double bytes_per_s = 1.0;
};

/// Where the rows of an iteration have their experts: ranks by sequence and then by layer and
/// choice; below 0 where a choice is absent. Sequence s begins on rank s mod ranks.
using RowRanks = std::vector<std::vector<int>>;
/// The rows of the index-th of many iterations.
using DrawRows = std::function<RowRanks(std::uint64_t index)>;

/// Rows of tokens of a trace, any of them with equal chance.
DrawRows rows_of_trace(const RoutingTrace& trace, const ExpertPlacement& placement, int sequences);
/// Rows that take any rank, one for each token and layer.
DrawRows rows_anywhere(int ranks, int layers, int sequences);

/// The most ranks whose messages are followed one by one.
inline constexpr int kMostGeneratingRanks = 1024;

/// Seconds that the exchanges of an iteration take, in the mean over many; one exchange is for one
/// expert a token, and otherwise 0.
struct GenerationTime {
  double two_exchanges = 0.0, one_exchange = 0.0;
};
/// Follows all messages, since what counts is not what the mean rank sends: rows are uneven, and
/// the busiest rank of a call keeps those waiting that hear from it. A rank goes on when it has the
/// messages of a call, and sends those of the next. A message travels as packets with headers,
/// which the sender's link and the receiver's take one after the other, each whole. Not in it: what
/// ranks compute in between, and packets that are lost in queues too short for a call's messages.
GenerationTime generation_time(const GenerationShape& shape, const DrawRows& draw,
                               const GenerationLinks& links);

}  // namespace heddle::planner
