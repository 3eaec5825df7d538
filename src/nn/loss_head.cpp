#include "nn/loss_head.h"

#include <algorithm>

#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/softmax_xent.h"

namespace heddle {

using ops::Transpose;

LossHead::LossHead(std::shared_ptr<Parameter> weight, const Options& options)
    : weight_(std::move(weight)), options_(options) {}

void LossHead::project(const Tensor& x_TD, const Tensor& logits_TV, Ctx& ctx) const {
  ops::gemm(x_TD, Transpose::no, weight_->value, Transpose::yes, logits_TV, {}, ctx.stream);
  if (options_.cap > 0.0) ops::soft_cap(logits_TV, options_.cap, ctx.stream);
}

Tensor LossHead::logits(const Tensor& x_TD, Ctx& ctx) const {
  const std::int64_t T = x_TD.size(0), here = weight_->shape[0];
  const DType dtype = statistics_of(x_TD.dtype());
  const Tensor logits_TV = ctx.workspace({T, here}, dtype);
  project(x_TD, logits_TV, ctx);
  const VocabularyPart& part = options_.vocabulary;
  if (part.others == nullptr) {
    if (valid() == here) return logits_TV;
    const Tensor valid_TV = ctx.workspace({T, valid()}, dtype);
    ops::copy(logits_TV.slice(1, 0, valid()), valid_TV, ctx.stream);
    return valid_TV;
  }
  const std::int64_t holders = part.others->size();
  const Tensor parts_NTV = ctx.workspace({holders, T, here}, dtype);
  part.others->all_gather(logits_TV, parts_NTV, ctx.stream).wait(ctx.stream);
  const Tensor whole_TV = ctx.workspace({T, part.whole}, dtype);
  for (std::int64_t n = 0; n < holders; ++n) {
    const std::int64_t begin = n * here, end = std::min(part.whole, begin + here);
    if (begin >= end) break;
    ops::copy(parts_NTV.select(0, n).slice(1, 0, end - begin), whole_TV.slice(1, begin, end),
              ctx.stream);
  }
  return whole_TV;
}

Tensor LossHead::forward(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  const std::int64_t T = x_TD.size(0), V = weight_->shape[0], chunk = options_.chunk_tokens;
  const Tensor targets_T = own_tokens(ctx.batch.targets, options_.tokens, ops::kIgnoreTarget, ctx);
  const Tensor loss_T = ctx.workspace({T}, DType::f64);
  // Rows start at multiples of 64 elements, for the sake of the matrix products.
  const auto chunk_of_logits = [&] {
    return ctx.workspace({std::min(T, chunk), (V + 63) / 64 * 64}, x_TD.dtype()).slice(1, 0, V);
  };
  const Tensor chunk_logits = chunk_of_logits();
  Tensor chunk_capped;  // the gradient of a cap needs its result, which the loss's overwrites
  if (options_.cap > 0.0 && ctx.keeps_all()) chunk_capped = chunk_of_logits();
  Tensor dx_TD;
  if (ctx.keeps_all()) dx_TD = ctx.activation(x_TD.shape(), x_TD.dtype());
  for (std::int64_t begin = 0; begin < T; begin += chunk) {
    const std::int64_t end = std::min(T, begin + chunk);
    const Tensor x = x_TD.slice(0, begin, end), logits = chunk_logits.slice(0, 0, end - begin);
    project(x, logits, ctx);
    Tensor capped;
    if (chunk_capped.defined()) {
      capped = chunk_capped.slice(0, 0, end - begin);
      ops::copy(logits, capped, ctx.stream);
    }
    chunk_loss(logits, targets_T.slice(0, begin, end), loss_T.slice(0, begin, end), ctx);
    if (!ctx.keeps_all()) continue;
    if (capped.defined()) ops::soft_cap_backward(capped, options_.cap, logits, ctx.stream);
    ops::gemm(logits, Transpose::no, weight_->value, Transpose::no, dx_TD.slice(0, begin, end), {},
              ctx.stream);
    if (!weight_->trains) continue;
    ops::gemm(logits, Transpose::yes, x, Transpose::no, weight_->grad,
              {.beta = weight_->claim_grad()}, ctx.stream);
  }
  if (ctx.keeps_all()) saved.put(kInputGrad, dx_TD);
  return loss_T;
}

void LossHead::chunk_loss(const Tensor& logits_TV, const Tensor& targets_T, const Tensor& loss_T,
                          Ctx& ctx) const {
  if (options_.vocabulary.others != nullptr) {
    return shared_chunk_loss(logits_TV, targets_T, loss_T, ctx);
  }
  const Tensor valid_TV = logits_TV.slice(1, 0, valid());
  if (ctx.keeps_all()) {
    ops::cross_entropy_forward_backward(valid_TV, targets_T, ctx.loss_scale, loss_T, ctx.stream);
  } else {
    ops::cross_entropy_forward(valid_TV, targets_T, loss_T, ctx.stream);
  }
}

void LossHead::shared_chunk_loss(const Tensor& logits_TV, const Tensor& targets_T,
                                 const Tensor& loss_T, Ctx& ctx) const {
  const VocabularyPart& part = options_.vocabulary;
  const auto row_statistic = [&] {
    return ctx.workspace(loss_T.shape(), statistics_of(logits_TV.dtype()));
  };
  const auto combine = [&](const Tensor& rows_T, ReduceOp op) {
    part.others->all_reduce(rows_T, op, ctx.stream).wait(ctx.stream);
  };
  const Tensor max_T = row_statistic(), sum_T = row_statistic(), chosen_T = row_statistic();
  ops::row_max(logits_TV, part.valid, max_T, ctx.stream);
  combine(max_T, ReduceOp::max);
  ops::row_exponentials(logits_TV, part.valid, targets_T, part.first, max_T, sum_T, chosen_T,
                        ctx.stream);
  combine(sum_T, ReduceOp::sum);
  combine(chosen_T, ReduceOp::sum);
  if (ctx.keeps_all()) {
    ops::softmax_gradient(logits_TV, targets_T, part.first, sum_T, ctx.loss_scale, ctx.stream);
  }
  if (part.others->rank() == 0) {
    ops::row_loss(sum_T, chosen_T, targets_T, loss_T, ctx.stream);
  } else {
    ops::fill(loss_T, 0.0, ctx.stream);  // the first holder counts it
  }
}

Tensor LossHead::backward_input(const Tensor&, Saved& saved, Ctx&) {
  return saved.take(kInputGrad);
}

void LossHead::visit(const ParamVisitor& visitor) { visitor(*weight_); }

Cost LossHead::cost(const CostShape& shape) const {
  const std::int64_t D = weight_->shape[1];
  const std::int64_t tokens = (shape.tokens() + options_.tokens.count - 1) / options_.tokens.count;
  const double product = 2.0 * static_cast<double>(tokens) *
                         static_cast<double>(weight_->shape[0]) * static_cast<double>(D);
  Cost cost{product, product, weight_->trains ? product : 0.0,
            static_cast<std::size_t>(tokens * D) * size_of(shape.dtype)};
  const Communicator* const others = options_.vocabulary.others;
  for (std::int64_t begin = 0; others != nullptr && begin < tokens;
       begin += options_.chunk_tokens) {
    const std::int64_t rows = std::min(options_.chunk_tokens, tokens - begin);
    const auto bytes = rows * static_cast<std::int64_t>(size_of(statistics_of(shape.dtype)));
    // The maximum, the sum and the target's logit of each row.
    cost.calls_f.insert(cost.calls_f.end(), 3, {others, CommOp::all_reduce, bytes});
  }
  return cost;
}

}  // namespace heddle
