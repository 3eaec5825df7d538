#pragma once

#include <string>
#include <vector>

#include "planner/candidate.h"
#include "planner/machine.h"
#include "simulator/play_context.h"

namespace heddle::planner {

/// What the attention of the mean block takes for one micro-batch when ranks of cp share it:
/// seconds beside those that a rank computes itself. All 0 where cp is 1.
struct ContextCost {
  ContextMethod method = ContextMethod::automatic;
  int context_heads = 0;  ///< of usp
  /// What the first rank waits in F and B: for messages that computation does not hide, and for
  /// ranks that have more to compute.
  double exposed_f = 0, exposed_b = 0;
  double again = 0;             ///< of exchanges that recomputation repeats
  double seconds = 0;           ///< of F and B, computation and waiting
  std::int64_t sent_bytes = 0;  ///< in F and B by the rank that sends most
};

/// The attention that ranks of cp share: the sequences of a micro-batch are its documents. Blocks
/// with windows have them beside that.
ContextShape context_shape(const Job& job, const Candidate& candidate);

/// The same of each of the blocks that the model repeats, with its window.
std::vector<ContextShape> context_shapes(const Job& job, const Candidate& candidate);

/// What messages take among so many ranks that are `stride` devices apart: as many as fit are in
/// one server, and messages to others go by the network.
ContextTimes message_times(const Machine& machine, int ranks, int stride);

/// What pairs and messages take. Ranks of cp are tp devices apart.
ContextTimes context_times(const Machine& machine, const Job& job, const Candidate& candidate);

/// Plays the candidate's method. Allocates: once for every (tp, cp, method, micro-batch).
ContextCost context_cost(const Machine& machine, const Job& job, const Candidate& candidate);

/// Every method that the heads allow, in its own order, on the candidate's tp and cp. The one to
/// take first: of those within 1 % of the fastest the one that sends least; then by time.
std::vector<ContextCost> compare_methods(const Machine& machine, const Job& job,
                                         const Candidate& candidate);

/// "usp with heads over 4".
std::string describe(const ContextCost& cost);
/// What was compared, of a block's attention: "ring waits 1.9 ms of 832 and sends 3.8 GiB, gather
/// waits ...".
std::string why_method(const std::vector<ContextCost>& compared);

}  // namespace heddle::planner
