#include "nn/chunked_product.h"

#include "ops/elementwise.h"

namespace heddle {

ChunkedProduct::ChunkedProduct(std::unique_ptr<Product> inner, std::int64_t most)
    : Product(inner->in()), inner_(std::move(inner)), most_(most) {}

Tensor ChunkedProduct::part(const Tensor& rows, std::int64_t chunk, std::int64_t count) const {
  if (!rows.defined()) return {};
  const std::int64_t tokens = rows.size(0);
  return rows.slice(0, chunk * tokens / count, (chunk + 1) * tokens / count);
}

Ctx ChunkedProduct::context_of(std::int64_t chunk, std::int64_t count, std::int64_t tokens,
                               const Ctx& ctx) const {
  Ctx own = ctx;
  own.first_row += chunk * tokens / count;
  return own;
}

template <class Make>
Tensor ChunkedProduct::joined(std::int64_t tokens, const Make& make, Ctx& ctx) const {
  const std::int64_t count = chunks(tokens);
  Tensor whole;
  for (std::int64_t chunk = 0; chunk < count; ++chunk) {
    const Tensor rows = make(chunk, count);
    if (!whole.defined()) whole = ctx.activation({tokens, rows.size(1)}, rows.dtype());
    ops::copy(rows, part(whole, chunk, count), ctx.stream);
  }
  return whole;
}

Tensor ChunkedProduct::multiply(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) {
  const std::int64_t tokens = x.size(0);
  if (chunks(tokens) == 1) return inner_->multiply(std::move(x), addend, saved.child(0), ctx);
  Saved nothing;
  return joined(
      tokens,
      [&](std::int64_t chunk, std::int64_t count) {
        Ctx forgetful = context_of(chunk, count, tokens, ctx);
        forgetful.keep = Keep::nothing;
        return inner_->multiply(part(x, chunk, count), part(addend, chunk, count), nothing,
                                forgetful);
      },
      ctx);
}

void ChunkedProduct::prepare_given(const Tensor& x, Saved& saved, Ctx& ctx) {
  if (chunks(x.size(0)) == 1) inner_->prepare_given(x, saved.child(0), ctx);
}

Tensor ChunkedProduct::backward_input_given(const Tensor& dy, const MakeInput& input, Saved& saved,
                                            Ctx& ctx) {
  const std::int64_t tokens = dy.size(0);
  if (chunks(tokens) == 1) return inner_->backward_input_given(dy, input, saved.child(0), ctx);
  const Tensor x = input();
  return joined(
      tokens,
      [&](std::int64_t chunk, std::int64_t count) {
        Saved& own = saved.child(static_cast<int>(chunk));
        Ctx of_chunk = context_of(chunk, count, tokens, ctx);
        const Tensor rows = part(x, chunk, count);
        inner_->prepare_given(rows, own, of_chunk);
        return inner_->backward_input_given(
            part(dy, chunk, count), [&] { return rows; }, own, of_chunk);
      },
      ctx);
}

void ChunkedProduct::backward_weight_given(const Tensor& x, Saved& saved, Ctx& ctx) {
  const std::int64_t count = chunks(x.size(0));
  for (std::int64_t chunk = 0; chunk < count; ++chunk) {
    Ctx of_chunk = context_of(chunk, count, x.size(0), ctx);
    inner_->backward_weight_given(part(x, chunk, count), saved.child(static_cast<int>(chunk)),
                                  of_chunk);
  }
}

Tensor ChunkedProduct::backward_given(Tensor dy, const MakeInput& input, Saved& saved, Ctx& ctx) {
  const std::int64_t tokens = dy.size(0);
  if (chunks(tokens) == 1) {
    return inner_->backward_given(std::move(dy), input, saved.child(0), ctx);
  }
  const Tensor x = input();
  return joined(
      tokens,
      [&](std::int64_t chunk, std::int64_t count) {
        Saved own;
        Ctx of_chunk = context_of(chunk, count, tokens, ctx);
        const Tensor rows = part(x, chunk, count);
        inner_->prepare_given(rows, own, of_chunk);
        return inner_->backward_given(
            part(dy, chunk, count), [&] { return rows; }, own, of_chunk);
      },
      ctx);
}

void ChunkedProduct::visit(const ParamVisitor& visitor) { inner_->visit(visitor); }

Cost ChunkedProduct::cost(const CostShape& shape) const {
  Cost cost = inner_->cost(shape);
  const std::int64_t count = chunks(shape.tokens());
  if (count == 1) return cost;
  CostShape chunk = shape;
  chunk.sequences = 1;
  chunk.seq_len = (shape.tokens() + count - 1) / count;
  cost.moment_bytes = inner_->cost(chunk).saved_bytes;
  // All of it is spared where the output is not wanted, and backward makes the inside.
  cost.rebuilt_products.assign(cost.products.begin(),
                               cost.products.end() - std::ssize(cost.output_products));
  cost.output_products = cost.products;
  cost.saved_bytes = cost.kept_input_bytes = shape.bytes(in());
  return cost;
}

}  // namespace heddle
