#include "engine/executor.h"

#include "base/check.h"

namespace heddle {

void execute(const Schedule& lowered, int rank, Stage& stage) {
  for (const Action& action : lowered.by_rank[static_cast<std::size_t>(rank)]) {
    switch (action.act) {
      case Act::f: stage.forward(action.microbatch); break;
      case Act::b: stage.backward_input(action.microbatch); break;
      case Act::w: stage.backward_weight(action.microbatch); break;
      case Act::bw: stage.backward(action.microbatch); break;
      case Act::reduce_grads: stage.reduce_grads(); break;
      case Act::step: stage.step(); break;
      case Act::send_act:
      case Act::recv_act:
      case Act::send_grad:
      case Act::recv_grad: HEDDLE_CHECK(false, "a schedule of one rank has no messages");
    }
  }
}

}  // namespace heddle
