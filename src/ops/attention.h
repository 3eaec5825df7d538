#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// Which keys a query may see. Query s (counted from 0 in the queries given) has the absolute
/// position p = query_offset + s and sees keys j with first_key[b][s] <= j <= p.
struct AttentionMask {
  std::int64_t query_offset =
      0;  ///< number of keys before the first query: 0 in training, cache length in decoding
  Tensor first_key_BS;  ///< i32, the start of the query's document; absent: 0 for all.
                        ///< Non-decreasing in s.
};

/// What attention_backward of bf16 on a GPU takes of its memory beside tensors when sums must have
/// a fixed order: cuDNN then stores the gradients of all scores. Where that is more than a GiB, and
/// heads are not wider than those kernels take, our own do without.
inline std::size_t stored_score_bytes(std::int64_t batch, std::int64_t queries, std::int64_t heads,
                                      std::int64_t width) {
  const std::int64_t bytes = 2 * batch * heads * queries * queries;
  constexpr std::int64_t kMost = std::int64_t{1} << 30, kWidest = 128;
  return bytes <= kMost || width > kWidest ? static_cast<std::size_t>(bytes) : 0;
}

/// The same where sums may have any order: those of dq in f32, and lse and delta as kernels want
/// them.
inline std::size_t query_sum_bytes(std::int64_t batch, std::int64_t queries, std::int64_t heads,
                                   std::int64_t width) {
  const std::int64_t padded = (queries + 63) / 64 * 64;
  return 4 * static_cast<std::size_t>(batch * heads * padded * (width + 2));
}

// Causal softmax attention with grouped heads: H query heads, G key/value heads, H a multiple of G,
// query head h reads key/value head h / (H / G). q_BSHK has S queries, k_BTGK and v_BTGK have T
// keys, T >= query_offset + S. f32 or f64 (CUDA: f32 or bf16 with f32 lse and delta); every tensor
// may be strided in all but the last dimension. Tiled: no S x T matrix is stored.

/// out_BSHK = softmax(scale * q k^T) v; lse_BHS (contiguous) = log of the sum of the exponentials,
/// natural base.
void attention_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                       const AttentionMask& mask, double scale, const Tensor& out_BSHK,
                       const Tensor& lse_BHS, Stream& stream);

/// Gradients of attention_forward, written (not added) to dq, dk, dv. `delta_BHS` is workspace of
/// lse's shape. The order of sums does not depend on the number of threads. query_offset must be 0
/// and T equal to S.
void attention_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BSGK,
                        const Tensor& v_BSGK, const Tensor& out_BSHK, const Tensor& lse_BHS,
                        const AttentionMask& mask, double scale, const Tensor& dq_BSHK,
                        const Tensor& dk_BSGK, const Tensor& dv_BSGK, const Tensor& delta_BHS,
                        Stream& stream);

}  // namespace heddle::ops
