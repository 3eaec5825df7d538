#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// Which keys a query may see. Queries and keys are runs of the tokens of one sequence: query s is
/// at position query_offset + s * step, key j at key_offset + j * step. A query at position p sees
/// the keys at positions first_key[b][s] to p: all of a run of keys that lies before the queries,
/// none of one that lies behind them.
struct AttentionMask {
  std::int64_t query_offset =
      0;                ///< position of the first query: 0 in training, cache length in decoding
  Tensor first_key_BS;  ///< i32, the position where the query's document starts; absent: 0 for all.
                        ///< Non-decreasing in s.
  std::int64_t key_offset = 0;  ///< position of the first key
  std::int64_t step = 1;        ///< between tokens; the number of ranks where tokens are dealt out
  /// Not 0: first_key_BS is that of a window of so many keys (in_window), and of documents
  /// too where `has_documents`. Kernels choose by it; first_key_BS says all.
  std::int64_t window = 0;
  bool has_documents = false;

  /// Not 0: queries from the jump_at-th on lie so many positions further than that, a second
  /// stretch of the sequence. Of blocks with step 1 and no first keys.
  std::int64_t jump = 0, jump_at = 0;

  /// The index of the last key that the first query sees, below 0 where it sees none; query s sees
  /// s more, and those behind a jump that many.
  std::int64_t last_key() const {
    const std::int64_t ahead = query_offset - key_offset;
    return ahead / step - (ahead % step < 0 ? 1 : 0);
  }
};

/// What products of queries and keys become before the softmax: scores scale * q k, and where there
/// is a cap, cap * tanh(score / cap).
struct ScoreRule {
  double scale = 1.0;
  double cap = 0.0;  ///< 0: none

  ScoreRule(double scale, double cap = 0.0) : scale(scale), cap(cap) {}
};

/// The first keys of a mask whose queries see only the last `window` keys, themselves included:
/// the later of their documents' starts and the window's. The mask has step 1.
void window_first_keys(const AttentionMask& mask, std::int64_t window, const Tensor& first_key_BS,
                       Stream& stream);

/// That mask; its first keys are put into `first_key_BS`.
inline AttentionMask in_window(const AttentionMask& mask, std::int64_t window,
                               const Tensor& first_key_BS, Stream& stream) {
  window_first_keys(mask, window, first_key_BS, stream);
  AttentionMask result = mask;
  result.first_key_BS = first_key_BS;
  result.window = window;
  result.has_documents = mask.first_key_BS.defined();
  return result;
}

/// What attention_backward of bf16 on a GPU takes of its memory beside tensors when sums must have
/// a fixed order: cuDNN then stores the gradients of all scores. Where that is more than a GiB, and
/// heads are not wider than those kernels take, our own do without. Of heads 64 and 128 wide, those
/// of Hopper take exact sums (gradient_sum_bytes).
inline std::size_t stored_score_bytes(std::int64_t batch, std::int64_t queries, std::int64_t heads,
                                      std::int64_t width) {
  const std::int64_t bytes = 2 * batch * heads * queries * queries;
  constexpr std::int64_t kMost = std::int64_t{1} << 30, kWidest = 128;
  return bytes <= kMost || width > kWidest ? static_cast<std::size_t>(bytes) : 0;
}

/// The same where sums may have any order: those of dq in f32, and of heads 128 wide also those of
/// dk and dv; lse and delta as kernels want them. Sums that are exact, so that no order changes
/// them, have dq's twice, and those of dk and dv for each head.
inline std::size_t gradient_sum_bytes(std::int64_t batch, std::int64_t queries, std::int64_t heads,
                                      std::int64_t key_heads, std::int64_t width,
                                      bool are_exact = false) {
  const std::int64_t padded = (queries + 63) / 64 * 64;
  const std::int64_t parts = are_exact ? heads : key_heads;
  const std::int64_t of_keys = width == 128 ? 2 * parts * queries * width : 0;
  const std::int64_t of_query = (are_exact ? 2 : 1) * width + 2;
  return 4 * static_cast<std::size_t>(batch * (heads * padded * of_query + of_keys));
}

// Causal softmax attention with grouped heads: H query heads, G key/value heads, H a multiple of G,
// query head h reads key/value head h / (H / G). q_BSHK has S queries, k_BTGK and v_BTGK have T
// keys. f32 or f64 (CUDA: f32 or bf16 with f32 lse and delta); every tensor may be strided in all
// but the last dimension. Tiled: no S x T matrix is stored.

// Whole sequences: all keys that the queries see are given. T >= query_offset + S, key_offset is 0,
// step is 1.

/// out_BSHK = softmax(scores) v; lse_BHS (contiguous) = log of the sum of the exponentials,
/// natural base.
void attention_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                       const AttentionMask& mask, const ScoreRule& rule, const Tensor& out_BSHK,
                       const Tensor& lse_BHS, Stream& stream);

/// Gradients of attention_forward, written (not added) to dq, dk, dv. `delta_BHS` is workspace of
/// lse's shape. The order of sums does not depend on the number of threads. query_offset must be 0
/// and T equal to S.
void attention_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BSGK,
                        const Tensor& v_BSGK, const Tensor& out_BSHK, const Tensor& lse_BHS,
                        const AttentionMask& mask, const ScoreRule& rule, const Tensor& dq_BSHK,
                        const Tensor& dk_BSGK, const Tensor& dv_BSGK, const Tensor& delta_BHS,
                        Stream& stream);

// Blocks: some queries against some of the keys that they see, one call after the other in any
// order, so that keys may come and go (docs/design/028-attention-on-blocks.md). The mask says where
// both lie; part of a block is a slice of its tensors. What is added up from call to call is f32
// (f64 where q is), whatever q is. lse and delta may be strided in all but the last dimension.
//
// A result over no keys at all is out = 0, lse = -infinity.

/// Whether out and lse hold results over other keys.
enum class KeyBlock { first, further };

/// Attention over the keys of the block: written to out and lse where it is the first, else merged
/// into them. Rows that see no key of a further block keep their bits.
void attention_block_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                             const AttentionMask& mask, const ScoreRule& rule, KeyBlock block,
                             const Tensor& out_BSHK, const Tensor& lse_BHS, Stream& stream);

/// Merges results over other keys into out and lse: what a block computed elsewhere gave.
void attention_merge(const Tensor& part_BSHK, const Tensor& part_lse_BHS, const Tensor& out_BSHK,
                     const Tensor& lse_BHS, Stream& stream);

/// delta = the sum over K of dout * out: all that gradients need of the output, once it is
/// complete.
void attention_delta(const Tensor& dout_BSHK, const Tensor& out_BSHK, const Tensor& delta_BHS,
                     Stream& stream);

/// Adds the gradients that come from the pairs of one block to dq, dk and dv. lse and delta are
/// those of the queries over all their keys. The order of sums does not depend on the number of
/// threads.
void attention_block_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BTGK,
                              const Tensor& v_BTGK, const Tensor& lse_BHS, const Tensor& delta_BHS,
                              const AttentionMask& mask, const ScoreRule& rule,
                              const Tensor& dq_BSHK, const Tensor& dk_BTGK, const Tensor& dv_BTGK,
                              Stream& stream);

}  // namespace heddle::ops
