#include "nn/linear.h"

#include "ops/elementwise.h"
#include "ops/gemm.h"

namespace heddle {

using ops::Transpose;

Linear::Linear(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias, Storage storage,
               bool adds_bias)
    : weight_(std::move(weight)),
      bias_(std::move(bias)),
      storage_(storage),
      adds_bias_(adds_bias) {}

Tensor Linear::forward(const Tensor& x_TI, Saved& saved, Ctx& ctx) {
  return forward_added(x_TI, {}, saved, ctx);
}

Tensor Linear::forward_added(const Tensor& x_TI, const Tensor& addend_TO, Saved& saved, Ctx& ctx) {
  const Tensor y_TO = ctx.activation({x_TI.size(0), out()}, x_TI.dtype());
  const auto transpose = storage_ == Storage::out_in ? Transpose::yes : Transpose::no;
  const Tensor bias = bias_ && adds_bias_ ? bias_->value : Tensor();
  ops::gemm_add(x_TI, Transpose::no, weight_->value, transpose, bias, addend_TO, y_TO, ctx.stream);
  if (ctx.keeps_saved && !input_is_rebuilt_) saved.put(kInput, x_TI);
  return y_TO;
}

Tensor Linear::backward_input(const Tensor& dy_TO, Saved& saved, Ctx& ctx) {
  const Tensor dx_TI = ctx.activation({dy_TO.size(0), in()}, dy_TO.dtype());
  const auto transpose = storage_ == Storage::out_in ? Transpose::no : Transpose::yes;
  ops::gemm(dy_TO, Transpose::no, weight_->value, transpose, dx_TI, {}, ctx.stream);
  saved.put(kOutputGrad, dy_TO);
  return dx_TI;
}

void Linear::backward_weight(Saved& saved, Ctx& ctx) {
  const Tensor x_TI = saved.take(input_is_rebuilt_ ? kRebuiltInput : kInput);
  const Tensor dy_TO = saved.take(kOutputGrad);
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

Tensor Linear::forward_through(const Tensor& x_TI, Layer& next, Saved& saved, Saved& next_saved,
                               Ctx& ctx) {
  if (!is_plain() || !next.takes_products()) {
    return Layer::forward_through(x_TI, next, saved, next_saved, ctx);
  }
  if (ctx.keeps_saved && !input_is_rebuilt_) saved.put(kInput, x_TI);
  return next.forward_product(x_TI, weight_->value, next_saved, ctx);
}

Layer::Rebuilt Linear::backward_through(const Tensor& dy_TO, Layer& before, Saved& saved,
                                        Saved& before_saved, Ctx& ctx) {
  if (!is_plain() || !before.takes_products()) {
    return Layer::backward_through(dy_TO, before, saved, before_saved, ctx);
  }
  saved.put(kOutputGrad, dy_TO);
  return before.backward_product(dy_TO, weight_->value, before_saved, ctx);
}

void Linear::visit(const ParamVisitor& visitor) {
  visitor(*weight_);
  if (bias_) visitor(*bias_);
}

Cost Linear::cost(const CostShape& shape) const {
  const auto tokens = static_cast<double>(shape.tokens());
  const double product = 2.0 * tokens * static_cast<double>(in()) * static_cast<double>(out());
  const std::size_t input =
      input_is_rebuilt_ ? 0
                        : static_cast<std::size_t>(shape.tokens() * in()) * size_of(shape.dtype);
  return {product, product, product, input};
}

bool Linear::accept_rebuilt_input() { return input_is_rebuilt_ = true; }

}  // namespace heddle
