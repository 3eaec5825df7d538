#include "nn/activation.h"

namespace heddle {

Tensor SwiGlu::apply(const Tensor& x, Ctx& ctx) const {
  const Tensor y_TF = ctx.activation({x.size(0), width_}, x.dtype());
  ops::swiglu_forward(x.slice(1, 0, width_), x.slice(1, width_, 2 * width_), y_TF, ctx.stream);
  return y_TF;
}

Tensor SwiGlu::forward(const Tensor& x, Saved& saved, Ctx& ctx) {
  if (ctx.keeps_saved) saved.put(kInput, x);
  return apply(x, ctx);
}

Tensor SwiGlu::rebuild_output(const Saved& saved, Ctx& ctx) const {
  return apply(saved.get(kInput), ctx);
}

Tensor SwiGlu::backward_input(const Tensor& dy_TF, Saved& saved, Ctx& ctx) {
  const Tensor x = saved.take(kInput);
  const Tensor gate_TF = x.slice(1, 0, width_), up_TF = x.slice(1, width_, 2 * width_);
  ops::swiglu_backward(dy_TF, gate_TF, up_TF, gate_TF, up_TF, ctx.stream);
  return x;
}

Cost SwiGlu::cost(const CostShape& shape) const {
  Cost cost;
  cost.saved_bytes = static_cast<std::size_t>(shape.tokens() * 2 * width_) * size_of(shape.dtype);
  return cost;
}

Tensor GeluLayer::apply(const Tensor& x_TF, Ctx& ctx) const {
  const Tensor y_TF = ctx.activation(x_TF.shape(), x_TF.dtype());
  ops::gelu_forward(x_TF, kind_, y_TF, ctx.stream);
  return y_TF;
}

Tensor GeluLayer::forward(const Tensor& x_TF, Saved& saved, Ctx& ctx) {
  if (ctx.keeps_saved) saved.put(kInput, x_TF);
  return apply(x_TF, ctx);
}

Tensor GeluLayer::rebuild_output(const Saved& saved, Ctx& ctx) const {
  return apply(saved.get(kInput), ctx);
}

Tensor GeluLayer::backward_input(const Tensor& dy_TF, Saved& saved, Ctx& ctx) {
  const Tensor x_TF = saved.take(kInput);
  ops::gelu_backward(dy_TF, x_TF, kind_, x_TF, ctx.stream);
  return x_TF;
}

Cost GeluLayer::cost(const CostShape& shape) const {
  Cost cost;
  cost.saved_bytes = static_cast<std::size_t>(shape.tokens() * width_) * size_of(shape.dtype);
  return cost;
}

}  // namespace heddle
