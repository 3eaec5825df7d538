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
  return y_TO;
}

Tensor Linear::input_grad(const Tensor& dy_TO, Ctx& ctx) const {
  const Tensor dx_TI = ctx.activation({dy_TO.size(0), in()}, dy_TO.dtype());
  const auto transpose = storage_ == Storage::out_in ? Transpose::no : Transpose::yes;
  ops::gemm(dy_TO, Transpose::no, weight_->value, transpose, dx_TI, {}, ctx.stream);
  return dx_TI;
}

Tensor Linear::backward_input_given(const Tensor& dy_TO, const MakeInput&, Saved& saved, Ctx& ctx) {
  saved.put(kOutputGrad, dy_TO);
  return input_grad(dy_TO, ctx);
}

Tensor Linear::backward_given(Tensor dy_TO, const MakeInput& input, Saved&, Ctx& ctx) {
  Tensor dx_TI = input_grad(dy_TO, ctx);
  add_weight_grads(input(), dy_TO, ctx);
  return dx_TI;
}

void Linear::backward_weight_given(const Tensor& x_TI, Saved& saved, Ctx& ctx) {
  add_weight_grads(x_TI, saved.take(kOutputGrad), ctx);
}

void Linear::add_weight_grads(const Tensor& x_TI, const Tensor& dy_TO, Ctx& ctx) {
  const ops::GemmScale accumulate{.beta = weight_->claim_grad()};
  if (storage_ == Storage::out_in) {
    ops::gemm(dy_TO, Transpose::yes, x_TI, Transpose::no, weight_->grad, accumulate, ctx.stream);
  } else {
    ops::gemm(x_TI, Transpose::yes, dy_TO, Transpose::no, weight_->grad, accumulate, ctx.stream);
  }
  if (bias_) {
    bias_->clear_stale_grad(ctx.stream);
    ops::bias_backward(dy_TO, bias_->grad, ctx.stream);
  }
}

void Linear::visit(const ParamVisitor& visitor) {
  visitor(*weight_);
  if (bias_) visitor(*bias_);
}

Cost Linear::cost(const CostShape& shape) const {
  const auto tokens = static_cast<double>(shape.tokens());
  const WeightProduct made{tokens, static_cast<double>(in()), static_cast<double>(out())};
  const double product = 2.0 * made.rows * made.in * made.out;
  Cost cost{product, product, product, shape.bytes(in()), shape.bytes(in())};
  cost.products = cost.output_products = {made};
  return cost;
}

}  // namespace heddle
