#pragma once

#include <memory>

#include "nn/layer.h"

namespace heddle {

/// Keeps the input of the layer inside and what is dear to compute again (Keep::dear), and runs its
/// forward again just before its backward.
class Recompute : public Layer {
 public:
  /// `width` is that of the input.
  Recompute(std::unique_ptr<Layer> inner, std::int64_t width);

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward(const Tensor& dy, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  /// The repeated forward is not counted in the flops, by the convention of MFU.
  Cost cost(const CostShape& shape) const override;

 private:
  void run_again(Saved& saved, Ctx& ctx);

  enum Slot { kInput };
  std::unique_ptr<Layer> inner_;
  std::int64_t width_;
};

}  // namespace heddle
