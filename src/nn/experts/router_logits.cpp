#include "nn/experts/router_logits.h"

#include "base/check.h"
#include "ops/cast.h"
#include "ops/cosine.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"

namespace heddle {

using ops::Transpose;

namespace {

/// Of a product of tokens with a matrix, and of its gradients.
Cost product_cost(const CostShape& shape, std::int64_t in, std::int64_t out) {
  const WeightProduct product{static_cast<double>(shape.tokens()), static_cast<double>(in),
                              static_cast<double>(out)};
  const double flops = 2.0 * product.rows * product.in * product.out;
  Cost cost{flops, flops, flops};
  cost.products = {product};
  return cost;
}

}  // namespace

LinearLogits::LinearLogits(std::shared_ptr<Parameter> weight) : weight_(std::move(weight)) {
  HEDDLE_CHECK(weight_->shape.dims() == 2, "a router {}", weight_->shape.text());
}

Tensor LinearLogits::forward(const Tensor& x_TD, Saved&, Ctx& ctx) {
  const Tensor logits_TE = ctx.activation({x_TD.size(0), experts()}, statistics_of(x_TD.dtype()));
  ops::gemm(x_TD, Transpose::no, weight_->value, Transpose::yes, logits_TE, {}, ctx.stream);
  return logits_TE;
}

Tensor LinearLogits::backward_input(const Tensor& dlogits_TE, const Tensor& addend_TD, Saved& saved,
                                    Ctx& ctx) {
  const DType dtype = weight_->value.dtype();
  Tensor factor_TE = dlogits_TE;
  if (dtype != dlogits_TE.dtype()) {
    factor_TE = ctx.activation(dlogits_TE.shape(), dtype);
    ops::cast(dlogits_TE, factor_TE, ctx.stream);
  }
  const Tensor dx_TD = ctx.activation({dlogits_TE.size(0), width()}, dtype);
  ops::gemm_add(factor_TE, Transpose::no, weight_->value, Transpose::no, {}, addend_TD, dx_TD,
                ctx.stream);
  saved.put(kLogitsGrad, factor_TE);
  return dx_TD;
}

void LinearLogits::backward_weight(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  const Tensor dlogits_TE = saved.take(kLogitsGrad);
  if (!weight_->trains) return;
  ops::gemm(dlogits_TE, Transpose::yes, x_TD, Transpose::no, weight_->grad,
            {.beta = weight_->claim_grad()}, ctx.stream);
}

Cost LinearLogits::cost(const CostShape& shape) const {
  return product_cost(shape, width(), experts());
}

CosineLogits::CosineLogits(Parameters parameters) : own_(std::move(parameters)) {
  HEDDLE_CHECK(own_.projection->shape.dims() == 2 && own_.rows->shape.dims() == 2 &&
                   own_.projection->shape[0] == own_.rows->shape[1] &&
                   own_.bias->shape == Shape{own_.rows->shape[1]} && own_.warmth->shape == Shape{1},
               "a router of cosines {} x {}", own_.rows->shape.text(),
               own_.projection->shape.text());
}

Tensor CosineLogits::forward(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  const DType dtype = statistics_of(x_TD.dtype());
  const Tensor u_TP = ctx.activation({x_TD.size(0), inner()}, dtype);
  ops::gemm(x_TD, Transpose::no, own_.projection->value, Transpose::yes, u_TP, {}, ctx.stream);
  ops::add_bias(u_TP, own_.bias->value, ctx.stream);
  const Tensor logits_TE = ctx.activation({x_TD.size(0), experts()}, dtype);
  ops::cosine_logits(u_TP, own_.rows->value, own_.warmth->value, logits_TE, ctx.stream);
  if (ctx.keeps_dear()) saved.put(kProjected, u_TP);
  return logits_TE;
}

Tensor CosineLogits::backward_input(const Tensor& dlogits_TE, const Tensor& addend_TD, Saved& saved,
                                    Ctx& ctx) {
  const Tensor& u_TP = saved.get(kProjected);
  const Tensor du_TP = ctx.activation(u_TP.shape(), u_TP.dtype());
  ops::cosine_logits_backward_input(dlogits_TE, u_TP, own_.rows->value, own_.warmth->value, du_TP,
                                    ctx.stream);
  const Tensor dx_TD = ctx.activation({u_TP.size(0), width()}, own_.projection->value.dtype());
  ops::gemm_add(du_TP, Transpose::no, own_.projection->value, Transpose::no, {}, addend_TD, dx_TD,
                ctx.stream);
  // W needs values too, which may be gone by then.
  const auto keep = [&](int slot, const Tensor& value) {
    const Tensor copy = ctx.activation(value.shape(), value.dtype());
    ops::copy(value, copy, ctx.stream);
    saved.put(slot, copy);
  };
  keep(kRows, own_.rows->value);
  keep(kWarmth, own_.warmth->value);
  saved.put(kLogitsGrad, dlogits_TE);
  saved.put(kProjectedGrad, du_TP);
  return dx_TD;
}

void CosineLogits::backward_weight(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  const Tensor du_TP = saved.take(kProjectedGrad);
  if (own_.projection->trains) {
    ops::gemm(du_TP, Transpose::yes, x_TD, Transpose::no, own_.projection->grad,
              {.beta = own_.projection->claim_grad()}, ctx.stream);
  }
  const DType dtype = du_TP.dtype();
  ops::bias_backward(du_TP, addable_grad(*own_.bias, dtype, ctx), ctx.stream);
  ops::cosine_logits_backward_weight(
      saved.take(kLogitsGrad), saved.take(kProjected), saved.take(kRows), saved.take(kWarmth),
      addable_grad(*own_.rows, dtype, ctx), addable_grad(*own_.warmth, dtype, ctx), ctx.stream);
}

void CosineLogits::visit(const ParamVisitor& visitor) {
  for (const auto& parameter : {own_.projection, own_.bias, own_.rows, own_.warmth}) {
    visitor(*parameter);
  }
}

Cost CosineLogits::cost(const CostShape& shape) const {
  Cost cost = product_cost(shape, width(), inner());
  cost += product_cost(shape, inner(), experts());
  cost.saved_bytes = cost.dear_bytes =
      static_cast<std::size_t>(shape.tokens() * inner()) * size_of(statistics_of(shape.dtype));
  return cost;
}

}  // namespace heddle
