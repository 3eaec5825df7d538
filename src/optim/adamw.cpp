#include "optim/adamw.h"

#include "ops/adamw.h"

namespace heddle {

void AdamW::step(std::span<OptShard> shards, const StepArgs& args, Stream& stream) {
  for (const OptShard& shard : shards) {
    ops::adamw(shard.value, shard.grad, shard.moment1, shard.moment2,
               {.lr = args.lr,
                .beta1 = config_.beta1,
                .beta2 = config_.beta2,
                .eps = config_.eps,
                .weight_decay = shard.decays ? config_.weight_decay : 0.0,
                .step = args.step,
                .clip = args.clip,
                .p_low = shard.low},
               stream);
  }
}

}  // namespace heddle
