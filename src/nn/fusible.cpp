#include "nn/fusible.h"

#include "ops/elementwise.h"

namespace heddle {

Tensor forward_then_add(Layer& layer, const Tensor& x, const Tensor& addend, Saved& saved,
                        Ctx& ctx) {
  const Tensor y = layer.forward(x, saved, ctx);
  if (addend.defined()) ops::accumulate(addend, y, ctx.stream);
  return y;
}

Tensor backward_then_add(Layer& layer, const Tensor& dy, const Tensor& addend, Saved& saved,
                         Ctx& ctx) {
  const Tensor dx = layer.backward(dy, saved, ctx);
  if (addend.defined()) ops::accumulate(addend, dx, ctx.stream);
  return dx;
}

Tensor Product::backward_given(Tensor dy, const MakeInput& input, Saved& saved, Ctx& ctx) {
  Tensor dx = backward_input(dy, saved, ctx);
  backward_weight_given(input(), saved, ctx);
  return dx;
}

Tensor Product::forward(const Tensor& x, Saved& saved, Ctx& ctx) {
  return forward_added(x, {}, saved, ctx);
}

Tensor Product::forward_added(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) {
  if (ctx.keeps_saved) saved.put(kInput, x);
  return multiply(std::move(x), addend, saved, ctx);
}

void Product::backward_weight(Saved& saved, Ctx& ctx) {
  backward_weight_given(saved.take(kInput), saved, ctx);
}

Tensor Product::backward(const Tensor& dy, Saved& saved, Ctx& ctx) {
  return backward_added(dy, {}, saved, ctx);
}

Tensor Product::backward_added(Tensor dy, const Tensor& addend, Saved& saved, Ctx& ctx) {
  const Tensor dx = backward_given(
      std::move(dy), [&] { return saved.take(kInput); }, saved, ctx);
  if (addend.defined()) ops::accumulate(addend, dx, ctx.stream);
  return dx;
}

}  // namespace heddle
