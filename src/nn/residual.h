#pragma once

#include <memory>
#include <vector>

#include "nn/layer.h"

namespace heddle {

/// y = x + branch(x), or x + the sum of several branches of the same x (GPT-NeoX's parallel
/// residual).
class Residual : public Layer {
 public:
  /// `width` is that of x. Every branch starts with a layer that keeps x.
  Residual(std::vector<std::unique_ptr<Layer>> branches, std::int64_t width);

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  std::vector<std::unique_ptr<Layer>> branches_;
  std::int64_t width_;
};

}  // namespace heddle
