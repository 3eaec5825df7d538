#pragma once

// Device code only: the queries of a piece of Hopper's attention forward, and what becomes of their
// results.

#include "ops/cuda/attention_hopper_forward_pieces.h"
#include "ops/cuda/attention_hopper_forward_rows.h"
#include "ops/cuda/reductions.h"

namespace heddle::ops::cuda::hopper {

/// A warpgroup's 64 queries of a head, and what they have met.
template <class S>
class PieceRows {
 protected:
  __device__ __forceinline__ PieceRows(const ForwardWork<S::kIsBlock>& work,
                                       const ForwardMemory<S>& memory, int group)
      : work_(work), memory_(memory), group_(group) {}

  __device__ const ForwardPiece<S::kGroups>& piece() const { return memory_.piece(turn_ & 1); }
  __device__ int queries() const { return static_cast<int>(work_.problem.queries); }
  /// The first key of a tile.
  __device__ int first_key_of(int tile) const {
    return tile * S::kKeys + (S::kHasPhase ? uniform(piece().phase) : 0);
  }
  /// The last key that query s may see.
  __device__ int last_of(int s) const {
    const auto& p = work_.problem;
    const int last = static_cast<int>(p.query_offset) + s;
    if constexpr (!S::kIsBlock) return last;
    return min(last + (query0_ >= p.jump_at ? p.jump : 0), static_cast<int>(p.keys) - 1);
  }

  /// What the queries of a piece see first: a thread's two rows, and the last row of all.
  struct FirstKeys {
    int of[2] = {}, last = 0;
  };
  __device__ __forceinline__ FirstKeys first_keys_of(const ForwardPiece<S::kGroups>& of) const {
    if constexpr (!S::kAnyMask) return {};
    const auto& p = work_.problem;
    const int b = of.b, query0 = uniform(of.query0[group_]), row = query0 + own_row();
    return {{static_cast<int>(p.first_of(b, min(row, queries() - 1))),
             static_cast<int>(p.first_of(b, min(row + 8, queries() - 1)))},
            static_cast<int>(p.first_of(b, min(query0 + kRows, queries()) - 1))};
  }
  __device__ static int own_row() {
    return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane_id() / 4;
  }
  __device__ __forceinline__ void take_rows(const FirstKeys& first_keys) {
    query0_ = uniform(piece().query0[group_]);
    row_ = query0_ + own_row();
    first_key_[0] = first_keys.of[0];
    first_key_[1] = first_keys.of[1];
    all_begun_ = first_keys.last;
    softmax_ = RunningSoftmax{};
    has_large_ = false;
#pragma unroll
    for (float& x : out_) x = 0.0F;
    if constexpr (S::kIsBlock) {
      if (work_.merges) fetch_rows();
    }
  }

  __device__ __forceinline__ void store() {
    if constexpr (S::kIsBlock) {
      store_sums();
    } else {
      store_rounded();
    }
  }

  __device__ __forceinline__ void store_rounded() {
    const int lane = lane_id(), warp = static_cast<int>(threadIdx.x) % 128 / 32;
    const int b = piece().b, h = piece().h[group_];
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float total = reduce_lanes<4>(softmax_.sum[r], Sum{});
      inverse[r] = 1.0F / total;
      if (row_ + 8 * r < queries() && lane % 4 == 0) {
        work_.lse.at(b, h, row_ + 8 * r) = kLn2 * (softmax_.reference[r] + log2f(total));
      }
    }
    sync_threads(1 + group_, 128);  // nobody needs the queries any more
    unsigned char* const rows = memory_.q(turn_ & 1, group_);
#pragma unroll
    for (int i = 0; i < S::kWidth / 16; ++i) {
      std::uint32_t rounded[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 8 * i + 2 * j;
        rounded[j] = pair_of(out_[at] * inverse[j % 2], out_[at + 1] * inverse[j % 2]);
      }
      store_block(shared_address(rows) + i / 4 * kRows * 128, 16 * warp, i % 4, rounded);
    }
    fence_shared_writes();
    sync_threads(1 + group_, 128);
    if (threadIdx.x % 128 == 0) {
#pragma unroll
      for (int c = 0; c < S::kWidth / 64; ++c) {
        store_box(work_.out, rows + c * kRows * 128, 64 * c, h, query0_, b);
      }
      end_store_group();
    }
  }

  /// Brings what results are merged into nearer, while they are made.
  __device__ __forceinline__ void fetch_rows() const {
    constexpr int kLines = S::kWidth / 32;  // of a row
    const int b = piece().b, h = piece().h[group_], thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll
    for (int i = 0; i < kRows * kLines; i += 128) {
      const int s = min(query0_ + (i + thread) / kLines, queries() - 1);
      fetch(work_.sums.at(b, s, h) + thread % kLines * 32);
    }
    if (thread < kRows) fetch(&work_.lse.at(b, h, min(query0_ + thread, queries() - 1)));
  }

  /// What results are merged into: all of it is on its way before the last products end.
  __device__ __forceinline__ void load_old() {
    const int b = piece().b, h = piece().h[group_];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int s = row_ + 8 * r;
      const bool is_merged = work_.merges && s < queries();
      const auto* const from =
          reinterpret_cast<const float4*>(work_.sums.at(b, s, h) + first_of_four());
      old_lse_[r] = is_merged ? work_.lse.at(b, h, s) : -INFINITY;
#pragma unroll
      for (int i = 0; i < kFours; ++i) old_[r][i] = is_merged ? from[4 * i] : float4{};
    }
  }

  /// Rows that see no key are 0 in the first block and left alone in others.
  __device__ __forceinline__ void store_sums() {
    const int b = piece().b, h = piece().h[group_];
    float share[2], old_share[2], total[2];
    bool is_stored[2];
    __syncwarp();  // all lanes have the old ones before one writes
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] = reduce_lanes<4>(softmax_.sum[r], Sum{});
      const bool sees_any = total[r] != 0.0F;
      is_stored[r] = row_ + 8 * r < queries() && (sees_any || !work_.merges);
      const float lse = sees_any ? kLn2 * (softmax_.reference[r] + log2f(total[r])) : -INFINITY;
      const RowMerge merge(old_lse_[r], lse);
      share[r] = sees_any ? merge.new_share / total[r] : 0.0F;
      old_share[r] = merge.old_share;
      if (is_stored[r] && lane_id() % 4 == 0) work_.lse.at(b, h, row_ + 8 * r) = merge.lse;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      auto* const to =
          reinterpret_cast<float4*>(work_.sums.at(b, row_ + 8 * r, h) + first_of_four());
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const int at = 8 * i + 2 * r;
        const float4 four = four_of(out_[at], out_[at + 1], out_[at + 4], out_[at + 5]);
        const float4 old = old_[r][i];
        const float4 merged = {fmaf(old_share[r], old.x, share[r] * four.x),
                               fmaf(old_share[r], old.y, share[r] * four.y),
                               fmaf(old_share[r], old.z, share[r] * four.z),
                               fmaf(old_share[r], old.w, share[r] * four.w)};
        if (is_stored[r]) to[4 * i] = merged;
      }
    }
  }

  const ForwardWork<S::kIsBlock>& work_;
  const ForwardMemory<S>& memory_;
  const int group_;
  int turn_;          // of the piece
  int query0_, row_;  // of the warpgroup, of the thread
  int first_key_[2] = {}, all_begun_ = 0;
  bool has_large_;  // scores that SmallCap is not for; those of the warp
  RunningSoftmax softmax_;
  float out_[S::kWidth / 2];

 private:
  static constexpr float kLn2 = 0.6931471805599453F;
  static constexpr int kFours = S::kWidth / 16;  // of a thread's part of a row

  // Of blocks:
  float4 old_[2][kFours];
  float old_lse_[2];
};

}  // namespace heddle::ops::cuda::hopper
