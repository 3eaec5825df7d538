#include "nn/redistribute.h"

#include <algorithm>

#include "base/check.h"
#include "ops/elementwise.h"

namespace heddle {
namespace {

/// What brings a tensor from one placement to another.
enum class Way { nothing, all_reduce, all_gather, reduce_scatter, own_rows, pad_with_zeros };

Way way(const Placement& from, const Placement& to) {
  using Kind = Placement::Kind;
  const auto is = [&](Kind a, Kind b) { return from.kind == a && to.kind == b; };
  const bool splits_tokens_only = from.dim <= 0 && to.dim <= 0;
  if (splits_tokens_only) {
    if (is(Kind::invariant, Kind::replicate)) return Way::nothing;
    if (is(Kind::partial, Kind::invariant)) return Way::all_reduce;
    if (is(Kind::partial, Kind::replicate)) return Way::all_reduce;
    if (is(Kind::shard, Kind::replicate)) return Way::all_gather;
    if (is(Kind::shard, Kind::invariant)) return Way::all_gather;
    if (is(Kind::partial, Kind::shard)) return Way::reduce_scatter;
    if (is(Kind::replicate, Kind::shard)) return Way::own_rows;
    if (is(Kind::invariant, Kind::shard)) return Way::own_rows;
    if (is(Kind::shard, Kind::partial)) return Way::pad_with_zeros;
  }
  HEDDLE_CHECK(false, "there is no change from {} to {}", to_text(Layout{}.with(Axis::tp, from)),
               to_text(Layout{}.with(Axis::tp, to)));
}

}  // namespace

std::int64_t tokens_per_rank(std::int64_t tokens, int ranks) {
  return (tokens + ranks - 1) / ranks;
}

Redistribute::Redistribute(Communicator& comm, Placement from, Placement to, std::int64_t width,
                           std::shared_ptr<const ActivationExchange> exchange)
    : comm_(comm), from_(from), to_(to), width_(width), exchange_(std::move(exchange)) {
  way(from, to);  // and so does the backward: the table holds the dual of every change
}

Tensor Redistribute::forward(const Tensor& x, Saved&, Ctx& ctx) {
  return change(x, from_, to_, ctx);
}

Tensor Redistribute::backward_input(const Tensor& dy, Saved&, Ctx& ctx) {
  return change(dy, dual(to_), dual(from_), ctx);
}

Cost Redistribute::cost(const CostShape& shape) const {
  Cost cost;
  cost.calls_f = calls(from_, to_, shape);
  cost.calls_b = calls(dual(to_), dual(from_), shape);
  return cost;
}

std::vector<LayerCall> Redistribute::calls(Placement from, Placement to,
                                           const CostShape& shape) const {
  const auto made = [&](CommOp op, std::int64_t tokens) -> std::vector<LayerCall> {
    const std::int64_t elements = tokens * width_;
    if (const auto* exchange = exchange_for(elements, shape.dtype)) {
      return exchange->calls(op, elements, shape.dtype);
    }
    return {{&comm_, op, elements * static_cast<std::int64_t>(size_of(shape.dtype))}};
  };
  const std::int64_t padded = tokens_per_rank(shape.tokens(), comm_.size()) * comm_.size();
  switch (way(from, to)) {
    case Way::all_reduce: return made(CommOp::all_reduce, shape.tokens());
    case Way::all_gather: return made(CommOp::all_gather, padded);
    case Way::reduce_scatter: return made(CommOp::reduce_scatter, padded);
    default: return {};
  }
}

bool Redistribute::keeps_tensor() const { return way(from_, to_) == Way::nothing; }

Tensor Redistribute::change(const Tensor& x, Placement from, Placement to, Ctx& ctx) const {
  switch (way(from, to)) {
    case Way::nothing: return x;
    case Way::all_reduce: return all_reduce(x, ctx);
    case Way::all_gather: return all_gather(x, ctx);
    case Way::reduce_scatter: return reduce_scatter(x, ctx);
    case Way::own_rows: return own_rows(x, ctx);
    case Way::pad_with_zeros: break;
  }
  return pad_with_zeros(x, ctx);
}

Tensor Redistribute::all_reduce(const Tensor& x, Ctx& ctx) const {
  if (const auto* exchange = exchange_for(x.count(), x.dtype())) {
    exchange->all_reduce(x, ctx.stream);
  } else {
    comm_.all_reduce(x, ReduceOp::sum, ctx.stream).wait(ctx.stream);
  }
  return x;
}

Tensor Redistribute::all_gather(const Tensor& x, Ctx& ctx) const {
  const std::int64_t tokens = ctx.batch.tokens();
  const Tensor whole = ctx.activation({x.size(0) * comm_.size(), width_}, x.dtype());
  if (const auto* exchange = exchange_for(whole.count(), x.dtype())) {
    exchange->all_gather(x, whole, ctx.stream);
  } else {
    comm_.all_gather(x, whole, ctx.stream).wait(ctx.stream);
  }
  return whole.slice(0, 0, tokens);
}

Tensor Redistribute::reduce_scatter(const Tensor& x, Ctx& ctx) const {
  const std::int64_t tokens = x.size(0), own = tokens_per_rank(tokens, comm_.size());
  Tensor whole = x;
  if (own * comm_.size() != tokens) {
    whole = ctx.workspace({own * comm_.size(), width_}, x.dtype());
    ops::copy(x, whole.slice(0, 0, tokens), ctx.stream);
    ops::fill(whole.slice(0, tokens, whole.size(0)), 0.0, ctx.stream);
  }
  const Tensor shard = ctx.activation({own, width_}, x.dtype());
  if (const auto* exchange = exchange_for(whole.count(), x.dtype())) {
    exchange->reduce_scatter(whole, shard, ctx.stream);
  } else {
    comm_.reduce_scatter(whole, shard, ReduceOp::sum, ctx.stream).wait(ctx.stream);
  }
  return shard;
}

Tensor Redistribute::own_rows(const Tensor& x, Ctx& ctx) const {
  const std::int64_t tokens = x.size(0), own = tokens_per_rank(tokens, comm_.size());
  const std::int64_t begin = std::min(tokens, own * comm_.rank());
  const std::int64_t end = std::min(tokens, begin + own);
  const Tensor shard = ctx.activation({own, width_}, x.dtype());
  ops::copy(x.slice(0, begin, end), shard.slice(0, 0, end - begin), ctx.stream);
  if (end - begin < own) ops::fill(shard.slice(0, end - begin, own), 0.0, ctx.stream);
  return shard;
}

Tensor Redistribute::pad_with_zeros(const Tensor& x, Ctx& ctx) const {
  const std::int64_t tokens = ctx.batch.tokens(), own = x.size(0);
  const std::int64_t begin = std::min(tokens, own * comm_.rank());
  const std::int64_t end = std::min(tokens, begin + own);
  const Tensor whole = ctx.activation({tokens, width_}, x.dtype());
  ops::fill(whole, 0.0, ctx.stream);
  ops::copy(x.slice(0, 0, end - begin), whole.slice(0, begin, end), ctx.stream);
  return whole;
}

}  // namespace heddle
