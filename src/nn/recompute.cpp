#include "nn/recompute.h"

#include <algorithm>
#include <iterator>

namespace heddle {

Recompute::Recompute(std::unique_ptr<Layer> inner, std::int64_t width)
    : inner_(std::move(inner)), width_(width) {}

Tensor Recompute::forward(const Tensor& x, Saved& saved, Ctx& ctx) {
  if (ctx.keeps_all()) saved.put(kInput, x);
  Ctx forgetful = ctx;
  if (ctx.keeps_dear()) forgetful.keep = Keep::dear;
  return inner_->forward(x, saved.child(0), forgetful);
}

void Recompute::run_again(Saved& saved, Ctx& ctx) {
  inner_->prepare_backward(saved.take(kInput), saved.child(0), ctx);
}

Tensor Recompute::backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) {
  run_again(saved, ctx);
  return inner_->backward_input(dy, saved.child(0), ctx);
}

Tensor Recompute::backward(const Tensor& dy, Saved& saved, Ctx& ctx) {
  run_again(saved, ctx);
  return inner_->backward(dy, saved.child(0), ctx);
}

void Recompute::backward_weight(Saved& saved, Ctx& ctx) {
  inner_->backward_weight(saved.child(0), ctx);
}

void Recompute::visit(const ParamVisitor& visitor) { inner_->visit(visitor); }

Cost Recompute::cost(const CostShape& shape) const {
  Cost cost = inner_->cost(shape);
  const std::size_t all = cost.saved_bytes;
  cost.kept_input_bytes = shape.bytes(width_);
  cost.saved_bytes = cost.kept_input_bytes + cost.dear_bytes;
  cost.moment_bytes += all - std::min(all, cost.saved_bytes);
  cost.kept_output_bytes = 0;
  std::vector<LayerCall> again;
  std::ranges::copy_if(cost.calls_f, std::back_inserter(again),
                       [](const LayerCall& call) { return !call.is_dear; });
  cost.calls_b.insert(cost.calls_b.begin(), again.begin(), again.end());
  return cost;
}

}  // namespace heddle
