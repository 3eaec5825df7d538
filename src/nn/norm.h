#pragma once

#include <memory>

#include "nn/fusible.h"

namespace heddle {

/// A normalisation of every row. Keeps its input and the rows' statistics.
class Norm : public AddingLayer {
 public:
  /// The output once more, from what is kept. Call between forward and backward.
  virtual Tensor output_again(const Saved& saved, Ctx& ctx) const = 0;
};

/// What rows are multiplied by: a norm's weight, or one more where the weight is stored less one,
/// in the weight's own dtype.
Tensor norm_factor(const Parameter& weight, bool adds_one, Ctx& ctx);

/// RMSNorm over the last dimension: y = x / rms(x) * w, or * (1 + w).
class RmsNorm final : public Norm {
 public:
  RmsNorm(std::shared_ptr<Parameter> weight, double eps, bool adds_one = false);

  Tensor forward_added(Tensor x_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward_added(Tensor dy_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;
  Tensor output_again(const Saved& saved, Ctx& ctx) const override;

 private:
  enum Slot { kInput, kRstd, kOutputGrad };
  std::shared_ptr<Parameter> weight_;
  double eps_;
  bool adds_one_;
};

/// LayerNorm over the last dimension: y = (x - mean) / deviation * w + b.
class LayerNorm final : public Norm {
 public:
  LayerNorm(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias, double eps);

  Tensor forward_added(Tensor x_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward_added(Tensor dy_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;
  Tensor output_again(const Saved& saved, Ctx& ctx) const override;

 private:
  bool trains() const { return weight_->trains || bias_->trains; }

  enum Slot { kInput, kMean, kRstd, kOutputGrad };
  std::shared_ptr<Parameter> weight_, bias_;
  double eps_;
};

}  // namespace heddle
