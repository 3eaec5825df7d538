#include "nn/norm.h"

#include "ops/elementwise.h"
#include "ops/norm.h"

namespace heddle {
namespace {

/// Elementwise layers are counted as moving bytes, not as doing arithmetic; x and the row
/// statistics stay.
Cost norm_cost(const CostShape& shape, std::int64_t width, std::int64_t statistics) {
  Cost cost;
  cost.kept_input_bytes = shape.bytes(width);
  cost.touched_bytes_f = 2.0 * shape.stream_bytes(width);
  cost.touched_bytes_b = 3.0 * shape.stream_bytes(width);
  cost.saved_bytes = shape.bytes(width) + static_cast<std::size_t>(shape.tokens() * statistics) *
                                              size_of(statistics_of(shape.dtype));
  return cost;
}

}  // namespace

Tensor norm_factor(const Parameter& weight, bool adds_one, Ctx& ctx) {
  if (!adds_one) return weight.value;
  const Tensor factor = ctx.workspace(weight.value.shape(), weight.value.dtype());
  ops::fill(factor, 1.0, ctx.stream);
  ops::accumulate(weight.value, factor, ctx.stream);
  return factor;
}

RmsNorm::RmsNorm(std::shared_ptr<Parameter> weight, double eps, bool adds_one)
    : weight_(std::move(weight)), eps_(eps), adds_one_(adds_one) {}

Tensor RmsNorm::forward_added(Tensor x_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) {
  const Tensor y_TD = ctx.activation(x_TD.shape(), x_TD.dtype());
  const Tensor rstd_T = ctx.activation({x_TD.size(0)}, statistics_of(x_TD.dtype()));
  ops::rms_norm_forward(x_TD, norm_factor(*weight_, adds_one_, ctx), eps_, y_TD, rstd_T,
                        ctx.stream);
  add(addend_TD, y_TD, ctx);
  if (ctx.keeps_all()) {
    saved.put(kInput, x_TD);
    saved.put(kRstd, rstd_T);
  }
  return y_TD;
}

Tensor RmsNorm::output_again(const Saved& saved, Ctx& ctx) const {
  const Tensor& x_TD = saved.get(kInput);
  const Tensor y_TD = ctx.activation(x_TD.shape(), x_TD.dtype());
  ops::rms_norm_forward(x_TD, norm_factor(*weight_, adds_one_, ctx), eps_, y_TD, saved.get(kRstd),
                        ctx.stream);
  return y_TD;
}

Tensor RmsNorm::backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) {
  const Tensor dx_TD = ctx.activation(dy_TD.shape(), dy_TD.dtype());
  ops::rms_norm_backward_input(dy_TD, saved.get(kInput), norm_factor(*weight_, adds_one_, ctx),
                               saved.get(kRstd), dx_TD, ctx.stream);
  if (weight_->trains) {
    saved.put(kOutputGrad, dy_TD);
  } else {
    saved.take(kInput), saved.take(kRstd);  // W has nothing to do
  }
  return dx_TD;
}

void RmsNorm::backward_weight(Saved& saved, Ctx& ctx) {
  if (!weight_->trains) return;
  weight_->clear_stale_grad(ctx.stream);
  ops::rms_norm_backward_weight(saved.take(kOutputGrad), saved.take(kInput), saved.take(kRstd),
                                weight_->grad, ctx.stream);
}

Tensor RmsNorm::backward_added(Tensor dy_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) {
  if (!weight_->trains) {
    const Tensor dx_TD = backward_input(dy_TD, saved, ctx);
    add(addend_TD, dx_TD, ctx);
    return dx_TD;
  }
  const Tensor dx_TD = ctx.activation(dy_TD.shape(), dy_TD.dtype());
  weight_->clear_stale_grad(ctx.stream);
  ops::rms_norm_backward(dy_TD, saved.take(kInput), norm_factor(*weight_, adds_one_, ctx),
                         saved.take(kRstd), addend_TD, dx_TD, weight_->grad, ctx.stream);
  return dx_TD;
}

void RmsNorm::visit(const ParamVisitor& visitor) { visitor(*weight_); }

Cost RmsNorm::cost(const CostShape& shape) const { return norm_cost(shape, weight_->shape[0], 1); }

LayerNorm::LayerNorm(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias, double eps)
    : weight_(std::move(weight)), bias_(std::move(bias)), eps_(eps) {}

Tensor LayerNorm::forward_added(Tensor x_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) {
  const Tensor y_TD = ctx.activation(x_TD.shape(), x_TD.dtype());
  const Tensor mean_T = ctx.activation({x_TD.size(0)}, statistics_of(x_TD.dtype()));
  const Tensor rstd_T = ctx.activation({x_TD.size(0)}, statistics_of(x_TD.dtype()));
  ops::layer_norm_forward(x_TD, weight_->value, bias_->value, eps_, y_TD, mean_T, rstd_T,
                          ctx.stream);
  add(addend_TD, y_TD, ctx);
  if (ctx.keeps_all()) {
    saved.put(kInput, x_TD);
    saved.put(kMean, mean_T);
    saved.put(kRstd, rstd_T);
  }
  return y_TD;
}

Tensor LayerNorm::output_again(const Saved& saved, Ctx& ctx) const {
  const Tensor& x_TD = saved.get(kInput);
  const Tensor y_TD = ctx.activation(x_TD.shape(), x_TD.dtype());
  ops::layer_norm_forward(x_TD, weight_->value, bias_->value, eps_, y_TD, saved.get(kMean),
                          saved.get(kRstd), ctx.stream);
  return y_TD;
}

Tensor LayerNorm::backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) {
  const Tensor dx_TD = ctx.activation(dy_TD.shape(), dy_TD.dtype());
  ops::layer_norm_backward_input(dy_TD, saved.get(kInput), weight_->value, saved.get(kMean),
                                 saved.get(kRstd), dx_TD, ctx.stream);
  if (trains()) {
    saved.put(kOutputGrad, dy_TD);
  } else {
    saved.take(kInput), saved.take(kMean), saved.take(kRstd);  // W has nothing to do
  }
  return dx_TD;
}

void LayerNorm::backward_weight(Saved& saved, Ctx& ctx) {
  if (!trains()) return;
  const Tensor dy_TD = saved.take(kOutputGrad);
  const DType dtype = statistics_of(dy_TD.dtype());
  ops::layer_norm_backward_weight(dy_TD, saved.take(kInput), saved.take(kMean), saved.take(kRstd),
                                  addable_grad(*weight_, dtype, ctx),
                                  addable_grad(*bias_, dtype, ctx), ctx.stream);
}

Tensor LayerNorm::backward_added(Tensor dy_TD, const Tensor& addend_TD, Saved& saved, Ctx& ctx) {
  if (!trains()) {
    const Tensor dx_TD = backward_input(dy_TD, saved, ctx);
    add(addend_TD, dx_TD, ctx);
    return dx_TD;
  }
  const Tensor dx_TD = ctx.activation(dy_TD.shape(), dy_TD.dtype());
  const DType dtype = statistics_of(dy_TD.dtype());
  ops::layer_norm_backward(dy_TD, saved.take(kInput), weight_->value, saved.take(kMean),
                           saved.take(kRstd), addend_TD, dx_TD, addable_grad(*weight_, dtype, ctx),
                           addable_grad(*bias_, dtype, ctx), ctx.stream);
  return dx_TD;
}

void LayerNorm::visit(const ParamVisitor& visitor) {
  visitor(*weight_);
  visitor(*bias_);
}

Cost LayerNorm::cost(const CostShape& shape) const {
  return norm_cost(shape, weight_->shape[0], 2);
}

}  // namespace heddle
