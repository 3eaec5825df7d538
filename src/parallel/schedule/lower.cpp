#include <map>

#include "parallel/schedule/schedule.h"

namespace heddle {
namespace {

/// Marks the last weight gradients of each stage that a rank has.
void mark_completions(std::vector<Action>& actions) {
  std::map<int, Action*> last_of_stage;
  for (Action& action : actions) {
    if (action.act == Act::w || action.act == Act::bw) last_of_stage[action.stage] = &action;
  }
  for (const auto& [stage, action] : last_of_stage) action->completes_stage = true;
}

}  // namespace

Schedule lower(const Schedule& compute_only) {
  Schedule lowered = compute_only;
  const int stages = lowered.stages();
  for (int rank = 0; rank < lowered.ranks(); ++rank) {
    std::vector<Action> out;
    for (const Action& action : compute_only.by_rank[static_cast<std::size_t>(rank)]) {
      // To or from the rank of a neighbouring stage, where there is one and it is another.
      const auto message = [&](Act act, int stage) {
        if (stage < 0 || stage >= stages || lowered.rank_of(stage) == rank) return;
        out.push_back({act, action.stage, action.microbatch, lowered.rank_of(stage)});
      };
      const bool is_backward = action.act == Act::b || action.act == Act::bw;
      if (action.act == Act::f) message(Act::recv_act, action.stage - 1);
      if (is_backward) message(Act::recv_grad, action.stage + 1);
      out.push_back(action);
      if (action.act == Act::f) message(Act::send_act, action.stage + 1);
      if (is_backward) message(Act::send_grad, action.stage - 1);
    }
    mark_completions(out);
    out.push_back({Act::reduce_grads});
    out.push_back({Act::step});
    lowered.by_rank[static_cast<std::size_t>(rank)] = std::move(out);
  }
  return lowered;
}

}  // namespace heddle
