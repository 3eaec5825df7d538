#pragma once

// Device code only, of Hopper: what becomes of a tile of scores where gradients of attention are
// made, and which of them no query sees.

#include "ops/cuda/attention_hopper_backward_jobs.h"

namespace heddle::ops::cuda::hopper {

/// A score that no query sees. That of a tangent has a square, too.
template <bool kCaps>
constexpr float kHidden = kCaps ? -1e18F : -INFINITY;

/// Where keys and queries are the same positions.
template <bool kCaps>
__device__ __forceinline__ void hide_earlier_queries(float (&scores)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (column_of(i) < row_of(i)) scores[i] = kHidden<kCaps>;
  }
}

/// Query `shift` is at the position of the first key, and there are so many keys.
template <bool kCaps>
__device__ __forceinline__ void hide_earlier_queries(float (&scores)[32], int shift, int keys) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (column_of(i) < row_of(i) + shift || row_of(i) >= keys) scores[i] = kHidden<kCaps>;
  }
}

/// `first` is the first of the keys.
template <bool kCaps>
__device__ __forceinline__ void hide_later_documents(float (&scores)[32], const int* first_keys,
                                                     int first) {
  LaneValues<int> first_key;
  first_key.load(first_keys);
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (first_key.of[i / 4 * 2 + i % 2] > first + row_of(i)) scores[i] = kHidden<kCaps>;
  }
}

/// Probabilities from scores, or from what bend() made of them, as left factors of a product; with
/// a cap `bent` are these times the slope that it has there. Pair by pair: registers are short.
template <bool kCaps>
__device__ __forceinline__ void make_probabilities(const float (&scores)[32], float scale_log2,
                                                   const LaneValues<float>& lse,
                                                   std::uint32_t (&p)[4][4],
                                                   std::uint32_t (&bent)[4][4]) {
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const int j = i / 4 * 2;
    const float x = exp2_fast(scores[i] * scale_log2 - lse.of[j]);
    const float y = exp2_fast(scores[i + 1] * scale_log2 - lse.of[j + 1]);
    p[i / 8][i / 2 % 4] = pair_of(x, y);
    if constexpr (kCaps) {
      bent[i / 8][i / 2 % 4] = pair_of(x * fmaf(-scores[i], scores[i], 1.0F),
                                       y * fmaf(-scores[i + 1], scores[i + 1], 1.0F));
    }
  }
}

/// The same of products that SmallCap is for, which it returns the largest square of.
__device__ __forceinline__ unsigned make_small_probabilities(const float (&products)[32],
                                                             const SmallCap& small,
                                                             const LaneValues<float>& lse,
                                                             std::uint32_t (&p)[4][4],
                                                             std::uint32_t (&bent)[4][4]) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const int j = i / 4 * 2;
    const float x = products[i] * products[i], y = products[i + 1] * products[i + 1];
    largest = SmallCap::larger(largest, x, y);
    const std::uint32_t both =
        pair_of(exp2_fast(small.exponent(products[i], x, lse.of[j])),
                exp2_fast(small.exponent(products[i + 1], y, lse.of[j + 1])));
    p[i / 8][i / 2 % 4] = both;
    bent[i / 8][i / 2 % 4] =
        multiply_add_pairs(multiply_pairs(both, small.slope), pair_of(x, y), both);
  }
  return largest;
}

/// The gradients of scores, made of those of probabilities and of these, rounded, which
/// have the slope of a cap in them, or there is no cap.
template <bool kCaps>
__device__ __forceinline__ std::uint32_t score_gradients(std::uint32_t p, float x, float y) {
  if constexpr (kCaps) return multiply_pairs(p, pair_of(x, y));
  return pair_of(low_of(p) * x, high_of(p) * y);
}

/// Which of a job's queries see which of 64 keys, half `half` of its keys. Without kAnyShift the
/// first tile of queries that sees them begins at their position, and those before it are skipped.
template <bool kDocuments, bool kAnyShift, bool kCaps>
class KeySight {
 public:
  __device__ __forceinline__ KeySight(const BackwardJobs& all, const Job& job, int half)
      : all_(all), job_(job), half_(half) {
    if constexpr (kAnyShift) {
      const int first = first_key();
      shift_ = first - all.offset - uniform(job.first_tile) * kQueryTile;
      keys_ = all.keys - first;
      jump_tile_ = all.jump_at / kQueryTile - uniform(job.first_tile);
    }
  }

  /// Whether of a tile's queries, with these first keys, some do not see the first of the keys. Of
  /// use long before it is needed: it takes a while.
  __device__ __forceinline__ bool begins_later(const int* first_keys) const {
    return kDocuments && uniform(first_keys[kQueryTile - 1]) > first_key();
  }
  /// Whether all queries of tile `tile` of a head see all keys; `is_later` as begins_later() says.
  __device__ __forceinline__ bool hides_nothing(int tile, int skipped, bool is_later) const {
    return !is_later &&
           (kAnyShift ? shift_of(tile) <= 1 - kQueryTile && keys_ >= 64 : tile != skipped);
  }

  /// Hides the pairs of tile `tile` of a head's queries, and their first keys, that do not see each
  /// other.
  __device__ __forceinline__ void hide_unseen(float (&scores)[32], int tile, int skipped,
                                              const int* first_keys, bool is_later) const {
    if constexpr (kAnyShift) {
      const int shift = shift_of(tile);
      if (shift > 1 - kQueryTile || keys_ < 64) hide_earlier_queries<kCaps>(scores, shift, keys_);
    } else {
      if (tile == skipped) hide_earlier_queries<kCaps>(scores);
    }
    if (is_later) hide_later_documents<kCaps>(scores, first_keys, first_key());
  }

 private:
  /// Read where it is needed: registers are short.
  __device__ __forceinline__ int first_key() const {
    return uniform(job_.key_tile) * kKeyTile + half_ * 64;
  }

  /// Query `shift_of(tile)` of the tile is at the first key's position.
  __device__ __forceinline__ int shift_of(int tile) const {
    return shift_ - tile * kQueryTile - (tile >= jump_tile_ ? all_.jump : 0);
  }

  const BackwardJobs& all_;
  const Job& job_;
  const int half_;
  int shift_, keys_;  // query `shift_` of the first tile is at the first key's position
  int jump_tile_;     // counted from the first
};

/// So many of the last tiles of a head do not see half `half` of the keys.
template <bool kDocuments>
__device__ __forceinline__ int cut_tiles(const Job& job, int half) {
  return kDocuments && half == 0 ? uniform(job.cut) : 0;
}
/// So many of the first tiles of a head do not see half `half` of the keys.
template <bool kIsBlock>
__device__ __forceinline__ int skipped_tiles(const Job& job, int half) {
  return kIsBlock ? half * uniform(job.skipped) : half;
}

}  // namespace heddle::ops::cuda::hopper
