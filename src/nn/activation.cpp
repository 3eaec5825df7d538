#include "nn/activation.h"

namespace heddle {

Tensor Activation::output(const Tensor& x, Ctx& ctx) const {
  const Tensor y_TF = ctx.activation({x.size(0), out_width_}, x.dtype());
  apply(x, y_TF, ctx.stream);
  return y_TF;
}

Tensor Activation::output_and_gradient(const Tensor& dy_TF, const Tensor& x, Ctx& ctx) const {
  const Tensor y_TF = ctx.activation({x.size(0), out_width_}, x.dtype());
  differentiate(dy_TF, x, y_TF, ctx.stream);
  return y_TF;
}

Tensor Activation::forward(const Tensor& x, Saved& saved, Ctx& ctx) {
  if (ctx.keeps_all()) saved.put(kInput, x);
  return output(x, ctx);
}

Tensor Activation::backward_input(const Tensor& dy_TF, Saved& saved, Ctx& ctx) {
  Tensor x = saved.take(kInput);
  differentiate(dy_TF, x, {}, ctx.stream);
  return x;
}

Cost Activation::cost(const CostShape& shape) const {
  Cost cost;
  cost.saved_bytes = cost.kept_input_bytes = shape.bytes(in_width_);
  cost.touched_bytes_f = static_cast<double>(shape.bytes(in_width_ + out_width_));
  cost.touched_bytes_b = 2.0 * cost.touched_bytes_f;  // makes the output again
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

void GeGlu::apply(const Tensor& x, const Tensor& y_TF, Stream& stream) const {
  const auto [gate_TF, up_TF] = ops::halves(x);
  ops::geglu_forward(gate_TF, up_TF, kind_, y_TF, stream);
}

void GeGlu::differentiate(const Tensor& dy_TF, const Tensor& x, const Tensor& y_TF,
                          Stream& stream) const {
  const auto [gate_TF, up_TF] = ops::halves(x);
  ops::geglu_backward(dy_TF, gate_TF, up_TF, kind_, gate_TF, up_TF, y_TF, stream);
}

void GeluLayer::apply(const Tensor& x_TF, const Tensor& y_TF, Stream& stream) const {
  ops::gelu_forward(x_TF, kind_, y_TF, stream);
}

void GeluLayer::differentiate(const Tensor& dy_TF, const Tensor& x_TF, const Tensor& y_TF,
                              Stream& stream) const {
  ops::gelu_backward(dy_TF, x_TF, kind_, x_TF, y_TF, stream);
}

}  // namespace heddle
