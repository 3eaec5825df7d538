#pragma once

#include <memory>

#include "nn/layer.h"

namespace heddle {

/// Whether a norm's output is made again in backward, where the layer behind it agrees, or kept:
/// the first holds less, the second is faster.
enum class NormOutput { rebuilt, kept };

/// RMSNorm over the last dimension: y = x / rms(x) * w.
class RmsNorm : public Layer {
 public:
  RmsNorm(std::shared_ptr<Parameter> weight, double eps, NormOutput output = NormOutput::rebuilt);

  Tensor forward(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward(const Tensor& dy_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_added(const Tensor& dy_TD, const Tensor& addend_TD, Saved& saved,
                        Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;
  bool can_rebuild_output() const override { return output_ == NormOutput::rebuilt; }
  Tensor rebuild_output(const Saved& saved, Ctx& ctx) const override;

 private:
  enum Slot { kInput, kRstd, kOutputGrad };
  std::shared_ptr<Parameter> weight_;
  double eps_;
  NormOutput output_;
};

/// LayerNorm over the last dimension: y = (x - mean) / deviation * w + b.
class LayerNorm : public Layer {
 public:
  LayerNorm(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias, double eps,
            NormOutput output = NormOutput::rebuilt);

  Tensor forward(const Tensor& x_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved& saved, Ctx& ctx) override;
  Tensor backward(const Tensor& dy_TD, Saved& saved, Ctx& ctx) override;
  Tensor backward_added(const Tensor& dy_TD, const Tensor& addend_TD, Saved& saved,
                        Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;
  bool can_rebuild_output() const override { return output_ == NormOutput::rebuilt; }
  Tensor rebuild_output(const Saved& saved, Ctx& ctx) const override;

 private:
  enum Slot { kInput, kMean, kRstd, kOutputGrad };
  std::shared_ptr<Parameter> weight_, bias_;
  double eps_;
  NormOutput output_;
};

}  // namespace heddle
