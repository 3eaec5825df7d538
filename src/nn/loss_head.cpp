#include "nn/loss_head.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/softmax_xent.h"

namespace heddle {

using ops::Transpose;

LossHead::LossHead(std::shared_ptr<Parameter> weight, std::shared_ptr<Parameter> bias,
                   std::int64_t chunk_tokens)
    : weight_(std::move(weight)), bias_(std::move(bias)), chunk_tokens_(chunk_tokens) {}

void LossHead::project(const Tensor& x_TD, const Tensor& logits_TV, Ctx& ctx) const {
  ops::gemm(x_TD, Transpose::no, weight_->value, Transpose::yes, logits_TV, {}, ctx.stream);
  if (bias_) ops::add_bias(logits_TV, bias_->value, ctx.stream);
}

Tensor LossHead::logits(const Tensor& x_TD, Ctx& ctx) const {
  const Tensor logits_TV = ctx.workspace({x_TD.size(0), weight_->shape[0]}, x_TD.dtype());
  project(x_TD, logits_TV, ctx);
  return logits_TV;
}

Tensor LossHead::forward(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  const std::int64_t T = x_TD.size(0), V = weight_->shape[0];
  const Tensor targets_T = ctx.batch.targets.view({T});
  const Tensor loss_T = ctx.workspace({T}, DType::f64);
  const Tensor chunk_logits = ctx.workspace({std::min(T, chunk_tokens_), V}, x_TD.dtype());
  Tensor dx_TD;
  if (ctx.keeps_saved) {
    dx_TD = ctx.activation(x_TD.shape(), x_TD.dtype());
    if (bias_) bias_->clear_stale_grad(ctx.stream);
  }
  for (std::int64_t begin = 0; begin < T; begin += chunk_tokens_) {
    const std::int64_t end = std::min(T, begin + chunk_tokens_);
    const Tensor x = x_TD.slice(0, begin, end), logits = chunk_logits.slice(0, 0, end - begin);
    const Tensor targets = targets_T.slice(0, begin, end), loss = loss_T.slice(0, begin, end);
    project(x, logits, ctx);
    if (!ctx.keeps_saved) {
      ops::cross_entropy_forward(logits, targets, loss, ctx.stream);
      continue;
    }
    ops::cross_entropy_forward_backward(logits, targets, ctx.loss_scale, loss, ctx.stream);
    ops::gemm(logits, Transpose::no, weight_->value, Transpose::no, dx_TD.slice(0, begin, end), {},
              ctx.stream);
    ops::gemm(logits, Transpose::yes, x, Transpose::no, weight_->grad,
              {.beta = weight_->claim_grad()}, ctx.stream);
    if (bias_) ops::bias_backward(logits, bias_->grad, ctx.stream);
  }
  if (ctx.keeps_saved) saved.put(kInputGrad, dx_TD);
  return loss_T;
}

Tensor LossHead::backward_input(const Tensor&, Saved& saved, Ctx&) {
  return saved.take(kInputGrad);
}

void LossHead::visit(const ParamVisitor& visitor) {
  visitor(*weight_);
  if (bias_) visitor(*bias_);
}

Cost LossHead::cost(const CostShape& shape) const {
  const std::int64_t D = weight_->shape[1];
  const double product = 2.0 * static_cast<double>(shape.tokens()) *
                         static_cast<double>(weight_->shape[0]) * static_cast<double>(D);
  return {product, product, product,
          static_cast<std::size_t>(shape.tokens() * D) * size_of(shape.dtype)};
}

}  // namespace heddle
