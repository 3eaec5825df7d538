#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "nn/context.h"
#include "nn/layer.h"
#include "nn/parameter.h"

namespace heddle {

/// Low-rank adapters beside a product of weights (LoRA): some stretches of its outputs get
/// scale * (x A^T) B^T. One product may have several, each with an A and a B of its own: the A are
/// stacked, so that x is read once. What tp divides is in the parameters' layouts; here are only
/// products.
class LowRank {
 public:
  /// One adapter: B [outputs, rank] for the outputs [first, first + outputs) of the product.
  struct Target {
    std::shared_ptr<Parameter> up;
    std::int64_t first = 0;
  };
  /// What W needs of the values, which may be gone then: x A^T, and the gradient of it.
  struct Inner {
    Tensor value_TR, grad_TR;
  };

  /// `down`: the A of all targets, one below the other, [targets x rank, in].
  LowRank(std::shared_ptr<Parameter> down, std::vector<Target> targets, double scale);

  void add_output(const Tensor& x_TI, const Tensor& y_TO, Ctx& ctx) const;
  void add_input_grad(const Tensor& dy_TO, const Tensor& dx_TI, Ctx& ctx) const;
  Inner inner(const Tensor& x_TI, const Tensor& dy_TO, Ctx& ctx) const;
  void add_weight_grads(const Tensor& x_TI, const Tensor& dy_TO, const Inner& inner, Ctx& ctx);

  void visit(const ParamVisitor& visitor);
  /// Of all but the input, which the product keeps.
  Cost cost(const CostShape& shape) const;

 private:
  /// x A^T, and the gradient of it.
  Tensor inner_value(const Tensor& x_TI, Ctx& ctx) const;
  Tensor inner_grad(const Tensor& dy_TO, Ctx& ctx) const;
  /// The columns of a target: of its rank, and of its outputs.
  Tensor ranks_of(std::size_t target, const Tensor& inner_TR) const;
  Tensor outputs_of(std::size_t target, const Tensor& y_TO) const;

  std::shared_ptr<Parameter> down_;
  std::vector<Target> targets_;
  double scale_;
};

}  // namespace heddle
