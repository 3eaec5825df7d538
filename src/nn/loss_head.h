#pragma once

#include <memory>

#include "nn/layer.h"

namespace heddle {

/// The last layer: output projection fused with cross-entropy, in chunks of tokens, so that the
/// logits of the whole micro-batch are never held. In training, forward makes the chunk's logits,
/// its loss, and at once its gradients (dx is kept, dW is added): computing them later would need
/// either all logits or a second product. So B hands over the kept dx, and W has nothing left to
/// do.
class LossHead : public Layer {
 public:
  /// `weight` is [V, D], possibly the token embedding itself; `bias` ([V]) may be null.
  LossHead(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias,
           std::int64_t chunk_tokens);

  /// Returns the loss of every token, [T] f64 on the host; 0 where the target is ignored.
  Tensor forward(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  /// dy is not used: the gradient is of ctx.loss_scale times the sum of the losses.
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved&, Ctx&) override {}
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

  /// Logits [T, V] of the given rows, for generation and for comparison with references.
  Tensor logits(const Tensor& x_TD, Ctx& ctx) const;

 private:
  void project(const Tensor& x_TD, const Tensor& logits_TV, Ctx& ctx) const;

  enum Slot { kInputGrad };
  std::shared_ptr<Parameter> weight_, bias_;
  std::int64_t chunk_tokens_;
};

}  // namespace heddle
