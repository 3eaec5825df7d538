#include "nn/residual.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace heddle {

Residual::Residual(std::vector<Layers> branches) {
  for (Layers& branch : branches) branches_.emplace_back(std::move(branch));
}

Residual::Residual(Layers branch) { branches_.emplace_back(std::move(branch)); }

Tensor Residual::forward(const Tensor& x, Saved& saved, Ctx& ctx) {
  Tensor y = x;
  for (int i = 0; i < count(); ++i) y = branch(i).forward_added(x, y, saved.child(i), ctx);
  return y;
}

void Residual::prepare_backward(const Tensor& x, Saved& saved, Ctx& ctx) {
  for (int i = 0; i < count(); ++i) branch(i).prepare_backward(x, saved.child(i), ctx);
}

Tensor Residual::backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) {
  Tensor dx = dy;
  for (int i = count() - 1; i >= 0; --i) {
    const Tensor gradient = branch(i).backward_input(dy, saved.child(i), ctx);
    ops::accumulate(dx, gradient, ctx.stream);
    dx = gradient;
  }
  return dx;
}

Tensor Residual::backward(const Tensor& dy, Saved& saved, Ctx& ctx) {
  Tensor dx = dy;
  for (int i = count() - 1; i >= 0; --i) {
    dx = branch(i).backward_added(dy, dx, saved.child(i), ctx);
  }
  return dx;
}

void Residual::backward_weight(Saved& saved, Ctx& ctx) {
  for (int i = count() - 1; i >= 0; --i) branch(i).backward_weight(saved.child(i), ctx);
}

void Residual::visit(const ParamVisitor& visitor) {
  for (Sequential& branch : branches_) branch.visit(visitor);
}

Cost Residual::cost(const CostShape& shape) const {
  Cost sum;
  for (const Sequential& branch : branches_) {
    const Cost next = branch.cost(shape);
    sum += next;
    // The branches keep one and the same x.
    sum.saved_bytes -= std::min(sum.kept_input_bytes, next.kept_input_bytes);
    sum.kept_input_bytes = next.kept_input_bytes;
  }
  return sum;
}

}  // namespace heddle
