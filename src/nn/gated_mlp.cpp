#include "nn/gated_mlp.h"

#include "base/check.h"

namespace heddle {

GatedMlp::GatedMlp(std::unique_ptr<Linear> gate_up, std::unique_ptr<Linear> down)
    : gate_up_(std::move(gate_up)), down_(std::move(down)) {
  HEDDLE_CHECK(gate_up_->is_plain() && down_->is_plain(),
               "SwiGLU between linear layers that are not plain");
  HEDDLE_CHECK(gate_up_->out() == 2 * down_->in(), "SwiGLU from {} to {} columns", gate_up_->out(),
               down_->in());
  down_->accept_rebuilt_input();
}

Tensor GatedMlp::forward(const Tensor& x, Saved& saved, Ctx& ctx) {
  return forward_added(x, {}, saved, ctx);
}

Tensor GatedMlp::forward_added(const Tensor& x, const Tensor& addend, Saved& saved, Ctx& ctx) {
  auto [gate_up, y] = gate_up_->forward_swiglu(x, saved.child(kOfGateUp), ctx);
  if (ctx.keeps_saved) saved.put(kGateUp, std::move(gate_up));
  return down_->forward_added(y, addend, saved.child(kOfDown), ctx);
}

Tensor GatedMlp::backward_down(const Tensor& dy, Saved& saved, Ctx& ctx) {
  if (saved.has(kRebuiltInput)) {
    saved.child(kOfGateUp).put(kRebuiltInput, saved.take(kRebuiltInput));
  }
  Tensor gate_up = saved.take(kGateUp);
  Saved& of_down = saved.child(kOfDown);
  of_down.put(kRebuiltInput, down_->backward_swiglu(dy, gate_up, of_down, ctx));
  return gate_up;
}

Tensor GatedMlp::backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) {
  const Tensor gradient = backward_down(dy, saved, ctx);
  return gate_up_->backward_input(gradient, saved.child(kOfGateUp), ctx);
}

void GatedMlp::backward_weight(Saved& saved, Ctx& ctx) {
  down_->backward_weight(saved.child(kOfDown), ctx);
  gate_up_->backward_weight(saved.child(kOfGateUp), ctx);
}

Tensor GatedMlp::backward(const Tensor& dy, Saved& saved, Ctx& ctx) {
  const Tensor gradient = backward_down(dy, saved, ctx);
  down_->backward_weight(saved.child(kOfDown), ctx);
  return gate_up_->backward(gradient, saved.child(kOfGateUp), ctx);
}

void GatedMlp::visit(const ParamVisitor& visitor) {
  gate_up_->visit(visitor);
  down_->visit(visitor);
}

Cost GatedMlp::cost(const CostShape& shape) const {
  Cost cost = gate_up_->cost(shape);
  cost += down_->cost(shape);
  cost.saved_bytes +=
      static_cast<std::size_t>(shape.tokens() * gate_up_->out()) * size_of(shape.dtype);
  return cost;
}

}  // namespace heddle
