#include "parallel/schedule/schedule.h"

namespace heddle {

Schedule lower(const Schedule& compute_only) {
  Schedule lowered{compute_only.stages, compute_only.microbatches, {}};
  const int last = compute_only.stages - 1;
  for (const auto& actions : compute_only.by_rank) {
    std::vector<Action> out;
    for (const Action& action : actions) {
      const auto neighbour = [&](Act act, int stage) {
        out.push_back({act, action.stage, action.microbatch, compute_only.rank_of(stage)});
      };
      const bool is_backward = action.act == Act::b || action.act == Act::bw;
      if (action.act == Act::f && action.stage > 0) neighbour(Act::recv_act, action.stage - 1);
      if (is_backward && action.stage < last) neighbour(Act::recv_grad, action.stage + 1);
      out.push_back(action);
      if (action.act == Act::f && action.stage < last) neighbour(Act::send_act, action.stage + 1);
      if (is_backward && action.stage > 0) neighbour(Act::send_grad, action.stage - 1);
    }
    out.push_back({Act::reduce_grads});
    out.push_back({Act::step});
    lowered.by_rank.push_back(std::move(out));
  }
  return lowered;
}

}  // namespace heddle
