#include "nn/fusible.h"

#include "ops/elementwise.h"

namespace heddle {

void add(const Tensor& addend, const Tensor& y, Ctx& ctx) {
  if (addend.defined()) ops::accumulate(addend, y, ctx.stream);
}

Tensor Product::forward_added(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) {
  if (ctx.keeps_all() && needs_input()) saved.put(kInput, x);
  return multiply(std::move(x), addend, saved, ctx);
}

void Product::prepare_backward(const Tensor& x, Saved& saved, Ctx& ctx) {
  if (needs_input()) saved.put(kInput, x);
  prepare_given(x, saved, ctx);
}

Tensor Product::backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) {
  return backward_input_given(
      dy, [&] { return saved.get(kInput); }, saved, ctx);
}

void Product::backward_weight(Saved& saved, Ctx& ctx) {
  backward_weight_given(needs_input() ? saved.take(kInput) : Tensor(), saved, ctx);
}

Tensor Product::backward_added(Tensor dy, const Tensor& addend, Saved& saved, Ctx& ctx) {
  const Tensor dx = backward_given(
      std::move(dy), [&] { return saved.take(kInput); }, saved, ctx);
  add(addend, dx, ctx);
  return dx;
}

}  // namespace heddle
