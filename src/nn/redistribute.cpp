#include "nn/redistribute.h"

#include <algorithm>

#include "base/check.h"
#include "ops/elementwise.h"

namespace heddle {

using Kind = Placement::Kind;

std::int64_t tokens_per_rank(std::int64_t tokens, int ranks) {
  return (tokens + ranks - 1) / ranks;
}

Redistribute::Redistribute(Communicator& comm, Placement from, Placement to, std::int64_t width)
    : comm_(comm), from_(from), to_(to), width_(width) {}

Tensor Redistribute::forward(const Tensor& x, Saved&, Ctx& ctx) {
  return change(x, from_, to_, ctx);
}

Tensor Redistribute::backward_input(const Tensor& dy, Saved&, Ctx& ctx) {
  return change(dy, dual(to_), dual(from_), ctx);
}

Tensor Redistribute::change(const Tensor& x, Placement from, Placement to, Ctx& ctx) const {
  const auto is = [&](Kind a, Kind b) { return from.kind == a && to.kind == b; };
  if (is(Kind::invariant, Kind::replicate)) return x;
  if (is(Kind::partial, Kind::invariant) || is(Kind::partial, Kind::replicate)) {
    return all_reduce(x, ctx);
  }
  if (is(Kind::shard, Kind::replicate) || is(Kind::shard, Kind::invariant)) {
    return all_gather(x, ctx);
  }
  if (is(Kind::partial, Kind::shard)) return reduce_scatter(x, ctx);
  if (is(Kind::replicate, Kind::shard) || is(Kind::invariant, Kind::shard)) {
    return own_rows(x, ctx);
  }
  if (is(Kind::shard, Kind::partial)) return pad_with_zeros(x, ctx);
  HEDDLE_CHECK(false, "there is no change from {} to {}", to_text(Layout{}.with(Axis::tp, from)),
               to_text(Layout{}.with(Axis::tp, to)));
}

Tensor Redistribute::all_reduce(const Tensor& x, Ctx& ctx) const {
  comm_.all_reduce(x, ReduceOp::sum, ctx.stream).wait(ctx.stream);
  return x;
}

Tensor Redistribute::all_gather(const Tensor& x, Ctx& ctx) const {
  const std::int64_t tokens = ctx.batch.tokens();
  const Tensor whole = ctx.activation({x.size(0) * comm_.size(), width_}, x.dtype());
  comm_.all_gather(x, whole, ctx.stream).wait(ctx.stream);
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
  comm_.reduce_scatter(whole, shard, ReduceOp::sum, ctx.stream).wait(ctx.stream);
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
