#include "ops/cuda/attention_blocks.h"
#include "ops/cuda/attention_tensor_cores.h"
#include "ops/cuda/reductions.h"

namespace heddle::ops::cuda {
namespace {

constexpr float kLn2 = 0.6931471805599453F;

template <int kWidth_>
struct ForwardShape {
  static constexpr int kWidth = kWidth_, kThreads = kBlockRows, kKeys = 64;
  static constexpr int kBytes = tile_bytes<kWidth>(kBlockRows + 4 * kKeys);
};

/// A softmax over keys that come in tiles, for a thread's four rows.
struct RunningSoftmax {
  float max[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};  // scaled
  float sum[4] = {};                                            // this lane's part

  /// Scores become exponentials, relative to the largest so far; `out` is made relative to it too.
  /// `scale` is that of scores to powers of 2.
  template <int kN, int kOut>
  __device__ __forceinline__ void add(float (&scores)[2][kN][4], float scale,
                                      float (&out)[2][kOut][4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int m = r / 2, i = r % 2 * 2;
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        largest = fmaxf(largest, fmaxf(scores[m][n][i], scores[m][n][i + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 2));
      largest = fmaxf(max[r], largest * scale);
      // Before a row's first visible key there is nothing to be relative to.
      const float base = largest == -INFINITY ? 0.0F : largest;
      const float kept = exp2_fast(max[r] - base);
      max[r] = largest;
      sum[r] *= kept;
#pragma unroll
      for (int n = 0; n < kOut; ++n) {
        out[m][n][i] *= kept;
        out[m][n][i + 1] *= kept;
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        scores[m][n][i] = exp2_fast(scores[m][n][i] * scale - base);
        scores[m][n][i + 1] = exp2_fast(scores[m][n][i + 1] * scale - base);
        sum[r] += scores[m][n][i] + scores[m][n][i + 1];
      }
    }
  }
};

/// Writes a warp's rows from `begin` on, of whole sequences, by way of `own`.
template <int kWidth>
__device__ __forceinline__ void finish_rows(const ForwardOperands<Bf16, false>& o, int b, int h,
                                            int begin, const RunningSoftmax& softmax,
                                            float (&out)[2][kWidth / 8][4], unsigned char* own) {
  const auto queries = static_cast<int>(o.problem.queries);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float total = reduce_lanes<4>(softmax.sum[r], Sum{}), inverse = 1.0F / total;
    const int s = begin + lane_id() / 4 + 8 * r;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      out[r / 2][n][r % 2 * 2] *= inverse;
      out[r / 2][n][r % 2 * 2 + 1] *= inverse;
    }
    if (s < queries && lane_id() % 4 == 0) {
      o.lse.at(b, h, s) = kLn2 * (softmax.max[r] + log2f(total));
    }
  }
  store_rows<kWidth>(out, own, o.out.at(b, 0, h), o.out.position, begin, queries, o.problem.width);
}

/// Writes those of a block of keys, or merges them into what is there.
template <int kWidth>
__device__ __forceinline__ void finish_rows(const ForwardOperands<Bf16, true>& o, int b, int h,
                                            int begin, const RunningSoftmax& softmax,
                                            const float (&out)[2][kWidth / 8][4],
                                            const unsigned char*) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float total = reduce_lanes<4>(softmax.sum[r], Sum{});
    const int s = begin + lane_id() / 4 + 8 * r;
    const bool sees_any = softmax.max[r] != -INFINITY;
    const bool is_stored = s < static_cast<int>(o.problem.queries) && (sees_any || !o.merges);
    const float old_lse = is_stored && o.merges ? o.lse.at(b, h, s) : -INFINITY;
    __syncwarp();  // all lanes have it before one writes
    if (!is_stored) continue;
    const float lse = sees_any ? kLn2 * (softmax.max[r] + log2f(total)) : -INFINITY;
    const RowMerge merge(old_lse, lse);
    const float share = sees_any ? merge.new_share / total : 0.0F;
    float* const to = o.out.at(b, s, h) + lane_id() % 4 * 2;
    const auto two = [&](int n) { return reinterpret_cast<float2*>(to + 8 * n); };
    float2 old[kWidth / 8];  // all are on their way before the first is needed
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      old[n] = o.merges && 8 * n < o.problem.width ? *two(n) : float2{};
    }
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      if (8 * n >= o.problem.width) break;
      const float x = share * out[r / 2][n][r % 2 * 2], y = share * out[r / 2][n][r % 2 * 2 + 1];
      *two(n) = {fmaf(merge.old_share, old[n].x, x), fmaf(merge.old_share, old[n].y, y)};
    }
    if (lane_id() % 4 == 0) o.lse.at(b, h, s) = merge.lse;
  }
}

template <class S, bool kIsBlock>
__global__ void __launch_bounds__(S::kThreads, 2)
    forward_kernel(ForwardOperands<Bf16, kIsBlock> o) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int kWidth = S::kWidth, kKeys = S::kKeys;
  unsigned char* const q = memory;
  const auto& p = o.problem;
  const int h = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.y), g = p.group_of(h);
  const int queries = static_cast<int>(p.queries);
  // The longest first.
  const int query0 = static_cast<int>(gridDim.z - 1 - blockIdx.z) * kBlockRows;
  const int begin = static_cast<int>(p.first_of(b, query0));
  const int end = static_cast<int>(p.last_of(min(query0 + kBlockRows, queries) - 1)) + 1;
  const PassingKeys<S> keys(q + tile_bytes<kWidth>(kBlockRows), o.k, o.v, b, g, end, p.width);
  start_rows<kWidth, kBlockRows, S::kThreads>(q, o.q.at(b, 0, h), o.q.position, query0, queries,
                                              p.width);
  keys.start(begin, 0);
  const WarpQueries rows(p, b, query0 + 32 * warp_id());
  unsigned char* const own = q + tile_bytes<kWidth>(32 * warp_id());
  const float scale = p.scale * kLog2E;
  RunningSoftmax softmax;
  float out[2][kWidth / 8][4] = {};
  int stage = 0;
  for (int key0 = begin; key0 < end; key0 += kKeys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();
    if (key0 + kKeys < end) keys.start(key0 + kKeys, stage ^ 1);
    if (!rows.see_some(key0, kKeys)) continue;
    float scores[2][kKeys / 8][4];
    multiply_rows<kWidth>(own, keys.k(stage), scores);
    if (!rows.see_all(key0, kKeys)) rows.hide_unseen(p, b, key0, scores);
    softmax.add(scores, scale, out);
    std::uint32_t weights[2][kKeys / 16][4];
    round_to_weights(scores, weights);
    add_weighted_rows<kWidth>(weights, keys.v(stage), out);
  }
  finish_rows<kWidth>(o, b, h, rows.begin, softmax, out, own);
}

}  // namespace

bool tensor_core_attention_forward(const Problem& problem, const Tensor& q_BSHK,
                                   const Tensor& k_BTGK, const Tensor& v_BTGK,
                                   std::optional<KeyBlock> block, const Tensor& out_BSHK,
                                   const Tensor& lse_BHS, Stream& stream) {
  if (problem.cap != 0.0F || !suits_tensor_cores(problem, {&q_BSHK, &k_BTGK, &v_BTGK, &out_BSHK}))
    return false;
  const auto run = [&](auto shape, auto is_block) {
    using Shape = decltype(shape);
    constexpr bool kIsBlock = is_block();
    const ForwardOperands<Bf16, kIsBlock> operands{
        {problem}, q_BSHK, k_BTGK, v_BTGK, out_BSHK, lse_BHS, block == KeyBlock::further};
    launch_blocks<Shape>(forward_kernel<Shape, kIsBlock>, problem.heads, q_BSHK.size(0),
                         blocks_for(problem.queries, kBlockRows), operands,
                         state_of(stream).stream);
  };
  const auto run_width = [&](auto is_block) {
    if (problem.width <= 64) {
      run(ForwardShape<64>{}, is_block);
    } else {
      run(ForwardShape<128>{}, is_block);
    }
  };
  block ? run_width(std::true_type{}) : run_width(std::false_type{});
  return true;
}

}  // namespace heddle::ops::cuda
