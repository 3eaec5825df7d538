#pragma once

#include <cstdint>
#include <span>

#include "parallel/param_store.h"

namespace heddle {

/// What changes from step to step.
struct StepArgs {
  double lr = 0.0;
  Tensor clip = {};       ///< f32, one element: multiplies gradients first; absent: 1
  std::int64_t step = 1;  ///< counted from 1
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual void step(std::span<OptShard> shards, const StepArgs& args, Stream& stream) = 0;
};

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
};

class AdamW : public Optimizer {
 public:
  explicit AdamW(const AdamWConfig& config) : config_(config) {}
  void step(std::span<OptShard> shards, const StepArgs& args, Stream& stream) override;

 private:
  AdamWConfig config_;
};

}  // namespace heddle
