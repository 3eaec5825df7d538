#include "nn/low_rank.h"

#include "base/check.h"
#include "base/rng.h"
#include "nn/redistribute.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"

namespace heddle {

using ops::Transpose;

LowRank::LowRank(std::shared_ptr<Parameter> down, std::vector<Target> targets, double scale,
                 const Dropout& dropout)
    : down_(std::move(down)), targets_(std::move(targets)), scale_(scale), dropout_(dropout) {
  std::int64_t ranks = 0;
  for (const Target& target : targets_) ranks += target.up->shape[1];
  HEDDLE_CHECK(ranks == down_->shape[0], "adapters of rank {} in all, and {} rows before them",
               ranks, down_->shape[0]);
}

Tensor LowRank::ranks_of(std::size_t target, const Tensor& inner_TR) const {
  const std::int64_t rank = targets_[target].up->shape[1];
  const auto at = static_cast<std::int64_t>(target) * rank;
  return inner_TR.slice(1, at, at + rank);
}

Tensor LowRank::outputs_of(std::size_t target, const Tensor& y_TO) const {
  const std::int64_t first = targets_[target].first;
  return y_TO.slice(1, first, first + targets_[target].up->shape[0]);
}

Tensor LowRank::rows_of(std::size_t target, const Tensor& down_RI) const {
  const std::int64_t rank = targets_[target].up->shape[1];
  const auto at = static_cast<std::int64_t>(target) * rank;
  return down_RI.slice(0, at, at + rank);
}

std::int64_t LowRank::first_token(const Ctx& ctx) const {
  const auto [index, count] = dropout_.tokens;
  return ctx.first_row + (count == 1 ? 0 : index * tokens_per_rank(ctx.batch.tokens(), count));
}

ops::DropoutMask LowRank::mask(std::int64_t rows, Ctx& ctx) const {
  const MicroBatch& batch = ctx.batch;
  const std::int64_t begin = first_token(ctx);
  HEDDLE_CHECK(rows == 0 || begin + rows <= batch.tokens(), "rows {} and {} more of {} tokens",
               begin, rows, batch.tokens());
  ops::DropoutMask mask{
      .rate = dropout_.rate, .first_column = dropout_.first_column, .columns = dropout_.columns};
  const TokenPlaces* const places = batch.places.get();
  const std::int64_t whole =
      places != nullptr ? places->sequences * places->seq_len : batch.tokens();
  const std::int64_t first = batch.number * whole;
  mask.first_row = static_cast<std::uint64_t>(first + begin);
  if (places == nullptr) return mask;
  const Tensor numbers = ctx.memory.for_host().alloc({rows}, DType::i64, MemoryTag::workspace);
  for (std::int64_t t = 0; !ctx.stream.is_dry() && t < rows; ++t) {
    numbers.data<std::int64_t>()[t] = first + places->of_whole[static_cast<std::size_t>(begin + t)];
  }
  mask.rows_T = ctx.workspace({rows}, DType::i64);
  ops::copy(numbers, mask.rows_T, ctx.stream);
  return mask;
}

ops::DropoutMask LowRank::of_target(std::size_t target, ops::DropoutMask mask,
                                    const Ctx& ctx) const {
  mask.key = rng_key(targets_[target].dropout_key, static_cast<std::uint64_t>(ctx.step));
  return mask;
}

Tensor LowRank::dropped(std::size_t target, const Tensor& x_TI, const ops::DropoutMask& mask,
                        Ctx& ctx) const {
  const Tensor dropped_TI = ctx.workspace(x_TI.shape(), x_TI.dtype());
  ops::dropout(x_TI, of_target(target, mask, ctx), dropped_TI, ctx.stream);
  return dropped_TI;
}

Tensor LowRank::inner_value(const Tensor& x_TI, Ctx& ctx) const {
  const Tensor value_TR = ctx.activation({x_TI.size(0), down_->shape[0]}, x_TI.dtype());
  if (!drops(ctx)) {
    ops::gemm(x_TI, Transpose::no, down_->value, Transpose::yes, value_TR, {}, ctx.stream);
    return value_TR;
  }
  const ops::DropoutMask all = mask(x_TI.size(0), ctx);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    ops::gemm(dropped(i, x_TI, all, ctx), Transpose::no, rows_of(i, down_->value), Transpose::yes,
              ranks_of(i, value_TR), {}, ctx.stream);
  }
  return value_TR;
}

Tensor LowRank::inner_grad(const Tensor& dy_TO, Ctx& ctx) const {
  const Tensor grad_TR = ctx.activation({dy_TO.size(0), down_->shape[0]}, dy_TO.dtype());
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    ops::gemm(outputs_of(i, dy_TO), Transpose::no, targets_[i].up->value, Transpose::no,
              ranks_of(i, grad_TR), {.alpha = scale_}, ctx.stream);
  }
  return grad_TR;
}

void LowRank::add_output(const Tensor& x_TI, const Tensor& y_TO, Ctx& ctx) const {
  const Tensor value_TR = inner_value(x_TI, ctx);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    ops::gemm(ranks_of(i, value_TR), Transpose::no, targets_[i].up->value, Transpose::yes,
              outputs_of(i, y_TO), {.alpha = scale_, .beta = 1.0}, ctx.stream);
  }
}

void LowRank::add_input_grad(const Tensor& dy_TO, const Tensor& dx_TI, Ctx& ctx) const {
  const Tensor grad_TR = inner_grad(dy_TO, ctx);
  if (!drops(ctx)) {
    ops::gemm(grad_TR, Transpose::no, down_->value, Transpose::no, dx_TI, {.beta = 1.0},
              ctx.stream);
    return;
  }
  const ops::DropoutMask all = mask(dx_TI.size(0), ctx);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const Tensor of_dropped_TI = ctx.workspace(dx_TI.shape(), dx_TI.dtype());
    ops::gemm(ranks_of(i, grad_TR), Transpose::no, rows_of(i, down_->value), Transpose::no,
              of_dropped_TI, {}, ctx.stream);
    ops::add_dropout(of_dropped_TI, of_target(i, all, ctx), dx_TI, ctx.stream);
  }
}

LowRank::Inner LowRank::inner(const Tensor& x_TI, const Tensor& dy_TO, Ctx& ctx) const {
  return {.value_TR = inner_value(x_TI, ctx), .grad_TR = inner_grad(dy_TO, ctx)};
}

void LowRank::add_weight_grads(const Tensor& x_TI, const Tensor& dy_TO, const Inner& inner,
                               Ctx& ctx) {
  const double beta = down_->claim_grad();
  if (drops(ctx)) {
    const ops::DropoutMask all = mask(x_TI.size(0), ctx);
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      ops::gemm(ranks_of(i, inner.grad_TR), Transpose::yes, dropped(i, x_TI, all, ctx),
                Transpose::no, rows_of(i, down_->grad), {.beta = beta}, ctx.stream);
    }
  } else {
    ops::gemm(inner.grad_TR, Transpose::yes, x_TI, Transpose::no, down_->grad, {.beta = beta},
              ctx.stream);
  }
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    Parameter& up = *targets_[i].up;
    ops::gemm(outputs_of(i, dy_TO), Transpose::yes, ranks_of(i, inner.value_TR), Transpose::no,
              up.grad, {.alpha = scale_, .beta = up.claim_grad()}, ctx.stream);
  }
}

void LowRank::visit(const ParamVisitor& visitor) {
  visitor(*down_);
  for (const Target& target : targets_) visitor(*target.up);
}

Cost LowRank::cost(const CostShape& shape) const {
  const auto tokens = static_cast<double>(shape.tokens());
  Cost cost;
  const auto add = [&](std::int64_t in, std::int64_t out) {
    const WeightProduct made{tokens, static_cast<double>(in), static_cast<double>(out)};
    const double product = 2.0 * made.rows * made.in * made.out;
    cost.forward_flops += product;
    cost.backward_input_flops += product;
    cost.backward_weight_flops += product;
    cost.products.push_back(made);
  };
  add(down_->shape[1], down_->shape[0]);
  for (const Target& target : targets_) add(target.up->shape[1], target.up->shape[0]);
  cost.output_products = cost.products;
  return cost;
}

}  // namespace heddle
