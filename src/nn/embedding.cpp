#include "nn/embedding.h"

#include "ops/embedding.h"

namespace heddle {

Embedding::Embedding(std::shared_ptr<Parameter> tokens, std::shared_ptr<Parameter> positions)
    : tokens_(std::move(tokens)), positions_(std::move(positions)) {}

Tensor Embedding::forward(const Tensor&, Saved&, Ctx& ctx) {
  const Shape flat{ctx.batch.tokens()};
  const Tensor y_TD = ctx.activation({flat[0], tokens_->shape[1]}, tokens_->value.dtype());
  ops::embedding_forward(ctx.batch.ids.view(flat), tokens_->value, y_TD, ctx.stream);
  if (positions_) {
    ops::embedding_add(ctx.batch.positions.view(flat), positions_->value, y_TD, ctx.stream);
  }
  return y_TD;
}

Tensor Embedding::backward_input(const Tensor& dy_TD, Saved& saved, Ctx&) {
  saved.put(kOutputGrad, dy_TD);
  return {};
}

void Embedding::backward_weight(Saved& saved, Ctx& ctx) {
  const Tensor dy_TD = saved.take(kOutputGrad);
  const Shape flat{ctx.batch.tokens()};
  tokens_->clear_stale_grad(ctx.stream);
  ops::embedding_backward(ctx.batch.ids.view(flat), dy_TD, tokens_->grad, ctx.stream);
  if (positions_) {
    positions_->clear_stale_grad(ctx.stream);
    ops::embedding_backward(ctx.batch.positions.view(flat), dy_TD, positions_->grad, ctx.stream);
  }
}

void Embedding::visit(const ParamVisitor& visitor) {
  visitor(*tokens_);
  if (positions_) visitor(*positions_);
}

}  // namespace heddle
