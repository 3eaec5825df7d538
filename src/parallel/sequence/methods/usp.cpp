#include <algorithm>
#include <numeric>

#include "parallel/sequence/methods/methods.h"

namespace heddle::context_methods {
namespace {

/// Rank r is in group r / context_heads and has part r % context_heads of the heads. The tokens of
/// a ring's rank are cut into equal stretches for the ranks of its group, so that together they
/// have them in order.
ContextPlan placed_by_heads(const ContextShape& shape) {
  const int parts = shape.context_heads;
  const auto ring_tokens = place_tokens(shape.order, shape.tokens, shape.ranks / parts);
  const int heads = shape.heads / parts, key_heads = std::max(1, shape.key_heads / parts);
  ContextPlan plan{.shape = shape, .held = {}, .shares = {}, .forward = {}, .backward = {}};
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const int part = rank % parts;
    const TokenRuns& tokens = ring_tokens[static_cast<std::size_t>(rank / parts)];
    const std::int64_t count = tokens_in(tokens);
    plan.held.push_back(slice(tokens, count * part / parts, count * (part + 1) / parts));
    plan.shares.push_back(
        {tokens, {part * heads, heads}, {part * shape.key_heads / parts, key_heads}});
  }
  return plan;
}

std::vector<HeadRanks> head_groups(const ContextShape& shape) {
  std::vector<HeadRanks> groups;
  for (int first = 0; first < shape.ranks; first += shape.context_heads) {
    auto& group = groups.emplace_back(static_cast<std::size_t>(shape.context_heads));
    std::iota(group.begin(), group.end(), first);
  }
  return groups;
}

std::vector<RingRanks> rings(const ContextShape& shape) {
  std::vector<RingRanks> rings(static_cast<std::size_t>(shape.context_heads));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    rings[static_cast<std::size_t>(rank % shape.context_heads)].push_back(rank);
  }
  return rings;
}

}  // namespace

ContextPlan usp(const ContextShape& shape) {
  ContextPlan plan = placed_by_heads(shape);
  const int ring_size = shape.ranks / shape.context_heads;
  PassBuilder forward(shape), backward(shape);
  for (const HeadRanks& group : head_groups(shape)) {
    scatter_heads(plan, group, 0, forward);
    return_output(plan, group, 1 + ring_size, forward);
    scatter_output_grad(plan, group, 0, backward);
    return_grads(plan, group, 1 + ring_size, backward);
  }
  for (const RingRanks& ring : rings(shape)) {
    ring_forward(plan, ring, 1, forward);
    ring_backward(plan, ring, 0,
                  backward);  // K and V are there before dO is: the first hop is free
  }
  plan.forward = forward.finish();
  plan.backward = backward.finish();
  return plan;
}

}  // namespace heddle::context_methods
