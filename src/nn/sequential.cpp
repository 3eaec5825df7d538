#include "nn/sequential.h"

#include <algorithm>

#include "base/check.h"

namespace heddle {

Sequential::Sequential(Layers layers) : layers_(std::move(layers)) {
  HEDDLE_CHECK(!layers_.empty(), "a sequence of no layers");
  for (const auto& layer : layers_) adding_.push_back(dynamic_cast<AddingLayer*>(layer.get()));
}

Tensor Sequential::step(int index, Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) {
  if (adding(index) != nullptr) {
    return adding(index)->forward_added(std::move(x), addend, saved.child(index), ctx);
  }
  Tensor y = layer(index).forward(x, saved.child(index), ctx);
  add(addend, y, ctx);
  return y;
}

Tensor Sequential::forward_added(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) {
  for (int i = 0; i < count(); ++i) {
    x = step(i, std::move(x), i + 1 == count() ? addend : Tensor(), saved, ctx);
  }
  return x;
}

void Sequential::prepare_backward(const Tensor& x, Saved& saved, Ctx& ctx) {
  Tensor y = x;
  const int last = count() - 1;
  for (int i = 0; i < last; ++i) y = step(i, std::move(y), {}, saved, ctx);
  layer(last).prepare_backward(y, saved.child(last), ctx);
}

Tensor Sequential::backward_input(const Tensor& dy, Saved& saved, Ctx& ctx) {
  Tensor gradient = dy;
  for (int i = count() - 1; i >= 0; --i) {
    gradient = layer(i).backward_input(gradient, saved.child(i), ctx);
  }
  return gradient;
}

void Sequential::backward_weight(Saved& saved, Ctx& ctx) {
  for (int i = count() - 1; i >= 0; --i) layer(i).backward_weight(saved.child(i), ctx);
}

Tensor Sequential::backward_added(Tensor dy, const Tensor& addend, Saved& saved, Ctx& ctx) {
  for (int i = count() - 1; i >= 0; --i) {
    const Tensor added = i == 0 ? addend : Tensor();
    if (adding(i) != nullptr) {
      dy = adding(i)->backward_added(std::move(dy), added, saved.child(i), ctx);
    } else {
      dy = layer(i).backward(dy, saved.child(i), ctx);
      add(added, dy, ctx);
    }
  }
  return dy;
}

void Sequential::visit(const ParamVisitor& visitor) {
  for (const auto& layer : layers_) layer->visit(visitor);
}

Cost Sequential::cost(const CostShape& shape) const {
  Cost sum = layer(0).cost(shape);
  for (int i = 1; i < count(); ++i) {
    const Cost next = layer(i).cost(shape);
    sum += next;
    sum.output_products = next.output_products;
    sum.saved_bytes -= std::min(sum.kept_output_bytes, next.kept_input_bytes);
    sum.kept_output_bytes = next.kept_output_bytes;
  }
  return sum;
}

}  // namespace heddle
