#pragma once

#include "nn/fusible.h"

namespace heddle {

/// y = factor * x, in place: x is a fresh output that nobody keeps.
class Scale final : public AddingLayer {
 public:
  Scale(double factor, std::int64_t width) : factor_(factor), width_(width) {}

  Tensor forward_added(Tensor x_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) override;
  void prepare_backward(const Tensor&, Saved&, Ctx&) override {}
  Tensor backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) override;
  void backward_weight(Saved&, Ctx&) override {}
  Tensor backward_added(Tensor dy_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor&) override {}
  Cost cost(const CostShape& shape) const override;

 private:
  double factor_;
  std::int64_t width_;
};

}  // namespace heddle
