#include "nn/embedding.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace heddle {

Tensor own_tokens(const Tensor& ids_BS, TokenShare share, std::int32_t padding, Ctx& ctx) {
  const std::int64_t tokens = ids_BS.count();
  const Tensor all = ids_BS.view({tokens});
  if (share.count == 1) return all;
  const std::int64_t own = (tokens + share.count - 1) / share.count;
  const std::int64_t begin = std::min(tokens, own * share.index);
  const std::int64_t end = std::min(tokens, begin + own);
  if (end - begin == own) return all.slice(0, begin, end);
  const Tensor padded = ctx.workspace({own}, DType::i32);
  ops::copy(all.slice(0, begin, end), padded.slice(0, 0, end - begin), ctx.stream);
  ops::fill(padded.slice(0, end - begin, own), padding, ctx.stream);
  return padded;
}

Tensor rows_of(const Tensor& ids_T, const VocabularyRows& rows, std::int64_t held, Ctx& ctx) {
  const Tensor row_ids = ctx.workspace(ids_T.shape(), DType::i32);
  ops::held_rows(ids_T, rows.first, held, row_ids, ctx.stream);
  return row_ids;
}

Embedding::Embedding(std::shared_ptr<Parameter> tokens, VocabularyRows rows, TokenShare share,
                     std::optional<std::int64_t> padding)
    : tokens_(std::move(tokens)), rows_(rows), share_(share), padding_(padding) {}

Tensor Embedding::row_ids(Ctx& ctx) const {
  const Tensor ids = own_tokens(ctx.batch.ids, share_, ops::kAbsentRow, ctx);
  return rows_.are_all ? ids : rows_of(ids, rows_, tokens_->shape[0], ctx);
}

Tensor Embedding::forward(const Tensor&, Saved&, Ctx& ctx) {
  const Tensor ids = row_ids(ctx);
  const Tensor y_TD = ctx.activation({ids.count(), tokens_->shape[1]}, tokens_->value.dtype());
  ops::embedding_forward(ids, tokens_->value, y_TD, ctx.stream);
  return y_TD;
}

Tensor Embedding::backward_input(const Tensor& dy_TD, Saved& saved, Ctx&) {
  if (tokens_->trains) saved.put(kOutputGrad, dy_TD);
  return {};
}

void Embedding::backward_weight(Saved& saved, Ctx& ctx) {
  if (!tokens_->trains) return;
  const Tensor dy_TD = saved.take(kOutputGrad);
  tokens_->clear_stale_grad(ctx.stream);
  // As it was: a head that shares the table may have added to it.
  const std::optional<Tensor> padding = padding_grad();
  Tensor before;
  if (padding) {
    before = ctx.workspace(padding->shape(), padding->dtype());
    ops::copy(*padding, before, ctx.stream);
  }
  ops::embedding_backward(row_ids(ctx), dy_TD, tokens_->grad, ctx.stream);
  if (padding) ops::copy(before, *padding, ctx.stream);
}

std::optional<Tensor> Embedding::padding_grad() const {
  if (!padding_) return std::nullopt;
  const std::int64_t row = *padding_ - rows_.first;
  if (row < 0 || row >= tokens_->shape[0]) return std::nullopt;
  return tokens_->grad.slice(0, row, row + 1);
}

void Embedding::visit(const ParamVisitor& visitor) { visitor(*tokens_); }

PositionEmbedding::PositionEmbedding(std::shared_ptr<Parameter> positions, TokenShare share)
    : positions_(std::move(positions)), share_(share) {}

Tensor PositionEmbedding::forward(const Tensor& x_TD, Saved&, Ctx& ctx) {
  ops::embedding_add(own_tokens(ctx.batch.positions, share_, 0, ctx), positions_->value, x_TD,
                     ctx.stream);
  return x_TD;
}

Tensor PositionEmbedding::backward_input(const Tensor& dy_TD, Saved& saved, Ctx&) {
  if (positions_->trains) saved.put(kOutputGrad, dy_TD);
  return dy_TD;
}

void PositionEmbedding::backward_weight(Saved& saved, Ctx& ctx) {
  if (!positions_->trains) return;
  positions_->clear_stale_grad(ctx.stream);
  ops::embedding_backward(own_tokens(ctx.batch.positions, share_, 0, ctx), saved.take(kOutputGrad),
                          positions_->grad, ctx.stream);
}

void PositionEmbedding::visit(const ParamVisitor& visitor) { visitor(*positions_); }

}  // namespace heddle
