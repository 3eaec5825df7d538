#include "optim/sgd.h"

#include "ops/sgd.h"

namespace heddle {

std::vector<OptimizerState> Sgd::states(const SgdConfig& config) {
  if (config.momentum == 0.0) return {};
  return {{"momentum_buffer"}};
}

void Sgd::step(const StepArgs& args, Stream& stream) {
  for (const OptShard& shard : store_.shards()) {
    if (args.rests(shard.unit)) continue;
    const auto [lr, step] = args.rate_of(shard.unit);
    ops::sgd(shard.value, shard.grad, shard.states.empty() ? Tensor() : shard.states[0],
             {.lr = lr,
              .momentum = config_.momentum,
              .dampening = config_.dampening,
              .nesterov = config_.nesterov,
              .weight_decay = shard.decays ? config_.weight_decay : 0.0,
              .is_first = step == 1,
              .clip = args.clip,
              .p_low = shard.low},
             stream);
  }
}

}  // namespace heddle
