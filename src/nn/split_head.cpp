#include "nn/split_head.h"

#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/gemm.h"
#include "ops/softmax_xent.h"
#include "ops/split_vocabulary.h"

namespace heddle {

using ops::Transpose;

SplitHead::SplitHead(std::shared_ptr<Parameter> weight, const Rows& rows, TokenShare tokens,
                     InputGrad input_grad)
    : weight_(std::move(weight)), rows_(rows), tokens_(tokens), input_grad_(input_grad) {}

Tensor SplitHead::targets(Ctx& ctx) const {
  return own_tokens(ctx.batch.targets, tokens_, ops::kIgnoreTarget, ctx);
}

SplitHead::Outgoing SplitHead::begin(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  const std::int64_t T = x_TD.size(0);
  const DType dtype = x_TD.dtype();
  const Tensor targets_T = targets(ctx);
  const Tensor logits_TV = ctx.activation({T, rows_.each}, dtype);
  ops::gemm(x_TD, Transpose::no, weight_->value, Transpose::yes, logits_TV, {}, ctx.stream);
  Outgoing outgoing;
  outgoing.statistics_3T = ctx.memory.alloc({3, T}, statistics_of(dtype), MemoryTag::communication);
  const auto statistic = [&](std::int64_t which) {
    return outgoing.statistics_3T.slice(0, which, which + 1).view({T});
  };
  ops::row_max(logits_TV, rows_.valid, statistic(0), ctx.stream);
  ops::row_exponentials(logits_TV, rows_.valid, targets_T, first_row(), statistic(0), statistic(1),
                        statistic(2), ctx.stream);
  if (input_grad_ == InputGrad::early) {
    outgoing.product_TD = ctx.activation(x_TD.shape(), dtype);
    ops::gemm(logits_TV, Transpose::no, weight_->value, Transpose::no, outgoing.product_TD, {},
              ctx.stream);
    outgoing.targets_TD = ctx.activation(x_TD.shape(), dtype);
    ops::embedding_forward(rows_of(targets_T, {first_row(), false}, rows_.each, ctx),
                           weight_->value, outgoing.targets_TD, ctx.stream);
    ops::scale(outgoing.targets_TD, -1.0, ctx.stream);
  }
  saved.put(kInput, x_TD);
  saved.put(kExponentials, logits_TV);
  return outgoing;
}

SplitHead::Merged SplitHead::allocate_merged(const Tensor& statistics_3T, Ctx& ctx) {
  const std::int64_t T = statistics_3T.size(1);
  return {.divisor_T = ctx.memory.alloc({T}, statistics_3T.dtype(), MemoryTag::communication),
          .loss_T = ctx.memory.alloc({T}, DType::f64, MemoryTag::communication)};
}

void SplitHead::merge(const Rows& rows, const Tensor& statistics_N3T, const Tensor& targets_T,
                      const Merged& merged, Stream& stream) {
  ops::merge_row_statistics(statistics_N3T, targets_T, rows.each, rows.own, merged.divisor_T,
                            merged.loss_T, stream);
}

void SplitHead::finish_product(const Outgoing& outgoing, const Merged& merged, Stream& stream) {
  ops::divide_rows(outgoing.product_TD, merged.divisor_T, stream);
  ops::accumulate(outgoing.targets_TD, outgoing.product_TD, stream);
}

Tensor SplitHead::finish(const Tensor& divisor_T, Saved& saved, Ctx& ctx) {
  const Tensor x_TD = saved.take(kInput), gradient_TV = saved.take(kExponentials);
  ops::softmax_gradient(gradient_TV, targets(ctx), first_row(), divisor_T, ctx.loss_scale,
                        ctx.stream);
  Tensor dx_TD;
  if (input_grad_ == InputGrad::in_t) {
    dx_TD = ctx.activation(x_TD.shape(), x_TD.dtype());
    ops::gemm(gradient_TV, Transpose::no, weight_->value, Transpose::no, dx_TD, {}, ctx.stream);
  }
  if (weight_->trains) {
    ops::gemm(gradient_TV, Transpose::yes, x_TD, Transpose::no, weight_->grad,
              {.beta = weight_->claim_grad()}, ctx.stream);
  }
  return dx_TD;
}

}  // namespace heddle
