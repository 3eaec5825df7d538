#pragma once

#include "planner/candidate.h"
#include "planner/context_cost.h"
#include "planner/dry_block.h"
#include "planner/machine.h"

namespace heddle::planner {

/// Seconds of one pass over one block for one micro-batch, by what bounds them.
struct PassCost {
  double device = 0;   ///< kernels
  double comm = 0;     ///< collectives over tp, which nothing hides
  double host = 0;     ///< launching both
  double context = 0;  ///< what attention waits for other ranks of cp
  double experts = 0;  ///< what experts wait for the ranks that they are divided over

  double busy() const { return device + comm + context + experts; }

  PassCost& operator+=(const PassCost& other);
  /// The host runs ahead of the device or the device waits for it; near equality both happen.
  double seconds() const;
};

/// What one micro-batch costs on one rank of tp and cp: depends on nothing of a candidate but tp,
/// sequence, micro-batch, cp with its method, and ep and etp with their exchange.
struct BlockCost {
  int tp = 1, sequences = 1;
  bool sequence = false;
  ExchangeRequest exchange = {};  ///< of experts
  double stride_bytes = 0;        ///< of the residual: what a message between stages carries

  // Of one block:
  DryBlocks dry = {};
  PassCost forward, backward_input, backward_weight;
  PassCost again_full, again_selective;  ///< what recomputation adds to backward

  // Of embedding and head:
  PassCost embedding, head_forward, head_backward;

  /// The same for the whole vocabulary on every rank.
  PassCost whole_embedding, whole_head_forward, whole_head_backward;

  /// Both passes over a block.
  double busy() const { return forward.busy() + backward_input.busy() + backward_weight.busy(); }
};

BlockCost block_cost(const Machine& machine, const Job& job, const Candidate& candidate);
/// The same where attention over cp was played and blocks were made before.
BlockCost block_cost(const Machine& machine, const Job& job, const Candidate& candidate,
                     const ContextCost& context, DryBlocks dry);

}  // namespace heddle::planner
