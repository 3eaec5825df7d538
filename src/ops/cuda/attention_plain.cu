#include "ops/cuda/attention_plain.h"
#include "ops/cuda/reductions.h"

namespace heddle::ops::cuda {
namespace {

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
template <class Sight>
__device__ std::int64_t first_tile_key(const Sight& p, int b, std::int64_t query0, int tile) {
  return p.first_of(b, query0) / tile * tile;
}

template <class S, class T, class Out>
__global__ void __launch_bounds__(kThreads) forward_kernel(ForwardOperands<T, Out> o) {
  extern __shared__ float memory[];
  auto& q = *reinterpret_cast<typename S::Rows*>(memory);
  auto& k = (&q)[1];
  auto& v = (&q)[2];
  auto& weights = *reinterpret_cast<typename S::Scores*>(&(&q)[3]);
  const auto& p = o.problem;
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
  const std::int64_t last = p.last_of(min(query0 + S::kTile, p.queries) - 1);
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
    const bool sees_any = max[r] != -INFINITY;
    const bool is_stored = s < p.queries && (sees_any || !o.merges);
    const float old_lse = is_stored && o.merges ? o.lse.at(b, h, s) : -INFINITY;
    __syncwarp();  // all lanes have it before one writes
    if (!is_stored) continue;
    const RowMerge merge(old_lse, sees_any ? max[r] + logf(total) : -INFINITY);
    Out* const to = o.out.at(b, s, h);
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      const int column = tx() + 16 * c;
      if (column >= p.width) continue;
      float value = sees_any ? out[r][c] / total : 0.0F;
      if (o.merges) value = merge.new_share * value + merge.old_share * to_f32(to[column]);
      to[column] = from_f32<Out>(value);
    }
    if (tx() == 0) o.lse.at(b, h, s) = merge.lse;
  }
}

/// The tile's probabilities and the gradients of its scores, from q, k, dout and v.
template <class S, class T, class Gradient>
__device__ void score_gradients(const BackwardOperands<T, Gradient>& o, int b, int h,
                                std::int64_t query0, std::int64_t key0, const typename S::Rows& q,
                                const typename S::Rows& k, const typename S::Rows& dout,
                                const typename S::Rows& v, float (&p)[S::kRows][S::kRows],
                                float (&ds)[S::kRows][S::kRows]) {
  const auto& problem = o.problem;
  multiply<S>(q, k, problem.width, p);
  multiply<S>(dout, v, problem.width, ds);
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const std::int64_t s = query0 + ty() + 16 * r;
    const bool exists = s < problem.queries;
    const std::int64_t first = exists ? problem.first_of(b, s) : 0;
    const float lse = exists ? o.lse.at(b, h, s) : -INFINITY;
    const float delta = exists ? o.delta.at(b, h, s) : 0.0F;
    const bool sees_any = lse != -INFINITY;
#pragma unroll
    for (int c = 0; c < S::kRows; ++c) {
      const bool seen = sees_any && problem.sees(first, s, key0 + tx() + 16 * c);
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

template <class S, class Gradient>
__device__ void store_rows(const float (&from)[S::kRows][S::kColumns], const HeadView<Gradient>& to,
                           bool adds, int b, std::int64_t begin, std::int64_t end, int h,
                           int width) {
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const std::int64_t row = begin + ty() + 16 * r;
    if (row >= end) continue;
    Gradient* const at = to.at(b, row, h);
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      const int column = tx() + 16 * c;
      if (column >= width) continue;
      const float old = adds ? to_f32(at[column]) : 0.0F;
      at[column] = from_f32<Gradient>(adds ? old + from[r][c] : from[r][c]);
    }
  }
}

/// A tile of queries against all its keys.
template <class S, class T, class Gradient>
__global__ void __launch_bounds__(kThreads) dq_kernel(BackwardOperands<T, Gradient> o) {
  extern __shared__ float memory[];
  auto& q = *reinterpret_cast<typename S::Rows*>(memory);
  auto &dout = (&q)[1], &k = (&q)[2], &v = (&q)[3];
  auto& scores = *reinterpret_cast<typename S::Scores*>(&(&q)[4]);
  const auto& p = o.problem;
  const int b = static_cast<int>(blockIdx.z), h = static_cast<int>(blockIdx.y), g = p.group_of(h);
  const std::int64_t query0 = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * S::kTile;
  load_rows<S, T>(q, o.q, b, query0, p.queries, h, p.width);
  load_rows<S, T>(dout, o.dout, b, query0, p.queries, h, p.width);
  float dq[S::kRows][S::kColumns] = {};
  const std::int64_t last = p.last_of(min(query0 + S::kTile, p.queries) - 1);
  std::int64_t key0 = first_tile_key(p, b, query0, S::kTile);
  if (o.adds && key0 > last) return;
  for (; key0 <= last; key0 += S::kTile) {
    __syncthreads();
    load_rows<S, T>(k, o.k, b, key0, p.keys, g, p.width);
    load_rows<S, T>(v, o.v, b, key0, p.keys, g, p.width);
    __syncthreads();
    float prob[S::kRows][S::kRows], ds[S::kRows][S::kRows];
    score_gradients<S>(o, b, h, query0, key0, q, k, dout, v, prob, ds);
    put_scores<S>(scores, ds);
    __syncthreads();
    accumulate_rows<S, false>(scores, k, dq);
  }
  store_rows<S>(dq, o.dq, o.adds, b, query0, p.queries, h, p.width);
}

/// A tile of keys against all queries, of all heads that share it, that see it.
template <class S, class T, class Gradient>
__global__ void __launch_bounds__(kThreads) dkv_kernel(BackwardOperands<T, Gradient> o) {
  extern __shared__ float memory[];
  auto& q = *reinterpret_cast<typename S::Rows*>(memory);
  auto &dout = (&q)[1], &k = (&q)[2], &v = (&q)[3];
  auto& scores = *reinterpret_cast<typename S::Scores*>(&(&q)[4]);
  const auto& p = o.problem;
  const int b = static_cast<int>(blockIdx.z), g = static_cast<int>(blockIdx.y);
  const std::int64_t key0 = static_cast<std::int64_t>(blockIdx.x) * S::kTile;
  load_rows<S, T>(k, o.k, b, key0, p.keys, g, p.width);
  load_rows<S, T>(v, o.v, b, key0, p.keys, g, p.width);
  float dk[S::kRows][S::kColumns] = {}, dv[S::kRows][S::kColumns] = {};
  const int per_group = p.heads / p.groups;
  const std::int64_t begin = max(key0 - p.query_offset, std::int64_t{0}) / S::kTile * S::kTile;
  bool is_seen = false;
  for (int h = g * per_group; h < (g + 1) * per_group; ++h) {
    for (std::int64_t query0 = begin; query0 < p.queries; query0 += S::kTile) {
      // Documents begin later and later: once all keys lie before, it stays so.
      if (p.first_of(b, query0) >= key0 + S::kTile) break;
      is_seen = true;
      __syncthreads();
      load_rows<S, T>(q, o.q, b, query0, p.queries, h, p.width);
      load_rows<S, T>(dout, o.dout, b, query0, p.queries, h, p.width);
      __syncthreads();
      float prob[S::kRows][S::kRows], ds[S::kRows][S::kRows];
      score_gradients<S>(o, b, h, query0, key0, q, k, dout, v, prob, ds);
      put_scores<S>(scores, prob);
      __syncthreads();
      accumulate_rows<S, true>(scores, dout, dv);
      __syncthreads();
      put_scores<S>(scores, ds);
      __syncthreads();
      accumulate_rows<S, true>(scores, q, dk);
    }
  }
  if (o.adds && !is_seen) return;
  store_rows<S>(dk, o.dk, o.adds, b, key0, p.keys, g, p.width);
  store_rows<S>(dv, o.dv, o.adds, b, key0, p.keys, g, p.width);
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

/// Whole sequences of T give T, blocks f32.
template <class Body>
void visit_types(DType dtype, DType result, const Body& body) {
  visit_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    if (result == DType::f32) {
      body(T{}, float{});
    } else {
      body(T{}, T{});
    }
  });
}

}  // namespace

void plain_attention_forward(const Problem& problem, const Tensor& q_BSHK, const Tensor& k_BTGK,
                             const Tensor& v_BTGK, KeyBlock block, const Tensor& out_BSHK,
                             const Tensor& lse_BHS, Stream& stream) {
  visit_types(q_BSHK.dtype(), out_BSHK.dtype(), [&](auto in, auto result) {
    using T = decltype(in);
    using Out = decltype(result);
    const ForwardOperands<T, Out> operands{
        {problem}, q_BSHK, k_BTGK, v_BTGK, out_BSHK, lse_BHS, block == KeyBlock::further};
    visit_shape(problem.width, [&](auto shape) {
      using S = decltype(shape);
      launch<S>(forward_kernel<S, T, Out>, 3,
                grid_of(problem.queries, S::kTile, problem.heads, q_BSHK.size(0)), operands,
                state_of(stream).stream);
    });
  });
}

void plain_attention_backward(const Problem& problem, const BackwardCall& call, Stream& stream) {
  const cudaStream_t queue = state_of(stream).stream;
  const std::int64_t batch = call.batch();
  visit_types(call.q_BSHK.dtype(), call.dq_BSHK.dtype(), [&](auto in, auto result) {
    using T = decltype(in);
    using Gradient = decltype(result);
    const auto operands = call.operands<T, Gradient>(problem);
    visit_shape(problem.width, [&](auto shape) {
      using S = decltype(shape);
      launch<S>(dq_kernel<S, T, Gradient>, 4,
                grid_of(problem.queries, S::kTile, problem.heads, batch), operands, queue);
      launch<S>(dkv_kernel<S, T, Gradient>, 4,
                grid_of(problem.keys, S::kTile, problem.groups, batch), operands, queue);
    });
  });
}

}  // namespace heddle::ops::cuda
