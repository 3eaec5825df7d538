#include "engine/executor.h"

#include "base/check.h"
#include "base/clock.h"

namespace heddle {
namespace {

void perform(const Action& action, Stage& stage) {
  switch (action.act) {
    case Act::f: return stage.forward(action.microbatch);
    case Act::b: return stage.backward_input(action.microbatch);
    case Act::w: return stage.backward_weight(action.microbatch);
    case Act::bw: return stage.backward(action.microbatch);
    case Act::reduce_grads: return stage.reduce_grads();
    case Act::step: return stage.step();
    case Act::vocab_s:
    case Act::vocab_t:
    case Act::embed_f:
    case Act::embed_b:
    case Act::begin:
    case Act::end:
    case Act::send_act:
    case Act::recv_act:
    case Act::send_grad:
    case Act::recv_grad: break;
  }
  HEDDLE_CHECK(false, "a schedule of one rank has no messages");
}

}  // namespace

void execute(const Schedule& lowered, int rank, Stage& stage, const OnAction& on_action) {
  const Stopwatch watch;
  for (const Action& action : lowered.by_rank[static_cast<std::size_t>(rank)]) {
    const double begin = watch.seconds();
    perform(action, stage);
    if (on_action) on_action(action, begin, watch.seconds());
  }
}

}  // namespace heddle
