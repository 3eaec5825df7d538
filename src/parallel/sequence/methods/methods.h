#pragma once

#include "parallel/sequence/pass_builder.h"

/// One function per method, called by make_context_plan with a resolved shape.
namespace heddle::context_methods {

/// K and V of a rank go round, one hop per round, each document's part only to ranks that have
/// queries of it. Backward: the other way round, with the running sum of dK and dV one round behind
/// them, so that its last stop is its owner.
ContextPlan ring(const ContextShape& shape);

/// K and V go from their owner to all who need them at once; one part of the heads is computed
/// while the next is under way. Backward: the same, and partial dK and dV go back to the owner.
ContextPlan gather(const ContextShape& shape);

/// An exchange gives every rank all tokens of some heads, a second one brings the output back.
/// Backward: dO there, dQ, dK and dV back; q, k, v and o are kept as they were after the first.
ContextPlan ulysses(const ContextShape& shape);

/// Ulysses among `context_heads` neighbours, a ring among those with the same heads.
ContextPlan usp(const ContextShape& shape);

/// Contiguous order. The rank of the queries computes what is at most half of the ranks away; what
/// is farther the rank of the keys, which would have nothing to do, and gives the result back.
ContextPlan lightseq(const ContextShape& shape);

/// K and V stay. Queries go round, each stretch only to ranks that have keys of it, and results go
/// straight back to their owner, one round later. Backward: the same with q, dO, lse and delta one
/// way and dQ the other; dK and dV are summed where they are.
ContextPlan tokenring(const ContextShape& shape);

// ---- What methods share -------------------------------------------------------------------------

/// A plan without rounds. Ranks attend with the tokens they hold and all heads.
ContextPlan placed(const ContextShape& shape);

/// Of every rank its tokens during attention by document.
std::vector<DocumentParts> parts_by_rank(const ContextPlan& plan);

HeadRange all_heads(const ContextShape& shape);
HeadRange all_key_heads(const ContextShape& shape);

/// Ranks that pass K and V on to each other, in this order. They have the same heads.
using RingRanks = std::vector<int>;

/// Attention of one ring, in as many rounds as it has ranks, from `begin` on.
void ring_forward(const ContextPlan& plan, const RingRanks& ranks, int begin, PassBuilder& rounds);
/// In one more: in the first there is nothing to compute yet.
void ring_backward(const ContextPlan& plan, const RingRanks& ranks, int begin, PassBuilder& rounds);

/// Ranks that exchange tokens for heads: the first gets the first heads.
using HeadRanks = std::vector<int>;

/// q, k and v to those who attend with their heads, and back the output.
void scatter_heads(const ContextPlan& plan, const HeadRanks& ranks, int round, PassBuilder& rounds);
void return_output(const ContextPlan& plan, const HeadRanks& ranks, int round, PassBuilder& rounds);
/// dO to those who attend with its heads, and back dQ, dK and dV.
void scatter_output_grad(const ContextPlan& plan, const HeadRanks& ranks, int round,
                         PassBuilder& rounds);
void return_grads(const ContextPlan& plan, const HeadRanks& ranks, int round, PassBuilder& rounds);

}  // namespace heddle::context_methods
