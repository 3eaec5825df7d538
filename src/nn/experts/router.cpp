#include "nn/experts/router.h"

#include "ops/cast.h"
#include "ops/gemm.h"

namespace heddle {

using ops::Transpose;

Router::Router(std::shared_ptr<Parameter> weight, const Options& options)
    : weight_(std::move(weight)), options_(options) {}

Tensor Router::count(const Tensor& experts_TK, DType dtype, Ctx& ctx) const {
  const Tensor counts_E1 = ctx.activation({experts() + 1}, dtype);
  ops::count_choices(experts_TK, counts_E1, ctx.stream);
  for (Communicator* group : options_.sharers) {
    group->all_reduce(counts_E1, ReduceOp::sum, ctx.stream).wait(ctx.stream);
  }
  return counts_E1;
}

Routing Router::route(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  if (saved.has(kExperts)) return routing(saved);
  const std::int64_t T = x_TD.size(0);
  const DType dtype = statistics_of(x_TD.dtype());
  const Tensor logits_TE = ctx.activation({T, experts()}, dtype);
  ops::gemm(x_TD, Transpose::no, weight_->value, Transpose::yes, logits_TE, {}, ctx.stream);
  Routing made{.experts_TK = ctx.activation({T, per_token()}, DType::i32),
               .weights_TK = ctx.activation({T, per_token()}, dtype)};
  ops::route(logits_TE, options_.rule, {}, made.experts_TK, made.weights_TK, ctx.stream);
  if (ctx.keeps_dear()) {
    if (balances()) saved.put(kCounts, count(made.experts_TK, dtype, ctx));
    saved.put(kLogits, logits_TE);
    saved.put(kExperts, made.experts_TK);
    saved.put(kWeights, made.weights_TK);
  }
  return made;
}

Routing Router::routing(const Saved& saved) const {
  return {.experts_TK = saved.get(kExperts), .weights_TK = saved.get(kWeights)};
}

Tensor Router::backward_input(const Tensor& dweights_TK, const Tensor& addend_TD, Saved& saved,
                              Ctx& ctx) {
  const Tensor logits_TE = saved.take(kLogits), experts_TK = saved.take(kExperts);
  saved.take(kWeights);
  const Tensor dlogits_TE = ctx.activation(logits_TE.shape(), logits_TE.dtype());
  ops::route_backward(dweights_TK, logits_TE, options_.rule, experts_TK, dlogits_TE, ctx.stream);
  const Tensor counts_E1 = balances() ? saved.take(kCounts) : Tensor();
  if (has_loss()) {
    const ops::RouterLoss loss{.balance = ctx.loss_scale * options_.loss.balance,
                               .z = ctx.loss_scale * options_.loss.z};
    const Tensor none =
        counts_E1.defined() ? counts_E1 : ctx.workspace({experts() + 1}, logits_TE.dtype());
    ops::router_loss_backward(logits_TE, options_.rule, none, loss, dlogits_TE, ctx.stream);
  }
  const DType dtype = weight_->value.dtype();
  Tensor factor_TE = dlogits_TE;
  if (dtype != dlogits_TE.dtype()) {
    factor_TE = ctx.activation(dlogits_TE.shape(), dtype);
    ops::cast(dlogits_TE, factor_TE, ctx.stream);
  }
  const Tensor dx_TD = ctx.activation({logits_TE.size(0), width()}, dtype);
  ops::gemm_add(factor_TE, Transpose::no, weight_->value, Transpose::no, {}, addend_TD, dx_TD,
                ctx.stream);
  saved.put(kLogitsGrad, factor_TE);
  return dx_TD;
}

void Router::backward_weight(const Tensor& x_TD, Saved& saved, Ctx& ctx) {
  ops::gemm(saved.take(kLogitsGrad), Transpose::yes, x_TD, Transpose::no, weight_->grad,
            {.beta = weight_->claim_grad()}, ctx.stream);
}

Cost Router::cost(const CostShape& shape) const {
  const auto E = static_cast<double>(experts()), D = static_cast<double>(width());
  const WeightProduct product{static_cast<double>(shape.tokens()), D, E};
  const double flops = 2.0 * product.rows * D * E;
  const std::size_t statistic = size_of(statistics_of(shape.dtype)), index = size_of(DType::i32);
  const auto tokens = static_cast<std::size_t>(shape.tokens());
  const auto count = [](std::int64_t size) { return static_cast<std::size_t>(size); };
  Cost cost{flops, flops, flops};
  cost.products = {product};
  cost.dear_bytes =
      tokens * (count(experts()) * statistic + count(per_token()) * (statistic + index));
  if (balances()) {
    const std::size_t counts = count(experts() + 1) * statistic;
    cost.dear_bytes += counts;
    for (const Communicator* group : options_.sharers) {
      cost.calls_f.push_back({.over = group,
                              .op = CommOp::all_reduce,
                              .bytes = static_cast<std::int64_t>(counts),
                              .is_dear = true});
    }
  }
  cost.saved_bytes = cost.dear_bytes;
  return cost;
}

}  // namespace heddle
