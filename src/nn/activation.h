#pragma once

#include "nn/layer.h"
#include "ops/activation.h"

namespace heddle {

/// y_TF = silu(gate) * up for x_T(2F) = [gate | up].
class SwiGlu : public Layer {
 public:
  explicit SwiGlu(std::int64_t width) : width_(width) {}

  Tensor forward(const Tensor& x, Saved& saved, Ctx& ctx) override;
  /// Writes the gradient over the saved input, which nothing needs afterwards.
  Tensor backward_input(const Tensor& dy_TF, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved&, Ctx&) override {}
  void visit(const ParamVisitor&) override {}
  Cost cost(const CostShape& shape) const override;
  bool can_rebuild_output() const override { return true; }
  Tensor rebuild_output(const Saved& saved, Ctx& ctx) const override;

 private:
  Tensor apply(const Tensor& x, Ctx& ctx) const;

  enum Slot { kInput };
  std::int64_t width_;
};

/// y = gelu(x).
class GeluLayer : public Layer {
 public:
  GeluLayer(std::int64_t width, ops::Gelu kind) : width_(width), kind_(kind) {}

  Tensor forward(const Tensor& x_TF, Saved& saved, Ctx& ctx) override;
  /// Writes the gradient over the saved input, which nothing needs afterwards.
  Tensor backward_input(const Tensor& dy_TF, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved&, Ctx&) override {}
  void visit(const ParamVisitor&) override {}
  Cost cost(const CostShape& shape) const override;
  bool can_rebuild_output() const override { return true; }
  Tensor rebuild_output(const Saved& saved, Ctx& ctx) const override;

 private:
  Tensor apply(const Tensor& x_TF, Ctx& ctx) const;

  enum Slot { kInput };
  std::int64_t width_;
  ops::Gelu kind_;
};

}  // namespace heddle
