#include "parallel/sequence/methods/methods.h"

namespace heddle::context_methods {
namespace {

/// Queries are told apart by stretch, not only by document: in zigzag order a rank's first stretch
/// sees no key of the ranks above it, and does not travel there.
DocumentParts stretches_of(const DocumentParts& parts) {
  DocumentParts stretches;
  for (const DocumentPart& part : parts) {
    for (const TokenRun& run : part.tokens) stretches.push_back({part.document, {run}});
  }
  return stretches;
}

/// Queries go down the ranks: that at distance t has them in round t, and what it made of them is
/// with their owner after round t + 1.
ContextPass tokenring_pass(const ContextPlan& plan, bool is_backward) {
  const ContextShape& shape = plan.shape;
  const HeadRange heads = all_heads(shape);
  const Parcel q{is_backward ? Content::q_with_grad : Content::q, heads};
  const Parcel result{is_backward ? Content::q_grad : Content::out, heads, true};
  const auto parts = parts_by_rank(plan), queries_of = cut_queries(parts, shape.window);
  PassBuilder rounds(shape);
  for (int owner = 0; owner < shape.ranks; ++owner) {
    rounds.compute_own(0, owner, parts[static_cast<std::size_t>(owner)], heads);
    for (const DocumentPart& queries : stretches_of(queries_of[static_cast<std::size_t>(owner)])) {
      int holder = owner;
      for (int t = 1; t < shape.ranks; ++t) {
        const int user = (owner - t + shape.ranks) % shape.ranks;
        for_each_seen({queries}, parts[static_cast<std::size_t>(user)], shape.window,
                      [&](std::size_t, const DocumentPart&, const DocumentPart& keys) {
                        rounds.send(t - 1, holder, user, q, queries.tokens);
                        rounds.compute(t, user, queries, keys, heads);
                        rounds.send(t + 1, user, owner, result, queries.tokens);
                        holder = user;
                      });
      }
    }
  }
  return rounds.finish();
}

}  // namespace

ContextPlan tokenring(const ContextShape& shape) {
  ContextPlan plan = placed(shape);
  plan.forward = tokenring_pass(plan, false);
  plan.backward = tokenring_pass(plan, true);
  return plan;
}

}  // namespace heddle::context_methods
