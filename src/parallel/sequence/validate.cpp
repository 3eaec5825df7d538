#include <fmt/format.h>

#include "parallel/sequence/checks.h"

namespace heddle {

std::vector<Diagnostic> validate(const ContextPlan& plan) {
  std::vector<Diagnostic> found;
  check_messages(plan, plan.forward, "forward", found);
  check_messages(plan, plan.backward, "backward", found);
  if (!found.empty()) return found;
  check_pairs(plan, plan.forward, "forward", found);
  check_pairs(plan, plan.backward, "backward", found);
  check_data(plan, found);
  return found;
}

std::string to_text(const TokenRun& run) {
  if (run.count == 1) return fmt::format("token {}", run.first);
  const std::string text = fmt::format("tokens {} to {}", run.first, run.last());
  return run.stride == 1 ? text : fmt::format("{} by {}", text, run.stride);
}

const char* name_of(Content content) {
  switch (content) {
    case Content::q: return "q";
    case Content::kv: return "k and v";
    case Content::out: return "output";
    case Content::out_grad: return "dO";
    case Content::q_with_grad: return "q with dO";
    case Content::q_grad: return "dQ";
    case Content::kv_grad: return "dK and dV";
  }
  return "?";
}

HeadRange key_heads_of(HeadRange heads, const ContextShape& shape) {
  const int first = heads.first / shape.group();
  return {first, (heads.first + heads.count - 1) / shape.group() - first + 1};
}

}  // namespace heddle
