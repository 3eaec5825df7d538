#include "nn/layer.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace heddle {

Cost& Cost::operator+=(const Cost& other) {
  forward_flops += other.forward_flops;
  backward_input_flops += other.backward_input_flops;
  backward_weight_flops += other.backward_weight_flops;
  saved_bytes += other.saved_bytes;
  dear_bytes += other.dear_bytes;
  moment_bytes = std::max(moment_bytes, other.moment_bytes);
  output_products.insert(output_products.end(), other.output_products.begin(),
                         other.output_products.end());
  rebuilt_products.insert(rebuilt_products.end(), other.rebuilt_products.begin(),
                          other.rebuilt_products.end());
  working_bytes = std::max(working_bytes, other.working_bytes);
  row_bytes = std::max(row_bytes, other.row_bytes);
  products.insert(products.end(), other.products.begin(), other.products.end());
  attention_flops += other.attention_flops;
  touched_bytes_f += other.touched_bytes_f;
  touched_bytes_b += other.touched_bytes_b;
  calls_f.insert(calls_f.end(), other.calls_f.begin(), other.calls_f.end());
  calls_b.insert(calls_b.begin(), other.calls_b.begin(), other.calls_b.end());
  return *this;
}

Tensor Layer::backward(const Tensor& dy, Saved& saved, Ctx& ctx) {
  Tensor dx = backward_input(dy, saved, ctx);
  backward_weight(saved, ctx);
  return dx;
}

Tensor addable_grad(Parameter& parameter, DType dtype, Ctx& ctx) {
  if (!parameter.trains) {
    const Tensor unread = ctx.workspace(parameter.shape, dtype);
    ops::fill(unread, 0.0, ctx.stream);
    return unread;
  }
  parameter.clear_stale_grad(ctx.stream);
  return parameter.grad;
}

}  // namespace heddle
