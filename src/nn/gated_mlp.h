#pragma once

#include <memory>

#include "nn/linear.h"

namespace heddle {

/// y = (silu(gate) * up) D^T with [gate | up] = x W^T: a linear layer, SwiGLU and another linear
/// layer, in which SwiGLU belongs to the products on both sides of it. Keeps gate and up; what
/// comes of them is made again in backward.
class GatedMlp final : public Layer {
 public:
  /// Both is_plain(). `gate_up` makes gate in the first half of its outputs, up in the second.
  GatedMlp(std::unique_ptr<Linear> gate_up, std::unique_ptr<Linear> down);

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  Tensor forward_added(const Tensor& x, const Tensor& addend, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;
  bool accept_rebuilt_input() override { return gate_up_->accept_rebuilt_input(); }

 private:
  /// B down to gate and up; leaves what W of `down_` needs. Returns their gradient.
  Tensor backward_down(const Tensor& dy, Saved& saved, Ctx& ctx);

  enum Slot { kGateUp };
  enum Child { kOfGateUp, kOfDown };
  std::unique_ptr<Linear> gate_up_, down_;
};

}  // namespace heddle
