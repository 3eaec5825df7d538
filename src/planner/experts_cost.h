#pragma once

#include "planner/candidate.h"
#include "planner/dry_block.h"
#include "planner/machine.h"

namespace heddle::planner {

/// What the mean block waits for the exchanges of its experts in one micro-batch, where they are
/// divided over ranks (docs/design/040-experts.md). Rows go as the list of a pass says
/// (nn/experts/experts_pass.h), each piece under the products and the exchanges of others; all else
/// is waited for.
struct ExpertsCost {
  double exposed_f = 0, exposed_b = 0;
  double again = 0;  ///< of forward, what is exchanged once more where blocks are recomputed
};

/// When, going backward through one layer's experts, the network between nodes is idle. A sum that
/// begins there and takes s seconds makes the pass longer by max(0, s - idle), exactly as the
/// recurrence has it (end_times).
struct ExpertsWindow {
  double begin = 0;    ///< when the last dispatch has ended, from the beginning of the pass
  double idle = 0;     ///< so much from there costs nothing
  double seconds = 0;  ///< of the pass with its products, without a sum
};

/// Of the candidate's backward. `with_weights`: gradients of the experts' weights are part of it.
ExpertsWindow experts_window(const Machine& machine, const Job& job, const Candidate& candidate,
                             const DryBlocks& dry, bool with_weights);

/// By the candidate's exchange, for blocks that were made for it (of the same r).
ExpertsCost experts_cost(const Machine& machine, const Job& job, const Candidate& candidate,
                         const DryBlocks& dry);

/// The candidate's exchange with the degrees, of forward and of backward apart, with which it takes
/// least, by the recurrence of their passes; of equal ones the smallest.
ExchangeRequest with_fastest_degrees(const Machine& machine, const Job& job, Candidate candidate,
                                     const DryBlocks& dry);

/// The degrees and the algorithm with which the candidate's exchange takes least, r as it is: of
/// equal ones the plain ones. Two levels are tried where ranks of ep share servers and do not all
/// do.
ExchangeRequest fastest_exchange(const Machine& machine, const Job& job, Candidate candidate,
                                 const DryBlocks& dry);

}  // namespace heddle::planner
