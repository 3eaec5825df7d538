#include <climits>

#include "ops/cuda/attention_blocks.h"
#include "ops/cuda/attention_tensor_cores.h"

namespace heddle::ops::cuda {
namespace {

/// Fewer keys at a time of wide heads: two blocks share a processor's registers and memory.
template <int kWidth_>
struct DqShape {
  static constexpr int kWidth = kWidth_, kThreads = kBlockRows, kKeys = 4096 / kWidth;
  static constexpr int kBytes = tile_bytes<kWidth>(2 * kBlockRows + 4 * kKeys);
};

/// To base 2; that of no keys such that probabilities are 0.
__device__ __forceinline__ float lse_base2(float lse) {
  return lse == -INFINITY ? INFINITY : lse * kLog2E;
}

/// Statistics of the queries that pass by.
template <int kQueries>
struct QueryStatistics {
  float lse[kQueries], delta[kQueries];
  std::int32_t first[kQueries];
};

/// Of narrow heads a warp has 32 keys, of wide ones 16: more sums do not fit into registers.
template <int kWidth_>
struct DkvShape {
  static constexpr int kWidth = kWidth_, kKeyBlocks = 128 / kWidth, kWarpKeys = 16 * kKeyBlocks;
  static constexpr int kThreads = kBlockRows / kWarpKeys * 32, kQueries = kWidth / 2;
  static constexpr int kBytes = tile_bytes<kWidth>(2 * kBlockRows + 4 * kQueries) +
                                2 * static_cast<int>(sizeof(QueryStatistics<kQueries>));
};

/// The product of a query's rows of dout, which lies in a tile, and out.
template <int kWidth>
__device__ float delta_of(const unsigned char* dout_tile, int row, const Bf16* out, int width) {
  float sum = 0.0F;
#pragma unroll
  for (int chunk = 0; chunk < kWidth / 8; ++chunk) {
    if (chunk * 8 >= width) break;
    const auto left = Pack<Bf16, 8>::load(
        reinterpret_cast<const Bf16*>(dout_tile + chunk_offset<kWidth>(row, chunk)));
    const auto right = Pack<Bf16, 8>::load(out + chunk * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += left.get(i) * right.get(i);
  }
  return sum;
}

/// Gradients of whole sequences are written, by way of `tile`; those of blocks are added.
template <int kWidth, int kM>
__device__ __forceinline__ void put_rows(const float (&sums)[kM][kWidth / 8][4],
                                         unsigned char* tile, Bf16* to, std::int64_t stride,
                                         int begin, int end, int width) {
  store_rows<kWidth>(sums, tile, to, stride, begin, end, width);
}
template <int kWidth, int kM>
__device__ __forceinline__ void put_rows(const float (&sums)[kM][kWidth / 8][4], unsigned char*,
                                         float* to, std::int64_t stride, int begin, int end,
                                         int width) {
  add_rows<kWidth>(sums, to, stride, begin, end, width);
}

/// Of a thread's four rows, as WarpQueries has them.
struct RowStatistics {
  float lse[4], delta[4];  // of lse the logarithm to base 2

  /// Scores and the gradients of probabilities become gradients of scores (but for the scale).
  template <int kN>
  __device__ __forceinline__ void differentiate(float scale, const float (&scores)[2][kN][4],
                                                float (&dscores)[2][kN][4]) const {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = 2 * m + i / 2;
          dscores[m][n][i] =
              exp2_fast(scores[m][n][i] * scale - lse[r]) * (dscores[m][n][i] - delta[r]);
        }
      }
    }
  }
};

/// Of a block's queries, a thread those of a row; makes delta where it is not given.
template <int kWidth, bool kIsBlock>
__device__ __forceinline__ RowStatistics make_statistics(const BackwardOperands<Bf16, kIsBlock>& o,
                                                         int b, int h, int query0,
                                                         const unsigned char* dout_tile) {
  const auto& p = o.problem;
  const int row = static_cast<int>(threadIdx.x), s = query0 + row;
  float lse = 0.0F, delta = 0.0F;
  if (s < static_cast<int>(p.queries)) {
    lse = lse_base2(o.lse.at(b, h, s));
    if constexpr (kIsBlock) {
      delta = o.delta.at(b, h, s);
    } else {
      delta = delta_of<kWidth>(dout_tile, row, o.out.at(b, s, h), p.width);
      o.delta.at(b, h, s) = delta;
    }
  }
  RowStatistics of;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    of.lse[r] = __shfl_sync(0xffffffffU, lse, lane_id() / 4 + 8 * r);
    of.delta[r] = __shfl_sync(0xffffffffU, delta, lane_id() / 4 + 8 * r);
  }
  return of;
}

/// Also makes delta where it is not given.
template <class S, bool kIsBlock>
__global__ void __launch_bounds__(S::kThreads, 2) dq_kernel(BackwardOperands<Bf16, kIsBlock> o) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int kWidth = S::kWidth, kKeys = S::kKeys;
  unsigned char *const q = memory, *const dout = q + tile_bytes<kWidth>(kBlockRows);
  const auto& p = o.problem;
  const int h = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.y), g = p.group_of(h);
  const int queries = static_cast<int>(p.queries);
  const int query0 = static_cast<int>(gridDim.z - 1 - blockIdx.z) * kBlockRows;
  const int begin = static_cast<int>(p.first_of(b, query0));
  const int end = static_cast<int>(p.last_of(min(query0 + kBlockRows, queries) - 1)) + 1;
  if (kIsBlock && begin >= end) return;
  const PassingKeys<S> keys(dout + tile_bytes<kWidth>(kBlockRows), o.k, o.v, b, g, end, p.width);
  start_rows<kWidth, kBlockRows, S::kThreads>(q, o.q.at(b, 0, h), o.q.position, query0, queries,
                                              p.width);
  start_rows<kWidth, kBlockRows, S::kThreads>(dout, o.dout.at(b, 0, h), o.dout.position, query0,
                                              queries, p.width);
  end_copy_group();
  keys.start(begin, 0);
  const WarpQueries rows(p, b, query0 + 32 * warp_id());
  wait_for_copies<1>();
  __syncthreads();
  const RowStatistics of = make_statistics<kWidth>(o, b, h, query0, dout);
  unsigned char* const own_q = q + tile_bytes<kWidth>(32 * warp_id());
  const unsigned char* const own_dout = dout + tile_bytes<kWidth>(32 * warp_id());
  const float scale = p.scale * kLog2E;
  float dq[2][kWidth / 8][4] = {};
  int stage = 0;
  for (int key0 = begin; key0 < end; key0 += kKeys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();
    if (key0 + kKeys < end) keys.start(key0 + kKeys, stage ^ 1);
    if (!rows.see_some(key0, kKeys)) continue;
    float scores[2][kKeys / 8][4], dscores[2][kKeys / 8][4];
    multiply_rows<kWidth>(own_q, keys.k(stage), scores);
    multiply_rows<kWidth>(own_dout, keys.v(stage), dscores);
    if (!rows.see_all(key0, kKeys)) rows.hide_unseen(p, b, key0, scores);
    of.differentiate(scale, scores, dscores);
    std::uint32_t weights[2][kKeys / 16][4];
    round_to_weights(dscores, weights);
    add_weighted_rows<kWidth>(weights, keys.k(stage), dq);
  }
  scale_sums(dq, p.scale);
  put_rows<kWidth>(dq, own_q, o.dq.at(b, 0, h), o.dq.position, rows.begin, queries, p.width);
}

/// The end of the queries from `begin` on that see keys of the block from `key0` on, by tiles of
/// kQueries. Documents begin later and later: once all keys lie before, it stays so.
template <int kQueries, int kThreads, class Sight>
__device__ int end_of_sight(const Sight& p, int b, int key0, int begin) {
  const int queries = static_cast<int>(p.queries);
  if (p.first_key == nullptr) return queries;
  int end = begin;
  for (int query0 = begin; query0 < queries; query0 += kQueries * kThreads) {
    const int query = query0 + static_cast<int>(threadIdx.x) * kQueries;
    const int tiles =
        __syncthreads_count(query < queries && p.first_of(b, query) < key0 + kBlockRows);
    end += tiles * kQueries;
    if (tiles < kThreads) break;
  }
  return min(end, queries);
}

/// Hides scores (keys are rows, queries columns) of pairs that do not see each other.
template <int kM, int kQueries, class Sight>
__device__ __forceinline__ void hide_unseen(const Sight& p, const QueryStatistics<kQueries>& of,
                                            int key0, int query0, int offset,
                                            float (&scores)[kM][kQueries / 8][4]) {
#pragma unroll
  for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * n + lane_id() % 4 * 2 + i % 2, s = query0 + column;
      const bool exists = s < static_cast<int>(p.queries);
      const int first = exists ? p.key_from(of.first[column]) : INT_MAX;
      const int last = s + offset;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const int key = key0 + 16 * m + 8 * (i / 2) + lane_id() / 4;
        if (key < first || key > last) scores[m][n][i] = -INFINITY;
      }
    }
  }
}

/// Scores become probabilities, gradients of these become gradients of scores (but for the scale).
template <bool kMaySeeNone, int kM, int kQueries>
__device__ __forceinline__ void differentiate(const QueryStatistics<kQueries>& of, float scale,
                                              float (&scores)[kM][kQueries / 8][4],
                                              float (&dscores)[kM][kQueries / 8][4]) {
#pragma unroll
  for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * n + lane_id() % 4 * 2 + i % 2;
      const float lse = kMaySeeNone ? lse_base2(of.lse[column]) : of.lse[column] * kLog2E;
      const float delta = of.delta[column];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        scores[m][n][i] = exp2_fast(scores[m][n][i] * scale - lse);
        dscores[m][n][i] = scores[m][n][i] * (dscores[m][n][i] - delta);
      }
    }
  }
}

/// A tile of keys against all queries, of all heads that share it, that see it.
template <class S, bool kIsBlock>
__global__ void __launch_bounds__(S::kThreads, 256 / S::kThreads)
    dkv_kernel(BackwardOperands<Bf16, kIsBlock> o) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int kWidth = S::kWidth, kQueries = S::kQueries, kM = S::kKeyBlocks;
  constexpr int kTile = tile_bytes<kWidth>(kQueries);
  unsigned char *const k = memory, *const v = k + tile_bytes<kWidth>(kBlockRows);
  unsigned char *const q = v + tile_bytes<kWidth>(kBlockRows), *const dout = q + 2 * kTile;
  auto* const statistics = reinterpret_cast<QueryStatistics<kQueries>*>(dout + 2 * kTile);
  const auto& p = o.problem;
  const int g = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.y);
  const int key0 = static_cast<int>(blockIdx.z) * kBlockRows;  // the longest first
  const int queries = static_cast<int>(p.queries), keys = static_cast<int>(p.keys);
  const int per_group = p.heads / p.groups;
  const int offset = kIsBlock ? static_cast<int>(p.query_offset) : 0;
  const int query_begin = max(key0 - offset, 0);
  const int query_end = end_of_sight<kQueries, S::kThreads>(p, b, key0, query_begin);
  if (kIsBlock && query_begin >= query_end) return;
  const auto start_queries = [&](int h, int query0, int stage) {
    start_rows<kWidth, kQueries, S::kThreads>(q + stage * kTile, o.q.at(b, 0, h), o.q.position,
                                              query0, queries, p.width);
    start_rows<kWidth, kQueries, S::kThreads>(dout + stage * kTile, o.dout.at(b, 0, h),
                                              o.dout.position, query0, queries, p.width);
    if (const int i = static_cast<int>(threadIdx.x); i < kQueries) {
      const bool exists = query0 + i < queries;
      const int s = exists ? query0 + i : 0;
      start_copy<4>(&statistics[stage].lse[i], &o.lse.at(b, h, s), exists);
      start_copy<4>(&statistics[stage].delta[i], &o.delta.at(b, h, s), exists);
      if (p.first_key != nullptr) {
        const std::int64_t at = exists ? b * p.first_key_stride + s : 0;
        start_copy<4>(&statistics[stage].first[i], p.first_key + at, exists);
      } else {
        statistics[stage].first[i] = 0;
      }
    }
    end_copy_group();
  };
  start_rows<kWidth, kBlockRows, S::kThreads>(k, o.k.at(b, 0, g), o.k.position, key0, keys,
                                              p.width);
  start_rows<kWidth, kBlockRows, S::kThreads>(v, o.v.at(b, 0, g), o.v.position, key0, keys,
                                              p.width);
  int h = g * per_group, query0 = query_begin, stage = 0;
  start_queries(h, query0, stage);
  const int own_row = S::kWarpKeys * warp_id(), own_key = key0 + own_row;
  unsigned char* const own_k = k + tile_bytes<kWidth>(own_row);
  unsigned char* const own_v = v + tile_bytes<kWidth>(own_row);
  const float scale = p.scale * kLog2E;
  float dk[kM][kWidth / 8][4] = {}, dv[kM][kWidth / 8][4] = {};
  for (; h < (g + 1) * per_group; stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();
    const int now = query0;
    query0 += kQueries;
    if (query0 >= query_end) {
      query0 = query_begin;
      ++h;
    }
    if (h < (g + 1) * per_group) start_queries(h, query0, stage ^ 1);
    const QueryStatistics<kQueries>& of = statistics[stage];
    const int last = min(kQueries, queries - now) - 1, last_key = own_key + S::kWarpKeys - 1;
    const int last_seen = now + offset;  // of the first query
    if (last_seen + last < own_key || p.key_from(of.first[0]) > last_key) continue;
    float scores[kM][kQueries / 8][4], dscores[kM][kQueries / 8][4];
    multiply_rows<kWidth>(own_k, q + stage * kTile, scores);
    multiply_rows<kWidth>(own_v, dout + stage * kTile, dscores);
    if (last_seen < last_key || p.key_from(of.first[last]) > own_key || last + 1 < kQueries) {
      hide_unseen<kM>(p, of, own_key, now, offset, scores);
    }
    differentiate<kIsBlock, kM>(of, scale, scores, dscores);
    std::uint32_t weights[kM][kQueries / 16][4];
    round_to_weights(scores, weights);
    add_weighted_rows<kWidth>(weights, dout + stage * kTile, dv);
    round_to_weights(dscores, weights);
    add_weighted_rows<kWidth>(weights, q + stage * kTile, dk);
  }
  scale_sums(dk, p.scale);
  put_rows<kWidth>(dk, own_k, o.dk.at(b, 0, g), o.dk.position, own_key, keys, p.width);
  put_rows<kWidth>(dv, own_v, o.dv.at(b, 0, g), o.dv.position, own_key, keys, p.width);
}

}  // namespace

bool tensor_core_attention_backward(const Problem& problem, const BackwardCall& call,
                                    Stream& stream) {
  if (problem.cap != 0.0F ||
      !suits_tensor_cores(problem, {&call.dout_BSHK, &call.q_BSHK, &call.k_BTGK, &call.v_BTGK,
                                    &call.dq_BSHK, &call.dk_BTGK, &call.dv_BTGK}) ||
      !(call.is_block() || is_aligned(*call.out_BSHK))) {
    return false;
  }
  const auto run = [&](auto dq_shape, auto dkv_shape, auto is_block) {
    using Dq = decltype(dq_shape);
    using Dkv = decltype(dkv_shape);
    constexpr bool kIsBlock = is_block();
    const auto operands = call.operands<Bf16, kIsBlock>(problem);
    const cudaStream_t queue = state_of(stream).stream;
    launch_blocks<Dq>(dq_kernel<Dq, kIsBlock>, problem.heads, call.batch(),
                      blocks_for(problem.queries, kBlockRows), operands, queue);
    launch_blocks<Dkv>(dkv_kernel<Dkv, kIsBlock>, problem.groups, call.batch(),
                       blocks_for(problem.keys, kBlockRows), operands, queue);
  };
  const auto run_width = [&](auto is_block) {
    if (problem.width <= 64) {
      run(DqShape<64>{}, DkvShape<64>{}, is_block);
    } else {
      run(DqShape<128>{}, DkvShape<128>{}, is_block);
    }
  };
  call.is_block() ? run_width(std::true_type{}) : run_width(std::false_type{});
  return true;
}

}  // namespace heddle::ops::cuda
