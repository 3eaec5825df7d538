#pragma once

#include "optim/optimizer.h"

namespace heddle {

class AdamW : public Optimizer {
 public:
  static std::vector<OptimizerState> states(const AdamWConfig&) {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  AdamW(const AdamWConfig& config, const ParamStore& store) : config_(config), store_(store) {}
  void step(const StepArgs& args, Stream& stream) override;

 private:
  AdamWConfig config_;
  const ParamStore& store_;
};

/// Updates one stretch whose first and second moments are its states `first` and `first` + 1.
void adamw_step(const AdamWConfig& config, const OptShard& shard, std::size_t first,
                const StepArgs& args, Stream& stream);

}  // namespace heddle
