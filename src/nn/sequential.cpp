#include "nn/sequential.h"

#include "base/check.h"

namespace heddle {

Sequential::Sequential(std::vector<std::unique_ptr<Layer>> layers)
    : layers_(std::move(layers)), input_is_rebuilt_(layers_.size(), false) {
  HEDDLE_CHECK(!layers_.empty(), "a sequence of no layers");
  for (std::size_t i = 1; i < layers_.size(); ++i) {
    input_is_rebuilt_[i] =
        layers_[i - 1]->can_rebuild_output() && layers_[i]->accept_rebuilt_input();
  }
}

Tensor Sequential::forward(const Tensor& x, Saved& saved, Ctx& ctx) {
  return forward_up_to(count(), x, saved, ctx);
}

Tensor Sequential::forward_added(const Tensor& x, const Tensor& addend, Saved& saved, Ctx& ctx) {
  const int last = count() - 1;
  const Tensor y = forward_up_to(last, x, saved, ctx);
  return layer(last).forward_added(y, addend, saved.child(last), ctx);
}

Tensor Sequential::forward_up_to(int stop, const Tensor& x, Saved& saved, Ctx& ctx) {
  Tensor y = x;
  for (int i = 0; i < stop; ++i) {
    Saved& own = saved.child(i);
    if (i + 1 < stop && layer(i + 1).takes_products()) {
      y = layer(i).forward_through(y, layer(i + 1), own, saved.child(i + 1), ctx);
      ++i;
    } else {
      y = layer(i).forward(y, own, ctx);
    }
  }
  return y;
}

bool Sequential::is_rebuilt_below(int index) const {
  return input_is_rebuilt_[static_cast<std::size_t>(index)] &&
         layer(index - 1).rebuilds_in_backward();
}

Tensor Sequential::backward_pair(int index, const Tensor& dy, Saved& saved, Ctx& ctx) {
  Saved& own = saved.child(index);
  auto [dx, output] =
      layer(index).backward_through(dy, layer(index - 1), own, saved.child(index - 1), ctx);
  own.put(kRebuiltInput, std::move(output));
  return dx;
}

void Sequential::hand_over_rebuilt_input(int index, Saved& saved, Ctx& ctx) const {
  if (!input_is_rebuilt_[static_cast<std::size_t>(index)]) return;
  saved.child(index).put(kRebuiltInput,
                         layer(index - 1).rebuild_output(saved.child(index - 1), ctx));
}

Tensor Sequential::backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) {
  Tensor gradient = dy;
  for (int i = count() - 1; i >= 0; --i) {
    if (is_rebuilt_below(i)) {
      gradient = backward_pair(i, gradient, saved, ctx);
      --i;
      continue;
    }
    hand_over_rebuilt_input(i, saved, ctx);
    gradient = layer(i).backward_input(gradient, saved.child(i), ctx);
  }
  return gradient;
}

void Sequential::backward_weight(Saved& saved, Ctx& ctx) {
  for (int i = count() - 1; i >= 0; --i) layer(i).backward_weight(saved.child(i), ctx);
}

Tensor Sequential::backward(const Tensor& dy, Saved& saved, Ctx& ctx) {
  return backward_down_to(0, dy, saved, ctx);
}

Tensor Sequential::backward_added(const Tensor& dy, const Tensor& addend, Saved& saved, Ctx& ctx) {
  const Tensor gradient = backward_down_to(1, dy, saved, ctx);
  return layer(0).backward_added(gradient, addend, saved.child(0), ctx);
}

Tensor Sequential::backward_down_to(int stop, const Tensor& dy, Saved& saved, Ctx& ctx) {
  Tensor gradient = dy;
  for (int i = count() - 1; i >= stop; --i) {
    if (i > stop && is_rebuilt_below(i)) {
      // The weights' gradient waits for the input until the layer below has made it again.
      gradient = backward_pair(i, gradient, saved, ctx);
      layer(i).backward_weight(saved.child(i), ctx);
      --i;
      continue;
    }
    hand_over_rebuilt_input(i, saved, ctx);
    gradient = layer(i).backward(gradient, saved.child(i), ctx);
  }
  return gradient;
}

void Sequential::visit(const ParamVisitor& visitor) {
  for (const auto& layer : layers_) layer->visit(visitor);
}

Cost Sequential::cost(const CostShape& shape) const {
  Cost sum;
  for (const auto& layer : layers_) sum += layer->cost(shape);
  return sum;
}

}  // namespace heddle
