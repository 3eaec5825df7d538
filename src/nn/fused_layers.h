#pragma once

#include <memory>

#include "nn/activation.h"
#include "nn/fusible.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/redistribute.h"

namespace heddle {

// Layers that own neighbours and run them with fewer passes over memory, or keep less, than one
// after the other. nn/fuse.h puts them in place of those neighbours; parameters keep their order.

/// A norm and the product behind it, whose input is not kept but made again in backward. Between
/// the two may lie a change of placement that does nothing in forward.
class NormProduct final : public AddingLayer {
 public:
  /// `change` may be null.
  NormProduct(std::unique_ptr<Norm> norm, std::unique_ptr<Redistribute> change,
              std::unique_ptr<Product> product);

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor forward_added(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  Tensor backward_added(Tensor dy, const Tensor& addend, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  /// From the gradient of the product's input to that of the norm's output.
  Tensor changed_back(const Tensor& gradient, Ctx& ctx);

  enum Slot { kProductInput };
  enum Child { kNorm, kProduct };
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<Redistribute> change_;
  std::unique_ptr<Product> product_;
};

/// An activation and the linear behind it, whose input is not kept but comes once more from the
/// activation's backward.
class ActivationLinear final : public AddingLayer {
 public:
  ActivationLinear(std::unique_ptr<Activation> activation, std::unique_ptr<Linear> linear);

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor forward_added(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  enum Slot { kLinearInput };
  enum Child { kActivation, kLinear };
  std::unique_ptr<Activation> activation_;
  std::unique_ptr<Linear> linear_;
};

/// down(SwiGLU(up(x))) for two linears that are plain (Linear::is_plain). SwiGLU is applied in the
/// pass that makes gate and up, and differentiated in the pass that makes the gradient of its
/// output, where the device can (ops/gemm.h). Only gate and up are kept.
class SwiGluMlp final : public Product {
 public:
  SwiGluMlp(std::unique_ptr<Linear> up, std::unique_ptr<Linear> down);

  Tensor multiply(Tensor x_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) override;
  void backward_weight_given(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_given(Tensor dy_TD, const MakeInput& input, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  /// SwiGLU of up(x).
  Tensor activated(const Tensor& x_TD, Saved& saved, Ctx& ctx);
  struct GateGrad {
    Tensor dgate_up_TG, y_TF;  ///< y is the input of `down` once more
  };
  GateGrad differentiate(const Tensor& dy_TD, Saved& saved, Ctx& ctx);

  enum Slot { kGateUp = kFirstOwnSlot, kActivated };
  enum Child { kUp };
  std::unique_ptr<Linear> up_, down_;
};

}  // namespace heddle
