#include "parallel/sequence/methods/methods.h"

namespace heddle::context_methods {

ContextPlan placed(const ContextShape& shape) {
  ContextPlan plan{.shape = shape,
                   .held = place_tokens(shape.order, shape.tokens, shape.ranks),
                   .shares = {},
                   .forward = {},
                   .backward = {}};
  for (const TokenRuns& tokens : plan.held) {
    plan.shares.push_back({tokens, all_heads(shape), all_key_heads(shape)});
  }
  return plan;
}

std::vector<DocumentParts> parts_by_rank(const ContextPlan& plan) {
  std::vector<DocumentParts> parts;
  for (const auto& share : plan.shares) {
    parts.push_back(parts_of(share.tokens, plan.shape.documents));
  }
  return parts;
}

HeadRange all_heads(const ContextShape& shape) { return {0, shape.heads}; }
HeadRange all_key_heads(const ContextShape& shape) { return {0, shape.key_heads}; }

}  // namespace heddle::context_methods
