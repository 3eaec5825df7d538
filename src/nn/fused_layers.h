#pragma once

#include <memory>

#include "nn/activation.h"
#include "nn/attention.h"
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

  Tensor forward_added(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) override;
  void prepare_backward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
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

/// down(f(up(x))) for an activation f. Between the passes only x and up(x) are kept: f(up(x)),
/// which `down` needs for W, comes once more from f's backward. SwiGLU between plain linears
/// (Linear::is_plain) is done inside the products beside it, where the device can (ops/gemm.h).
class Mlp final : public Product {
 public:
  Mlp(std::unique_ptr<Linear> up, std::unique_ptr<Activation> activation,
      std::unique_ptr<Linear> down);

  Tensor multiply(Tensor x_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) override;
  void prepare_given(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_input_given(const Tensor& dy_TD, const MakeInput&, Saved& saved,
                              Ctx& ctx) override;
  void backward_weight_given(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_given(Tensor dy_TD, const MakeInput& input, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;
  bool needs_input() const override { return up_->needs_input(); }

 private:
  /// The input of `down`.
  Tensor activated(Tensor x_TD, Saved& saved, Ctx& ctx);
  struct Middle {
    Tensor dh, y_TF;  ///< the gradient of up(x), and the input of `down` once more
  };
  Middle differentiate(const Tensor& dy_TD, Saved& saved, Ctx& ctx);

  enum Slot { kHidden = kFirstOwnSlot, kDownInput };
  enum Child { kUp, kDown };
  std::unique_ptr<Linear> up_;
  std::unique_ptr<Activation> activation_;
  std::unique_ptr<Linear> down_;
  bool applies_swiglu_in_products_;
};

/// All that lies between the qkv projection and the output projection. q, k and v are kept once, as
/// they come from the projection or rotated in place: where they are normed, what attention sees is
/// made again in backward, and its gradient is turned into that of the input in place.
class AttentionCore final : public Layer {
 public:
  AttentionCore(std::unique_ptr<PrepareQkv> prepare, std::unique_ptr<CausalAttention> attention);

  Tensor forward(const Tensor& qkv, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dout, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  enum Child { kPrepare, kAttention };
  std::unique_ptr<PrepareQkv> prepare_;
  std::unique_ptr<CausalAttention> attention_;
};

}  // namespace heddle
