#include "nn/layer.h"

#include "base/check.h"
#include "ops/elementwise.h"

namespace heddle {

Cost& Cost::operator+=(const Cost& other) {
  forward_flops += other.forward_flops;
  backward_input_flops += other.backward_input_flops;
  backward_weight_flops += other.backward_weight_flops;
  saved_bytes += other.saved_bytes;
  return *this;
}

Tensor Layer::backward(const Tensor& dy, Saved& saved, Ctx& ctx) {
  Tensor dx = backward_input(dy, saved, ctx);
  backward_weight(saved, ctx);
  return dx;
}

Tensor Layer::forward_added(const Tensor& x, const Tensor& addend, Saved& saved, Ctx& ctx) {
  // A layer keeps its input, not its output, where it is used so; the sum may be made in it.
  const Tensor y = forward(x, saved, ctx);
  ops::accumulate(addend, y, ctx.stream);
  return y;
}

Tensor Layer::backward_added(const Tensor& dy, const Tensor& addend, Saved& saved, Ctx& ctx) {
  const Tensor dx = backward(dy, saved, ctx);
  ops::accumulate(addend, dx, ctx.stream);
  return dx;
}

Layer::Rebuilt Layer::backward_rebuilding(const Tensor&, Saved&, Ctx&) {
  HEDDLE_CHECK(false, "this layer does not rebuild its output in backward");
  return {};
}

Tensor Layer::forward_through(const Tensor& x, Layer& next, Saved& saved, Saved& next_saved,
                              Ctx& ctx) {
  return next.forward(forward(x, saved, ctx), next_saved, ctx);
}

Layer::Rebuilt Layer::backward_through(const Tensor& dy, Layer& before, Saved& saved,
                                       Saved& before_saved, Ctx& ctx) {
  return before.backward_rebuilding(backward_input(dy, saved, ctx), before_saved, ctx);
}

Tensor Layer::forward_product(const Tensor&, const Tensor&, Saved&, Ctx&) {
  HEDDLE_CHECK(false, "this layer takes no products");
}

Layer::Rebuilt Layer::backward_product(const Tensor&, const Tensor&, Saved&, Ctx&) {
  HEDDLE_CHECK(false, "this layer takes no products");
}

Tensor Layer::rebuild_output(const Saved&, Ctx&) const {
  HEDDLE_CHECK(false, "this layer cannot rebuild its output");
  return {};
}

}  // namespace heddle
