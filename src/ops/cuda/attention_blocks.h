#pragma once

// Device code only: what forward and backward attention on tensor cores share.

#include <algorithm>
#include <initializer_list>

#include "ops/cuda/attention_problem.h"
#include "ops/cuda/tensor_core_tiles.h"

namespace heddle::ops::cuda {

// A block has a tile of queries (forward and dq) or of keys (dk and dv), a warp some rows of it.
// What these meet passes by in tiles, the next of which is loaded while one is worked on. Scores
// never leave the registers: as sums of one product they lie as the next product's left side wants
// them. For dk and dv they are therefore made transposed, with keys as rows. A block adds up its
// gradients alone and in one order.

inline constexpr int kBlockRows = 128;  // queries or keys of a block

/// The 32 queries of a warp, of which a thread has rows lane / 4 + 8 r, r = 0 to 3.
struct WarpQueries {
  int begin;
  int first_seen, last_seen;  // keys that some of them see
  int first_open, last_open;  // keys that all of them see

  /// `begin_ + 32` may lie behind the last query; what lies there is computed and thrown away.
  template <class Sight>
  __device__ WarpQueries(const Sight& p, int b, int begin_) : begin(begin_) {
    const int last = min(begin + 32, static_cast<int>(p.queries)) - 1;
    first_seen = static_cast<int>(p.first_of(b, min(begin, last)));
    last_seen = begin <= last ? static_cast<int>(p.last_of(last)) : -1;
    first_open = static_cast<int>(p.first_of(b, last));
    last_open = static_cast<int>(p.last_of(begin));
  }
  __device__ bool see_some(int key0, int keys) const {
    return key0 <= last_seen && key0 + keys > first_seen;
  }
  __device__ bool see_all(int key0, int keys) const {
    return key0 >= first_open && key0 + keys - 1 <= last_open;
  }

  template <int kN, class Sight>
  __device__ __forceinline__ void hide_unseen(const Sight& p, int b, int key0,
                                              float (&scores)[2][kN][4]) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int s = begin + lane_id() / 4 + 8 * r;
      const int last = static_cast<int>(p.last_of(s));
      const int first = static_cast<int>(p.first_of(b, min(s, static_cast<int>(p.queries) - 1)));
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = key0 + 8 * n + lane_id() % 4 * 2 + i;
          if (key < first || key > last) scores[r / 2][n][r % 2 * 2 + i] = -INFINITY;
        }
      }
    }
  }
};

/// Keys [.., end) of a head and their values pass by in tiles of kKeys, two of each in memory.
template <class S>
class PassingKeys {
 public:
  __device__ PassingKeys(unsigned char* memory, const HeadView<const Bf16>& k,
                         const HeadView<const Bf16>& v, int b, int g, int end, int width)
      : memory_(memory),
        k_(k.at(b, 0, g)),
        v_(v.at(b, 0, g)),
        k_stride_(k.position),
        v_stride_(v.position),
        end_(end),
        width_(width) {}
  __device__ unsigned char* k(int stage) const { return memory_ + stage * kTile; }
  __device__ unsigned char* v(int stage) const { return memory_ + (2 + stage) * kTile; }

  /// Starts to load those from `key0` on.
  __device__ __forceinline__ void start(int key0, int stage) const {
    start_rows<S::kWidth, S::kKeys, kBlockRows>(k(stage), k_, k_stride_, key0, end_, width_);
    start_rows<S::kWidth, S::kKeys, kBlockRows>(v(stage), v_, v_stride_, key0, end_, width_);
    end_copy_group();
  }

 private:
  static constexpr int kTile = tile_bytes<S::kWidth>(S::kKeys);
  unsigned char* memory_;
  const Bf16 *k_, *v_;
  std::int64_t k_stride_, v_stride_;
  int end_, width_;
};

/// Adds a warp's sums to rows [begin, end) of `to`, at most 16 kM.
template <int kWidth, int kM>
__device__ __forceinline__ void add_rows(const float (&sums)[kM][kWidth / 8][4], float* to,
                                         std::int64_t stride, int begin, int end, int width) {
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    const int row = begin + 8 * i + lane_id() / 4;
    if (row >= end) continue;
    float* const at = to + row * stride + lane_id() % 4 * 2;
    const auto two = [&](int n) { return reinterpret_cast<float2*>(at + 8 * n); };
    float2 old[kWidth / 8];  // all are on their way before the first is needed
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) old[n] = 8 * n < width ? *two(n) : float2{};
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      if (8 * n >= width) break;
      *two(n) = {old[n].x + sums[i / 2][n][i % 2 * 2], old[n].y + sums[i / 2][n][i % 2 * 2 + 1]};
    }
  }
}

/// One block for each head, batch and tile of kBlockRows.
template <class Shape, class Operands>
void launch_blocks(void (*kernel)(Operands), std::int64_t heads, std::int64_t batch, unsigned tiles,
                   const Operands& operands, cudaStream_t queue) {
  HEDDLE_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes));
  const dim3 grid(static_cast<unsigned>(heads), static_cast<unsigned>(batch), tiles);
  kernel<<<grid, Shape::kThreads, Shape::kBytes, queue>>>(operands);
  HEDDLE_CUDA(cudaGetLastError());
}

/// Tensors are aligned; those that are read, of which the first is one, are bf16.
inline bool suits_tensor_cores(const Problem& p, std::initializer_list<const Tensor*> tensors) {
  // The limits of a grid.
  constexpr std::int64_t kMost = 65535;
  bool taken = p.width % 8 == 0 && p.width <= 128 && p.scale > 0 &&
               std::max(p.queries, p.keys) <= kMost * kBlockRows;
  for (const Tensor* t : tensors) taken = taken && is_aligned(*t) && t->size(0) <= kMost;
  return taken && (*tensors.begin())->dtype() == DType::bf16;
}

}  // namespace heddle::ops::cuda
