#include "nn/scale.h"

#include "ops/elementwise.h"

namespace heddle {

Tensor Scale::forward_added(Tensor x_TD, const Tensor& addend_TD, Saved&, Ctx& ctx) {
  ops::scale(x_TD, factor_, ctx.stream);
  add(addend_TD, x_TD, ctx);
  return x_TD;
}

Tensor Scale::backward_input(const Tensor& dy_TD, Saved& saved, Ctx& ctx) {
  return backward_added(dy_TD, {}, saved, ctx);
}

Tensor Scale::backward_added(Tensor dy_TD, const Tensor& addend_TD, Saved&, Ctx& ctx) {
  Tensor dx_TD = ctx.activation(dy_TD.shape(), dy_TD.dtype());
  ops::copy(dy_TD, dx_TD, ctx.stream);
  ops::scale(dx_TD, factor_, ctx.stream);
  add(addend_TD, dx_TD, ctx);
  return dx_TD;
}

Cost Scale::cost(const CostShape& shape) const {
  Cost cost;
  cost.touched_bytes_f = 2.0 * shape.stream_bytes(width_);
  cost.touched_bytes_b = 4.0 * shape.stream_bytes(width_);
  return cost;
}

}  // namespace heddle
