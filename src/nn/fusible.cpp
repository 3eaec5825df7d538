#include "nn/fusible.h"

#include "ops/elementwise.h"

namespace heddle {

void add(const Tensor& addend, const Tensor& y, Ctx& ctx) {
  if (addend.defined()) ops::accumulate(addend, y, ctx.stream);
}

Tensor Product::backward_given(Tensor dy, const MakeInput& input, Saved& saved, Ctx& ctx) {
  Tensor dx = backward_input(dy, saved, ctx);
  backward_weight_given(input(), saved, ctx);
  return dx;
}

Tensor Product::forward_added(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) {
  if (ctx.keeps_all()) saved.put(kInput, x);
  return multiply(std::move(x), addend, saved, ctx);
}

void Product::backward_weight(Saved& saved, Ctx& ctx) {
  backward_weight_given(saved.take(kInput), saved, ctx);
}

Tensor Product::backward_added(Tensor dy, const Tensor& addend, Saved& saved, Ctx& ctx) {
  const Tensor dx = backward_given(
      std::move(dy), [&] { return saved.take(kInput); }, saved, ctx);
  add(addend, dx, ctx);
  return dx;
}

}  // namespace heddle
