#include "ops/attention.h"
#include "ops/cuda/attention_cudnn.h"
#include "ops/cuda/attention_hopper_backward.h"
#include "ops/cuda/attention_hopper_forward.h"
#include "ops/cuda/attention_problem.h"
#include "ops/cuda/attention_tensor_cores.h"
#include "ops/cuda/reductions.h"
#include "ops/cuda/vectors.h"

namespace heddle::ops::cuda {
namespace {

// Hopper's attention and cuDNN's where they apply, then that on tensor cores. Else these:
// tiles of queries against tiles of keys in shared memory, in f32 arithmetic, for any mask, width
// and stride. A gradient is summed by one block in a fixed order; nothing is added atomically.

/// A tile has kTile rows of queries and as many of keys; 16 x 16 threads have kTile / 16 rows of
/// it each, and of the width kColumns columns.
template <int kTile_, int kColumns_>
struct Shape16 {
  static constexpr int kTile = kTile_, kColumns = kColumns_, kRows = kTile / 16;
  static constexpr int kStride = 16 * kColumns + 1;  // of a row in shared memory: no bank conflicts
  using Rows = float[kTile][kStride];
  using Scores = float[kTile][kTile + 1];
};
constexpr int kThreads = 256;

__device__ int tx() { return static_cast<int>(threadIdx.x) % 16; }
__device__ int ty() { return static_cast<int>(threadIdx.x) / 16; }

/// Rows [begin, begin + kTile) of a head as f32; rows from `end` on and columns from `width` on are
/// 0.
template <class S, class T>
__device__ void load_rows(typename S::Rows& to, const HeadView<const T>& from, int b,
                          std::int64_t begin, std::int64_t end, int h, int width) {
  for (int row = ty(); row < S::kTile; row += 16) {
    const bool exists = begin + row < end;
    const T* const at = exists ? from.at(b, begin + row, h) : nullptr;
    for (int k = tx(); k < 16 * S::kColumns; k += 16) {
      to[row][k] = exists && k < width ? to_f32(at[k]) : 0.0F;
    }
  }
}

/// sum[r][c] = the product of row ty + 16 r of a and row tx + 16 c of b.
template <class S>
__device__ void multiply(const typename S::Rows& a, const typename S::Rows& b, int width,
                         float (&sum)[S::kRows][S::kRows]) {
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < S::kRows; ++c) sum[r][c] = 0.0F;
  }
  for (int k = 0; k < width; ++k) {
    float left[S::kRows], right[S::kRows];
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) left[r] = a[ty() + 16 * r][k];
#pragma unroll
    for (int c = 0; c < S::kRows; ++c) right[c] = b[tx() + 16 * c][k];
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
#pragma unroll
      for (int c = 0; c < S::kRows; ++c) sum[r][c] += left[r] * right[c];
    }
  }
}

/// sum[r][c] += weights (row ty + 16 r, or with kTransposed its column) times column tx + 16 c of
/// values.
template <class S, bool kTransposed>
__device__ void accumulate_rows(const typename S::Scores& weights, const typename S::Rows& values,
                                float (&sum)[S::kRows][S::kColumns]) {
  for (int j = 0; j < S::kTile; ++j) {
    float left[S::kRows], right[S::kColumns];
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      const int row = ty() + 16 * r;
      left[r] = kTransposed ? weights[j][row] : weights[row][j];
    }
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) right[c] = values[j][tx() + 16 * c];
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) sum[r][c] += left[r] * right[c];
    }
  }
}

/// The smallest first key of a tile's queries: documents begin later and later.
__device__ std::int64_t first_tile_key(const Problem& p, int b, std::int64_t query0, int tile) {
  return p.first_of(b, query0) / tile * tile;
}

template <class S, class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(ForwardOperands<T> o) {
  extern __shared__ float memory[];
  auto& q = *reinterpret_cast<typename S::Rows*>(memory);
  auto& k = (&q)[1];
  auto& v = (&q)[2];
  auto& weights = *reinterpret_cast<typename S::Scores*>(&(&q)[3]);
  const Problem& p = o.problem;
  const int b = static_cast<int>(blockIdx.z), h = static_cast<int>(blockIdx.y), g = p.group_of(h);
  // The longest first.
  const std::int64_t query0 = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * S::kTile;
  load_rows<S, T>(q, o.q, b, query0, p.queries, h, p.width);
  float out[S::kRows][S::kColumns] = {}, max[S::kRows], sum[S::kRows];
  std::int64_t first[S::kRows];
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    max[r] = -INFINITY;
    sum[r] = 0.0F;
    first[r] = p.first_of(b, min(query0 + ty() + 16 * r, p.queries - 1));
  }
  const std::int64_t last = p.query_offset + min(query0 + S::kTile, p.queries) - 1;
  for (std::int64_t key0 = first_tile_key(p, b, query0, S::kTile); key0 <= last; key0 += S::kTile) {
    __syncthreads();
    load_rows<S, T>(k, o.k, b, key0, last + 1, g, p.width);
    load_rows<S, T>(v, o.v, b, key0, last + 1, g, p.width);
    __syncthreads();
    float scores[S::kRows][S::kRows];
    multiply<S>(q, k, p.width, scores);
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      const std::int64_t s = query0 + ty() + 16 * r;
      float larger = max[r];
#pragma unroll
      for (int c = 0; c < S::kRows; ++c) {
        const bool seen = p.sees(first[r], s, key0 + tx() + 16 * c);
        scores[r][c] = seen ? scores[r][c] * p.scale : -INFINITY;
        larger = Max{}(scores[r][c], larger);
      }
      larger = reduce_lanes<16>(larger, Max{});
      // Before a row's first visible key there is nothing to scale.
      const float kept = larger == -INFINITY ? 1.0F : expf(max[r] - larger);
      max[r] = larger;
      sum[r] *= kept;
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) out[r][c] *= kept;
#pragma unroll
      for (int c = 0; c < S::kRows; ++c) {
        const float e = scores[r][c] == -INFINITY ? 0.0F : expf(scores[r][c] - larger);
        sum[r] += e;
        weights[ty() + 16 * r][tx() + 16 * c] = e;
      }
    }
    __syncthreads();
    accumulate_rows<S, false>(weights, v, out);
  }
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const std::int64_t s = query0 + ty() + 16 * r;
    const float total = reduce_lanes<16>(sum[r], Sum{});
    if (s >= p.queries) continue;
    T* const to = o.out.at(b, s, h);
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      const int column = tx() + 16 * c;
      if (column < p.width) to[column] = from_f32<T>(out[r][c] / total);
    }
    if (tx() == 0) {
      o.lse[p.row(b, h, s)] = max[r] + logf(total);
    }
  }
}

/// delta = the sum of dout * out, a warp per row.
template <class T>
__global__ void __launch_bounds__(kThreads) delta_kernel(BackwardOperands<T> o, std::int64_t rows) {
  const Problem& p = o.problem;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const std::int64_t s = row % p.queries, bh = row / p.queries;
  const int h = static_cast<int>(bh % p.heads), b = static_cast<int>(bh / p.heads);
  const T *dout = o.dout.at(b, s, h), *out = o.out.at(b, s, h);
  float sum = 0.0F;
  for (int k = static_cast<int>(threadIdx.x) % 32; k < p.width; k += 32) {
    sum += to_f32(dout[k]) * to_f32(out[k]);
  }
  sum = reduce_lanes(sum, Sum{});
  if (threadIdx.x % 32 == 0) o.delta[row] = sum;
}

/// The tile's probabilities and the gradients of its scores, from q, k, dout and v.
template <class S, class T>
__device__ void score_gradients(const BackwardOperands<T>& o, int b, int h, std::int64_t query0,
                                std::int64_t key0, const typename S::Rows& q,
                                const typename S::Rows& k, const typename S::Rows& dout,
                                const typename S::Rows& v, float (&p)[S::kRows][S::kRows],
                                float (&ds)[S::kRows][S::kRows]) {
  const Problem& problem = o.problem;
  multiply<S>(q, k, problem.width, p);
  multiply<S>(dout, v, problem.width, ds);
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const std::int64_t s = query0 + ty() + 16 * r;
    const bool exists = s < problem.queries;
    const std::int64_t first = exists ? problem.first_of(b, s) : 0;
    const float lse = exists ? o.lse[problem.row(b, h, s)] : 0.0F;
    const float delta = exists ? o.delta[problem.row(b, h, s)] : 0.0F;
#pragma unroll
    for (int c = 0; c < S::kRows; ++c) {
      const bool seen = exists && problem.sees(first, s, key0 + tx() + 16 * c);
      p[r][c] = seen ? expf(p[r][c] * problem.scale - lse) : 0.0F;
      ds[r][c] = seen ? p[r][c] * (ds[r][c] - delta) * problem.scale : 0.0F;
    }
  }
}

template <class S>
__device__ void put_scores(typename S::Scores& to, const float (&from)[S::kRows][S::kRows]) {
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < S::kRows; ++c) to[ty() + 16 * r][tx() + 16 * c] = from[r][c];
  }
}

template <class S, class T>
__device__ void store_rows(const float (&from)[S::kRows][S::kColumns], const HeadView<T>& to, int b,
                           std::int64_t begin, std::int64_t end, int h, int width) {
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const std::int64_t row = begin + ty() + 16 * r;
    if (row >= end) continue;
    T* const at = to.at(b, row, h);
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      const int column = tx() + 16 * c;
      if (column < width) at[column] = from_f32<T>(from[r][c]);
    }
  }
}

/// A tile of queries against all its keys.
template <class S, class T>
__global__ void __launch_bounds__(kThreads) dq_kernel(BackwardOperands<T> o) {
  extern __shared__ float memory[];
  auto& q = *reinterpret_cast<typename S::Rows*>(memory);
  auto &dout = (&q)[1], &k = (&q)[2], &v = (&q)[3];
  auto& scores = *reinterpret_cast<typename S::Scores*>(&(&q)[4]);
  const Problem& p = o.problem;
  const int b = static_cast<int>(blockIdx.z), h = static_cast<int>(blockIdx.y), g = p.group_of(h);
  const std::int64_t query0 = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * S::kTile;
  load_rows<S, T>(q, o.q, b, query0, p.queries, h, p.width);
  load_rows<S, T>(dout, o.dout, b, query0, p.queries, h, p.width);
  float dq[S::kRows][S::kColumns] = {};
  const std::int64_t last = min(query0 + S::kTile, p.queries) - 1;
  for (std::int64_t key0 = first_tile_key(p, b, query0, S::kTile); key0 <= last; key0 += S::kTile) {
    __syncthreads();
    load_rows<S, T>(k, o.k, b, key0, p.keys, g, p.width);
    load_rows<S, T>(v, o.v, b, key0, p.keys, g, p.width);
    __syncthreads();
    float prob[S::kRows][S::kRows], ds[S::kRows][S::kRows];
    score_gradients<S, T>(o, b, h, query0, key0, q, k, dout, v, prob, ds);
    put_scores<S>(scores, ds);
    __syncthreads();
    accumulate_rows<S, false>(scores, k, dq);
  }
  store_rows<S, T>(dq, o.dq, b, query0, p.queries, h, p.width);
}

/// A tile of keys against all queries, of all heads that share it, that see it.
template <class S, class T>
__global__ void __launch_bounds__(kThreads) dkv_kernel(BackwardOperands<T> o) {
  extern __shared__ float memory[];
  auto& q = *reinterpret_cast<typename S::Rows*>(memory);
  auto &dout = (&q)[1], &k = (&q)[2], &v = (&q)[3];
  auto& scores = *reinterpret_cast<typename S::Scores*>(&(&q)[4]);
  const Problem& p = o.problem;
  const int b = static_cast<int>(blockIdx.z), g = static_cast<int>(blockIdx.y);
  const std::int64_t key0 = static_cast<std::int64_t>(blockIdx.x) * S::kTile;
  load_rows<S, T>(k, o.k, b, key0, p.keys, g, p.width);
  load_rows<S, T>(v, o.v, b, key0, p.keys, g, p.width);
  float dk[S::kRows][S::kColumns] = {}, dv[S::kRows][S::kColumns] = {};
  const int per_group = p.heads / p.groups;
  for (int h = g * per_group; h < (g + 1) * per_group; ++h) {
    for (std::int64_t query0 = key0; query0 < p.queries; query0 += S::kTile) {
      // Documents begin later and later: once all keys lie before, it stays so.
      if (p.first_of(b, query0) >= key0 + S::kTile) break;
      __syncthreads();
      load_rows<S, T>(q, o.q, b, query0, p.queries, h, p.width);
      load_rows<S, T>(dout, o.dout, b, query0, p.queries, h, p.width);
      __syncthreads();
      float prob[S::kRows][S::kRows], ds[S::kRows][S::kRows];
      score_gradients<S, T>(o, b, h, query0, key0, q, k, dout, v, prob, ds);
      put_scores<S>(scores, prob);
      __syncthreads();
      accumulate_rows<S, true>(scores, dout, dv);
      __syncthreads();
      put_scores<S>(scores, ds);
      __syncthreads();
      accumulate_rows<S, true>(scores, q, dk);
    }
  }
  store_rows<S, T>(dk, o.dk, b, key0, p.keys, g, p.width);
  store_rows<S, T>(dv, o.dv, b, key0, p.keys, g, p.width);
}

/// Launches with as much shared memory as `rows` tiles of rows and one of scores need.
template <class S, class Operands>
void launch(void (*kernel)(Operands), int rows, dim3 grid, const Operands& operands,
            cudaStream_t queue) {
  const std::size_t bytes =
      static_cast<std::size_t>(rows) * sizeof(typename S::Rows) + sizeof(typename S::Scores);
  HEDDLE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(bytes)));
  kernel<<<grid, kThreads, bytes, queue>>>(operands);
  HEDDLE_CUDA(cudaGetLastError());
}

template <class Body>
void visit_shape(std::int64_t width, const Body& body) {
  HEDDLE_CHECK(width <= 256, "attention heads of width {}", width);
  if (width <= 64) return body(Shape16<64, 4>{});
  if (width <= 128) return body(Shape16<32, 8>{});
  body(Shape16<32, 16>{});
}

dim3 grid_of(std::int64_t positions, int tile, std::int64_t heads, std::int64_t batch) {
  return dim3(blocks_for(positions, tile), static_cast<unsigned>(heads),
              static_cast<unsigned>(batch));
}

Problem problem_of(const Tensor& q_BSHK, const Tensor& k_BTGK, const AttentionMask& mask,
                   double scale) {
  Problem problem{.heads = static_cast<int>(q_BSHK.size(2)),
                  .groups = static_cast<int>(k_BTGK.size(2)),
                  .width = static_cast<int>(q_BSHK.size(3)),
                  .queries = q_BSHK.size(1),
                  .keys = k_BTGK.size(1),
                  .query_offset = mask.query_offset,
                  .scale = static_cast<float>(scale)};
  if (mask.first_key_BS.defined()) {
    problem.first_key = device_data<std::int32_t>(mask.first_key_BS);
    problem.first_key_stride = mask.first_key_BS.stride(0);
  }
  return problem;
}

}  // namespace

void attention_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                       const AttentionMask& mask, double scale, const Tensor& out_BSHK,
                       const Tensor& lse_BHS, Stream& stream) {
  const Problem problem = problem_of(q_BSHK, k_BTGK, mask, scale);
  const std::int64_t batch = q_BSHK.size(0);
  if (q_BSHK.count() == 0) return;
  if (hopper_attention_forward(problem, q_BSHK, k_BTGK, v_BTGK, out_BSHK, lse_BHS, stream) ||
      cudnn_attention_forward(q_BSHK, k_BTGK, v_BTGK, mask, scale, out_BSHK, lse_BHS, stream) ||
      tensor_core_attention_forward(problem, q_BSHK, k_BTGK, v_BTGK, out_BSHK, lse_BHS, stream)) {
    return;
  }
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(q_BSHK.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const ForwardOperands<T> operands{problem, q_BSHK,   k_BTGK,
                                      v_BTGK,  out_BSHK, device_data<float>(lse_BHS)};
    visit_shape(problem.width, [&](auto shape) {
      using S = decltype(shape);
      launch<S>(forward_kernel<S, T>, 3, grid_of(problem.queries, S::kTile, problem.heads, batch),
                operands, queue);
    });
  });
}

void attention_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BSGK,
                        const Tensor& v_BSGK, const Tensor& out_BSHK, const Tensor& lse_BHS,
                        const AttentionMask& mask, double scale, const Tensor& dq_BSHK,
                        const Tensor& dk_BSGK, const Tensor& dv_BSGK, const Tensor& delta_BHS,
                        Stream& stream) {
  const Problem problem = problem_of(q_BSHK, k_BSGK, mask, scale);
  const std::int64_t batch = q_BSHK.size(0);
  if (q_BSHK.count() == 0) return;
  if (hopper_attention_backward(problem, dout_BSHK, q_BSHK, k_BSGK, v_BSGK, out_BSHK, lse_BHS,
                                dq_BSHK, dk_BSGK, dv_BSGK, stream) ||
      cudnn_attention_backward(dout_BSHK, q_BSHK, k_BSGK, v_BSGK, out_BSHK, lse_BHS, mask, scale,
                               dq_BSHK, dk_BSGK, dv_BSGK, stream) ||
      tensor_core_attention_backward(problem, dout_BSHK, q_BSHK, k_BSGK, v_BSGK, out_BSHK, lse_BHS,
                                     dq_BSHK, dk_BSGK, dv_BSGK, delta_BHS, stream)) {
    return;
  }
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(q_BSHK.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const BackwardOperands<T> operands{problem,
                                       dout_BSHK,
                                       q_BSHK,
                                       k_BSGK,
                                       v_BSGK,
                                       out_BSHK,
                                       device_data<float>(lse_BHS),
                                       device_data<float>(delta_BHS),
                                       dq_BSHK,
                                       dk_BSGK,
                                       dv_BSGK};
    const std::int64_t rows = lse_BHS.count();
    delta_kernel<T><<<blocks_for(rows, kThreads / 32), kThreads, 0, queue>>>(operands, rows);
    HEDDLE_CUDA(cudaGetLastError());
    visit_shape(problem.width, [&](auto shape) {
      using S = decltype(shape);
      launch<S>(dq_kernel<S, T>, 4, grid_of(problem.queries, S::kTile, problem.heads, batch),
                operands, queue);
      launch<S>(dkv_kernel<S, T>, 4, grid_of(problem.keys, S::kTile, problem.groups, batch),
                operands, queue);
    });
  });
}

}  // namespace heddle::ops::cuda
