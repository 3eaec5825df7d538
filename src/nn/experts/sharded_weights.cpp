#include "nn/experts/sharded_weights.h"

#include "ops/elementwise.h"

namespace heddle {

ShardedWeights::ShardedWeights(const ExpertRanks& ranks, const ExchangePlan& plan)
    : ep_(*ranks.ep),
      etp_(*ranks.etp),
      shards_(plan.r == 0 ? ranks.etp->size() : ranks.etp->size() / plan.r),
      all_experts_(plan.r == 0 && ranks.ep->size() > 1) {}

std::vector<std::int64_t> ShardedWeights::rows_each(std::int64_t rows) const {
  std::vector<std::int64_t> all(static_cast<std::size_t>(etp_.size()), 0);
  const int first = etp_.rank() / shards_ * shards_;
  for (int s = first; s < first + shards_; ++s) all[static_cast<std::size_t>(s)] = rows;
  return all;
}

Tensor ShardedWeights::gather(const Tensor& shard, std::int64_t blocks, Ctx& ctx) const {
  Tensor whole = shard;
  if (shards_ > 1) {
    const std::int64_t rows = shard.size(0);
    const Shape shape{rows * shards_, shard.size(1)};
    const Tensor sent = ctx.workspace(shape, shard.dtype());
    const Tensor received = ctx.workspace(shape, shard.dtype());
    for (int i = 0; i < shards_; ++i) {
      ops::copy(shard, sent.slice(0, i * rows, (i + 1) * rows), ctx.stream);
    }
    const auto each = rows_each(rows);
    etp_.all_to_all(sent, received, each, each, ctx.stream).wait(ctx.stream);
    whole = ctx.workspace({blocks, shards_, shard.count() / blocks}, shard.dtype());
    for (int i = 0; i < shards_; ++i) {
      ops::copy(received.slice(0, i * rows, (i + 1) * rows).view({blocks, shard.count() / blocks}),
                whole.select(1, i), ctx.stream);
    }
  }
  if (!all_experts_) return whole;
  const Tensor all = ctx.workspace({ep_.size() * whole.count()}, whole.dtype());
  ep_.all_gather(whole.view({whole.count()}), all, ctx.stream).wait(ctx.stream);
  return all;
}

void ShardedWeights::scatter(const Tensor& gathered, std::int64_t blocks, double beta,
                             const Tensor& shard, Ctx& ctx) const {
  Tensor whole = gathered.view({gathered.count()});
  if (all_experts_) {
    const Tensor own = ctx.workspace({whole.count() / ep_.size()}, whole.dtype());
    ep_.reduce_scatter(whole, own, ReduceOp::sum, ctx.stream).wait(ctx.stream);
    whole = own;
  }
  if (beta == 0.0) ops::fill(shard, 0.0, ctx.stream);
  if (shards_ == 1) return ops::accumulate(whole.view(shard.shape()), shard, ctx.stream);
  const std::int64_t rows = shard.size(0), each = shard.count() / blocks;
  const Shape shape{rows * shards_, shard.size(1)};
  const Tensor sent = ctx.workspace(shape, shard.dtype());
  const Tensor received = ctx.workspace(shape, shard.dtype());
  const Tensor by_shard = whole.view({blocks, shards_, each});
  for (int i = 0; i < shards_; ++i) {
    ops::copy(by_shard.select(1, i), sent.slice(0, i * rows, (i + 1) * rows).view({blocks, each}),
              ctx.stream);
  }
  const auto counts = rows_each(rows);
  etp_.all_to_all(sent, received, counts, counts, ctx.stream).wait(ctx.stream);
  for (int i = 0; i < shards_; ++i) {
    ops::accumulate(received.slice(0, i * rows, (i + 1) * rows), shard, ctx.stream);
  }
}

std::vector<LayerCall> ShardedWeights::gather_calls(std::int64_t shard_bytes) const {
  std::vector<LayerCall> calls;
  const std::int64_t bytes = shard_bytes * shards_;
  if (shards_ > 1) calls.push_back({.over = &etp_, .op = CommOp::all_to_all, .bytes = bytes});
  if (all_experts_) {
    calls.push_back({.over = &ep_, .op = CommOp::all_gather, .bytes = bytes * ep_.size()});
  }
  return calls;
}

std::vector<LayerCall> ShardedWeights::scatter_calls(std::int64_t shard_bytes) const {
  std::vector<LayerCall> calls;
  const std::int64_t bytes = shard_bytes * shards_;
  if (all_experts_) {
    calls.push_back({.over = &ep_, .op = CommOp::reduce_scatter, .bytes = bytes * ep_.size()});
  }
  if (shards_ > 1) calls.push_back({.over = &etp_, .op = CommOp::all_to_all, .bytes = bytes});
  return calls;
}

}  // namespace heddle
