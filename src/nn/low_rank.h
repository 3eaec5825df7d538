#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "nn/context.h"
#include "nn/embedding.h"
#include "nn/layer.h"
#include "nn/parameter.h"
#include "ops/random.h"

namespace heddle {

/// Low-rank adapters beside a product of weights (LoRA): some stretches of its outputs get
/// scale * (x A^T) B^T. One product may have several, each with an A and a B of its own: the A are
/// stacked, so that x is read once. What tp divides is in the parameters' layouts; here are only
/// products.
///
/// In training x may lose values at random before A, of each adapter others (PEFT's lora_dropout).
/// They follow from step, token and column, so that every mesh drops the same, and backward and
/// recomputation draw them again in place of keeping what was dropped.
class LowRank {
 public:
  /// One adapter: B [outputs, rank] for the outputs [first, first + outputs) of the product.
  struct Target {
    std::shared_ptr<Parameter> up;
    std::int64_t first = 0;
    std::uint64_t dropout_key = 0;
  };
  struct Dropout {
    double rate = 0.0;
    std::int64_t first_column = 0, columns = 0;  ///< of x, in the whole that tp may have divided
    TokenShare tokens = {};                      ///< of the batch's, that x has
  };
  /// What W needs of the values, which may be gone then: x A^T, and the gradient of it.
  struct Inner {
    Tensor value_TR, grad_TR;
  };

  /// `down`: the A of all targets, one below the other, [targets x rank, in].
  LowRank(std::shared_ptr<Parameter> down, std::vector<Target> targets, double scale,
          const Dropout& dropout);

  void add_output(const Tensor& x_TI, const Tensor& y_TO, Ctx& ctx) const;
  void add_input_grad(const Tensor& dy_TO, const Tensor& dx_TI, Ctx& ctx) const;
  Inner inner(const Tensor& x_TI, const Tensor& dy_TO, Ctx& ctx) const;
  void add_weight_grads(const Tensor& x_TI, const Tensor& dy_TO, const Inner& inner, Ctx& ctx);

  void visit(const ParamVisitor& visitor);
  /// Of all but the input, which the product keeps.
  Cost cost(const CostShape& shape) const;

 private:
  bool drops(const Ctx& ctx) const { return dropout_.rate > 0.0 && ctx.step > 0; }
  std::int64_t first_token(const Ctx& ctx) const;
  /// What of `rows` rows is dropped before the A of the first target.
  ops::DropoutMask mask(std::int64_t rows, Ctx& ctx) const;
  ops::DropoutMask of_target(std::size_t target, ops::DropoutMask mask, const Ctx& ctx) const;
  /// x as the A of a target sees it.
  Tensor dropped(std::size_t target, const Tensor& x_TI, const ops::DropoutMask& mask,
                 Ctx& ctx) const;
  /// The A of a target, or its gradient.
  Tensor rows_of(std::size_t target, const Tensor& down_RI) const;

  /// x A^T, and the gradient of it.
  Tensor inner_value(const Tensor& x_TI, Ctx& ctx) const;
  Tensor inner_grad(const Tensor& dy_TO, Ctx& ctx) const;
  /// The columns of a target: of its rank, and of its outputs.
  Tensor ranks_of(std::size_t target, const Tensor& inner_TR) const;
  Tensor outputs_of(std::size_t target, const Tensor& y_TO) const;

  std::shared_ptr<Parameter> down_;
  std::vector<Target> targets_;
  double scale_;
  Dropout dropout_;
};

}  // namespace heddle
