#pragma once

#include "nn/experts/exchange.h"

namespace heddle {

/// The experts' matrices of a rank, of which every rank of etp has a shard of the width, brought
/// together as far as a plan asks for (ExchangePlan::r), and their gradients taken apart again.
/// Shards are never moved for good: what is gathered lives as long as it is used.
class ShardedWeights {
 public:
  ShardedWeights(const ExpertRanks& ranks, const ExchangePlan& plan);

  /// Shards that are brought together.
  int shards() const { return shards_; }
  /// Whether there is anything to do.
  bool are_gathered() const { return shards_ > 1 || all_experts_; }

  /// A shard is `blocks` stretches of equal length; of each, those of all shards lie side by side
  /// in what is gathered. For r = 0 the other ranks' experts follow in their order.
  Tensor gather(const Tensor& shard, std::int64_t blocks, Ctx& ctx) const;
  /// shard = beta * shard + the sum over all that gathered it.
  void scatter(const Tensor& gathered, std::int64_t blocks, double beta, const Tensor& shard,
               Ctx& ctx) const;

  /// Of a shard of so many bytes.
  std::vector<LayerCall> gather_calls(std::int64_t shard_bytes) const;
  std::vector<LayerCall> scatter_calls(std::int64_t shard_bytes) const;

 private:
  /// So many rows for, or from, every rank whose shard is gathered.
  std::vector<std::int64_t> rows_each(std::int64_t rows) const;

  Communicator &ep_, &etp_;
  const int shards_;
  const bool all_experts_;
};

}  // namespace heddle
