#pragma once

#include "ops/attention.h"

namespace heddle::ops {

// Gradients of queries over several blocks (ops/attention.h). Where sums may
// have any order, a GPU's kernels add dq up in an order of their own, and
// attention_block_backward ends with a pass that adds those sums to dq. Kept
// from block to block they take one such pass for all.
//
// Sums are f32 [B, H, N, tile * K], of N tiles of neighbouring queries, the
// last of which may be shorter; what has its place where in a tile is the
// kernels' affair. They begin as zeros. Some heads and tiles of them are a
// slice; where B is not 1 all heads are given.

/// Queries of a tile; 0 where gradients of such queries are added to dq itself, as on CPUs, and on
/// a dry stream: there are no sums then, and nothing below may be called.
std::int64_t query_sum_tile(const Tensor& q_BSHK, Stream& stream);

/// attention_block_backward with dq as sums. Queries jump at the beginning of a tile.
void attention_block_backward_to_sums(const Tensor& dout_BSHK, const Tensor& q_BSHK,
                                      const Tensor& k_BTGK, const Tensor& v_BTGK,
                                      const Tensor& lse_BHS, const Tensor& delta_BHS,
                                      const AttentionMask& mask, const ScoreRule& rule,
                                      const Tensor& sums_BHNX, const Tensor& dk_BTGK,
                                      const Tensor& dv_BTGK, Stream& stream);

/// What becomes of dq: written, or added to what is there.
enum class QueryGrads { written, added };

/// dq from its sums; `scale` is that of the blocks.
void query_grads_of_sums(const Tensor& sums_BHNX, double scale, QueryGrads how,
                         const Tensor& dq_BSHK, Stream& stream);

}  // namespace heddle::ops
