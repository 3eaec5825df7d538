#include "nn/activation.h"

#include "ops/gemm.h"

namespace heddle {

Tensor Activation::output(const Tensor& x, Ctx& ctx) const {
  const Tensor y_TF = ctx.activation({x.size(0), out_width_}, x.dtype());
  apply(x, y_TF, ctx.stream);
  return y_TF;
}

Tensor Activation::forward(const Tensor& x, Saved& saved, Ctx& ctx) {
  if (ctx.keeps_saved) saved.put(kInput, x);
  return output(x, ctx);
}

Tensor Activation::rebuild_output(const Saved& saved, Ctx& ctx) const {
  return output(saved.get(kInput), ctx);
}

Tensor Activation::backward_input(const Tensor& dy_TF, Saved& saved, Ctx& ctx) {
  Tensor x = saved.take(kInput);
  differentiate(dy_TF, x, {}, ctx.stream);
  return x;
}

Layer::Rebuilt Activation::backward_rebuilding(const Tensor& dy_TF, Saved& saved, Ctx& ctx) {
  Tensor x = saved.take(kInput);
  const Tensor y_TF = ctx.activation({x.size(0), out_width_}, x.dtype());
  differentiate(dy_TF, x, y_TF, ctx.stream);
  return {.dx = x, .output = y_TF};
}

Cost Activation::cost(const CostShape& shape) const {
  Cost cost;
  cost.saved_bytes = static_cast<std::size_t>(shape.tokens() * in_width_) * size_of(shape.dtype);
  return cost;
}

void SwiGlu::apply(const Tensor& x, const Tensor& y_TF, Stream& stream) const {
  const auto [gate_TF, up_TF] = ops::halves(x);
  ops::swiglu_forward(gate_TF, up_TF, y_TF, stream);
}

void SwiGlu::differentiate(const Tensor& dy_TF, const Tensor& x, const Tensor& y_TF,
                           Stream& stream) const {
  const auto [gate_TF, up_TF] = ops::halves(x);
  ops::swiglu_backward(dy_TF, gate_TF, up_TF, gate_TF, up_TF, y_TF, stream);
}

Tensor SwiGlu::forward_product(const Tensor& x, const Tensor& w, Saved& saved, Ctx& ctx) {
  const Tensor gate_up = ctx.activation({x.size(0), in_width()}, x.dtype());
  const Tensor y_TF = ctx.activation({x.size(0), out_width()}, x.dtype());
  ops::gemm_swiglu(x, w, gate_up, y_TF, ctx.stream);
  if (ctx.keeps_saved) saved.put(kInput, gate_up);
  return y_TF;
}

Layer::Rebuilt SwiGlu::backward_product(const Tensor& dy, const Tensor& w, Saved& saved, Ctx& ctx) {
  const Tensor gate_up = saved.take(kInput);
  const Tensor y_TF = ctx.activation({dy.size(0), out_width()}, dy.dtype());
  const Tensor scratch_TF = ctx.activation(y_TF.shape(), dy.dtype());
  ops::gemm_swiglu_backward(dy, w, scratch_TF, gate_up, gate_up, y_TF, ctx.stream);
  return {.dx = gate_up, .output = y_TF};
}

void GeluLayer::apply(const Tensor& x_TF, const Tensor& y_TF, Stream& stream) const {
  ops::gelu_forward(x_TF, kind_, y_TF, stream);
}

void GeluLayer::differentiate(const Tensor& dy_TF, const Tensor& x_TF, const Tensor& y_TF,
                              Stream& stream) const {
  ops::gelu_backward(dy_TF, x_TF, kind_, x_TF, y_TF, stream);
}

}  // namespace heddle
