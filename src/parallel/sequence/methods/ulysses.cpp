#include "parallel/sequence/methods/methods.h"

namespace heddle::context_methods {
namespace {

/// Calls `send(from, to)` for all messages of an exchange among `ranks`, so that in each turn every
/// rank sends to one and receives from one.
template <class Send>
void for_each_message(const HeadRanks& ranks, const Send& send) {
  for (std::size_t distance = 1; distance < ranks.size(); ++distance) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      send(ranks[i], ranks[(i + distance) % ranks.size()]);
    }
  }
}

const TokenRuns& held_by(const ContextPlan& plan, int rank) {
  return plan.held[static_cast<std::size_t>(rank)];
}

const AttentionShare& share_of(const ContextPlan& plan, int rank) {
  return plan.shares[static_cast<std::size_t>(rank)];
}

}  // namespace

void scatter_heads(const ContextPlan& plan, const HeadRanks& ranks, int round,
                   PassBuilder& rounds) {
  for_each_message(ranks, [&](int from, int to) {
    const AttentionShare& share = share_of(plan, to);
    rounds.send(round, from, to, {Content::q, share.heads}, held_by(plan, from));
    rounds.send(round, from, to, {Content::kv, share.key_heads}, held_by(plan, from));
  });
}

void return_output(const ContextPlan& plan, const HeadRanks& ranks, int round,
                   PassBuilder& rounds) {
  for_each_message(ranks, [&](int from, int to) {
    rounds.send(round, from, to, {Content::out, share_of(plan, from).heads}, held_by(plan, to));
  });
}

void scatter_output_grad(const ContextPlan& plan, const HeadRanks& ranks, int round,
                         PassBuilder& rounds) {
  for_each_message(ranks, [&](int from, int to) {
    rounds.send(round, from, to, {Content::out_grad, share_of(plan, to).heads},
                held_by(plan, from));
  });
}

void return_grads(const ContextPlan& plan, const HeadRanks& ranks, int round, PassBuilder& rounds) {
  // Where several ranks have the same key head, each has the gradient of its own query heads only.
  const bool is_shared = static_cast<int>(ranks.size()) > plan.shape.key_heads;
  for_each_message(ranks, [&](int from, int to) {
    const AttentionShare& share = share_of(plan, from);
    rounds.send(round, from, to, {Content::q_grad, share.heads}, held_by(plan, to));
    rounds.send(round, from, to, {Content::kv_grad, share.key_heads, is_shared}, held_by(plan, to));
  });
}

/// usp with all ranks in one group: nothing goes round its rings of one rank.
ContextPlan ulysses(const ContextShape& shape) { return usp(shape); }

}  // namespace heddle::context_methods
