#include "optim/adamw.h"

#include "ops/adamw.h"

namespace heddle {

void adamw_step(const AdamWConfig& config, const OptShard& shard, std::size_t first,
                const StepArgs& args, Stream& stream) {
  if (args.rests(shard.unit)) return;
  const auto [lr, step] = args.rate_of(shard.unit);
  ops::adamw(shard.value, shard.grad, shard.states[first], shard.states[first + 1],
             {.lr = lr,
              .beta1 = config.beta1,
              .beta2 = config.beta2,
              .eps = config.eps,
              .weight_decay = shard.decays ? config.weight_decay : 0.0,
              .step = step,
              .clip = args.clip,
              .p_low = shard.low},
             stream);
}

void AdamW::step(const StepArgs& args, Stream& stream) {
  for (const OptShard& shard : store_.shards()) adamw_step(config_, shard, 0, args, stream);
}

}  // namespace heddle
