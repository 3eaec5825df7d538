#pragma once

#include "optim/optimizer.h"

namespace heddle {

class Sgd : public Optimizer {
 public:
  static std::vector<OptimizerState> states(const SgdConfig& config);
  Sgd(const SgdConfig& config, const ParamStore& store) : config_(config), store_(store) {}
  void step(const StepArgs& args, Stream& stream) override;

 private:
  SgdConfig config_;
  const ParamStore& store_;
};

}  // namespace heddle
