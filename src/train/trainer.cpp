#include "train/trainer.h"

#include "train/run.h"

namespace heddle {

TrainOutcome train(const config::RunConfig& config, const TrainOptions& options, World& world) {
  return Run(config, options, world).run();
}

TrainOutcome train(const config::RunConfig& config, const TrainOptions& options,
                   recover::Company& company) {
  return Run(config, options, company).run();
}

}  // namespace heddle
