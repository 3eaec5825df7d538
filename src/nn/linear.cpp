#include "nn/linear.h"

#include "ops/elementwise.h"
#include "ops/gemm.h"

namespace heddle {

using ops::Transpose;

Linear::Linear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias, Storage storage,
               bool adds_bias)
    : Product(weight->shape[storage == Storage::out_in ? 1 : 0]),
      weight_(std::move(weight)),
      bias_(std::move(bias)),
      storage_(storage),
      adds_bias_(adds_bias) {}

Tensor Linear::multiply(Tensor x_TI, const Tensor& addend_TO, Saved&, Ctx& ctx) {
  const Tensor y_TO = ctx.activation({x_TI.size(0), out()}, x_TI.dtype());
  const auto transpose = storage_ == Storage::out_in ? Transpose::yes : Transpose::no;
  const Tensor bias = bias_ && adds_bias_ ? bias_->value : Tensor();
  ops::gemm_add(x_TI, Transpose::no, weight_->value, transpose, bias, addend_TO, y_TO, ctx.stream);
  if (adapters_) adapters_->add_output(x_TI, y_TO, ctx);
  return y_TO;
}

Tensor Linear::input_grad(const Tensor& dy_TO, Ctx& ctx) const {
  const Tensor dx_TI = ctx.activation({dy_TO.size(0), in()}, dy_TO.dtype());
  const auto transpose = storage_ == Storage::out_in ? Transpose::no : Transpose::yes;
  ops::gemm(dy_TO, Transpose::no, weight_->value, transpose, dx_TI, {}, ctx.stream);
  if (adapters_) adapters_->add_input_grad(dy_TO, dx_TI, ctx);
  return dx_TI;
}

Tensor Linear::backward_input_given(const Tensor& dy_TO, const MakeInput& input, Saved& saved,
                                    Ctx& ctx) {
  if (needs_input()) saved.put(kOutputGrad, dy_TO);
  if (adapters_) keep_inner(input(), dy_TO, saved, ctx);
  return input_grad(dy_TO, ctx);
}

Tensor Linear::backward_given(Tensor dy_TO, const MakeInput& input, Saved&, Ctx& ctx) {
  Tensor dx_TI = input_grad(dy_TO, ctx);
  if (needs_input()) add_weight_grads(input(), dy_TO, ctx);
  return dx_TI;
}

void Linear::backward_weight_given(const Tensor& x_TI, Saved& saved, Ctx& ctx) {
  if (needs_input()) add_weight_grads_kept(x_TI, saved.take(kOutputGrad), saved, ctx);
}

void Linear::keep_inner(const Tensor& x_TI, const Tensor& dy_TO, Saved& saved, Ctx& ctx) const {
  if (!adapters_) return;
  LowRank::Inner inner = adapters_->inner(x_TI, dy_TO, ctx);
  saved.put(kInnerValue, std::move(inner.value_TR));
  saved.put(kInnerGrad, std::move(inner.grad_TR));
}

void Linear::add_weight_grads_kept(const Tensor& x_TI, const Tensor& dy_TO, Saved& saved,
                                   Ctx& ctx) {
  add_own_grads(x_TI, dy_TO, ctx);
  if (!adapters_) return;
  const LowRank::Inner inner{saved.take(kInnerValue), saved.take(kInnerGrad)};
  adapters_->add_weight_grads(x_TI, dy_TO, inner, ctx);
}

void Linear::add_weight_grads(const Tensor& x_TI, const Tensor& dy_TO, Ctx& ctx) {
  add_own_grads(x_TI, dy_TO, ctx);
  if (adapters_) {
    adapters_->add_weight_grads(x_TI, dy_TO, adapters_->inner(x_TI, dy_TO, ctx), ctx);
  }
}

void Linear::add_own_grads(const Tensor& x_TI, const Tensor& dy_TO, Ctx& ctx) {
  if (weight_->trains && storage_ == Storage::out_in) {
    ops::gemm(dy_TO, Transpose::yes, x_TI, Transpose::no, weight_->grad,
              {.beta = weight_->claim_grad()}, ctx.stream);
  } else if (weight_->trains) {
    ops::gemm(x_TI, Transpose::yes, dy_TO, Transpose::no, weight_->grad,
              {.beta = weight_->claim_grad()}, ctx.stream);
  }
  if (bias_ && bias_->trains) {
    bias_->clear_stale_grad(ctx.stream);
    ops::bias_backward(dy_TO, bias_->grad, ctx.stream);
  }
}

void Linear::visit(const ParamVisitor& visitor) {
  visitor(*weight_);
  if (bias_) visitor(*bias_);
  if (adapters_) adapters_->visit(visitor);
}

Cost Linear::cost(const CostShape& shape) const {
  const auto tokens = static_cast<double>(shape.tokens());
  const WeightProduct made{.rows = tokens,
                           .in = static_cast<double>(in()),
                           .out = static_cast<double>(out()),
                           .trains = weight_->trains};
  const double product = 2.0 * made.rows * made.in * made.out;
  const std::size_t kept = needs_input() ? shape.bytes(in()) : 0;
  Cost cost{product, product, made.trains ? product : 0.0, kept, kept};
  cost.products = cost.output_products = {made};
  if (adapters_) cost += adapters_->cost(shape);
  return cost;
}

}  // namespace heddle
