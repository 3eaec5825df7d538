#include "nn/residual.h"

#include "ops/elementwise.h"

namespace heddle {

Residual::Residual(std::vector<std::unique_ptr<Layer>> branches, std::int64_t width)
    : branches_(std::move(branches)), width_(width) {}

Tensor Residual::forward(const Tensor& x, Saved& saved, Ctx& ctx) {
  Tensor y;
  for (int i = 0; i < static_cast<int>(branches_.size()); ++i) {
    y = branches_[static_cast<std::size_t>(i)]->forward_added(x, i == 0 ? x : y, saved.child(i),
                                                              ctx);
  }
  return y;
}

Tensor Residual::backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) {
  Tensor dx;
  for (int i = static_cast<int>(branches_.size()) - 1; i >= 0; --i) {
    const Tensor branch =
        branches_[static_cast<std::size_t>(i)]->backward_input(dy, saved.child(i), ctx);
    ops::accumulate(dx.defined() ? dx : dy, branch, ctx.stream);
    dx = branch;
  }
  return dx;
}

Tensor Residual::backward(const Tensor& dy, Saved& saved, Ctx& ctx) {
  Tensor dx;
  for (int i = static_cast<int>(branches_.size()) - 1; i >= 0; --i) {
    dx = branches_[static_cast<std::size_t>(i)]->backward_added(dy, dx.defined() ? dx : dy,
                                                                saved.child(i), ctx);
  }
  return dx;
}

void Residual::backward_weight(Saved& saved, Ctx& ctx) {
  for (int i = static_cast<int>(branches_.size()) - 1; i >= 0; --i) {
    branches_[static_cast<std::size_t>(i)]->backward_weight(saved.child(i), ctx);
  }
}

void Residual::visit(const ParamVisitor& visitor) {
  for (const auto& branch : branches_) branch->visit(visitor);
}

Cost Residual::cost(const CostShape& shape) const {
  Cost sum;
  for (const auto& branch : branches_) sum += branch->cost(shape);
  // The branches keep one and the same x.
  sum.saved_bytes -= (branches_.size() - 1) * static_cast<std::size_t>(shape.tokens() * width_) *
                     size_of(shape.dtype);
  return sum;
}

}  // namespace heddle
