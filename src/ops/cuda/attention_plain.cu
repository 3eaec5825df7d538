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

/// A score as the softmax sees it.
__device__ float capped(float score, float cap) {
  return cap > 0.0F ? cap * tanhf(score / cap) : score;
}
/// The derivative of capped, from its value.
__device__ float capped_slope(float value, float cap) {
  if (cap == 0.0F) return 1.0F;
  const float tanh = value / cap;
  return 1.0F - tanh * tanh;
}

/// The smallest first key of a tile's queries: documents begin later and later.
template <class Sight>
__device__ std::int64_t first_tile_key(const Sight& p, int b, std::int64_t query0, int tile) {
  return p.first_of(b, query0) / tile * tile;
}

/// A row of a whole sequence: `out` are this thread's columns, `total` the sum of exponentials.
template <class T, int kColumns>
__device__ void store_row(const ForwardOperands<T, false>& o, int b, int h, std::int64_t s,
                          float max, float total, const float (&out)[kColumns]) {
  if (s >= o.problem.queries) return;
  T* const to = o.out.at(b, s, h);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int column = tx() + 16 * c;
    if (column < o.problem.width) to[column] = from_f32<T>(out[c] / total);
  }
  if (tx() == 0) o.lse.at(b, h, s) = max + logf(total);
}

/// That of a block may see no key.
template <class T, int kColumns>
__device__ void store_row(const ForwardOperands<T, true>& o, int b, int h, std::int64_t s,
                          float max, float total, const float (&out)[kColumns]) {
  const bool sees_any = max != -INFINITY;
  const bool is_stored = s < o.problem.queries && (sees_any || !o.merges);
  const float old_lse = is_stored && o.merges ? o.lse.at(b, h, s) : -INFINITY;
  __syncwarp();  // all lanes have it before one writes
  if (!is_stored) return;
  const RowMerge merge(old_lse, sees_any ? max + logf(total) : -INFINITY);
  float* const to = o.out.at(b, s, h);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int column = tx() + 16 * c;
    if (column >= o.problem.width) continue;
    const float value = sees_any ? out[c] / total : 0.0F;
    to[column] = o.merges ? merge.new_share * value + merge.old_share * to[column] : value;
  }
  if (tx() == 0) o.lse.at(b, h, s) = merge.lse;
}

template <class S, class T, bool kIsBlock>
__global__ void __launch_bounds__(kThreads) forward_kernel(ForwardOperands<T, kIsBlock> o) {
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
      const std::int64_t last_seen = p.last_of(query0 + ty() + 16 * r);
      float larger = max[r];
#pragma unroll
      for (int c = 0; c < S::kRows; ++c) {
        const std::int64_t j = key0 + tx() + 16 * c;
        const bool seen = j >= first[r] && j <= last_seen;
        scores[r][c] = seen ? capped(scores[r][c] * p.scale, p.cap) : -INFINITY;
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
    const float total = reduce_lanes<16>(sum[r], Sum{});
    store_row(o, b, h, query0 + ty() + 16 * r, max[r], total, out[r]);
  }
}

/// The tile's probabilities and the gradients of its scores, from q, k, dout and v.
template <class S, class T, bool kIsBlock>
__device__ void score_gradients(const BackwardOperands<T, kIsBlock>& o, int b, int h,
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
    const bool sees_any = kIsBlock ? lse != -INFINITY : exists;
    const std::int64_t last = problem.last_of(s);
#pragma unroll
    for (int c = 0; c < S::kRows; ++c) {
      const std::int64_t j = key0 + tx() + 16 * c;
      const bool seen = sees_any && j >= first && j <= last;
      const float score = capped(p[r][c] * problem.scale, problem.cap);
      p[r][c] = seen ? expf(score - lse) : 0.0F;
      ds[r][c] =
          seen ? p[r][c] * (ds[r][c] - delta) * capped_slope(score, problem.cap) * problem.scale
               : 0.0F;
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

/// Written, or with kAdds added.
template <class S, bool kAdds, class T>
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
      if (column >= width) continue;
      if constexpr (kAdds) {
        at[column] += from[r][c];
      } else {
        at[column] = from_f32<T>(from[r][c]);
      }
    }
  }
}

/// A tile of queries against all its keys.
template <class S, class T, bool kIsBlock>
__global__ void __launch_bounds__(kThreads) dq_kernel(BackwardOperands<T, kIsBlock> o) {
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
  if (kIsBlock && key0 > last) return;
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
  store_rows<S, kIsBlock>(dq, o.dq, b, query0, p.queries, h, p.width);
}

/// A tile of keys against all queries, of all heads that share it, that see it.
template <class S, class T, bool kIsBlock>
__global__ void __launch_bounds__(kThreads) dkv_kernel(BackwardOperands<T, kIsBlock> o) {
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
  const std::int64_t begin =
      kIsBlock ? max(key0 - p.query_offset, std::int64_t{0}) / S::kTile * S::kTile : key0;
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
  if (kIsBlock && !is_seen) return;
  store_rows<S, kIsBlock>(dk, o.dk, b, key0, p.keys, g, p.width);
  store_rows<S, kIsBlock>(dv, o.dv, b, key0, p.keys, g, p.width);
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

template <class T, bool kIsBlock>
void forward(const Problem& problem, const Tensor& q_BSHK, const Tensor& k_BTGK,
             const Tensor& v_BTGK, std::optional<KeyBlock> block, const Tensor& out_BSHK,
             const Tensor& lse_BHS, cudaStream_t queue) {
  const ForwardOperands<T, kIsBlock> operands{
      {problem}, q_BSHK, k_BTGK, v_BTGK, out_BSHK, lse_BHS, block == KeyBlock::further};
  visit_shape(problem.width, [&](auto shape) {
    using S = decltype(shape);
    launch<S>(forward_kernel<S, T, kIsBlock>, 3,
              grid_of(problem.queries, S::kTile, problem.heads, q_BSHK.size(0)), operands, queue);
  });
}

template <class T, bool kIsBlock>
void backward(const Problem& problem, const BackwardCall& call, cudaStream_t queue) {
  const auto operands = call.operands<T, kIsBlock>(problem);
  visit_shape(problem.width, [&](auto shape) {
    using S = decltype(shape);
    launch<S>(dq_kernel<S, T, kIsBlock>, 4,
              grid_of(problem.queries, S::kTile, problem.heads, call.batch()), operands, queue);
    launch<S>(dkv_kernel<S, T, kIsBlock>, 4,
              grid_of(problem.keys, S::kTile, problem.groups, call.batch()), operands, queue);
  });
}

}  // namespace

void plain_attention_forward(const Problem& problem, const Tensor& q_BSHK, const Tensor& k_BTGK,
                             const Tensor& v_BTGK, std::optional<KeyBlock> block,
                             const Tensor& out_BSHK, const Tensor& lse_BHS, Stream& stream) {
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(q_BSHK.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto run = block ? forward<T, true> : forward<T, false>;
    run(problem, q_BSHK, k_BTGK, v_BTGK, block, out_BSHK, lse_BHS, queue);
  });
}

void plain_attention_backward(const Problem& problem, const BackwardCall& call, Stream& stream) {
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(call.q_BSHK.dtype(), [&](auto zero) {
    using T = decltype(zero);
    call.is_block() ? backward<T, true>(problem, call, queue)
                    : backward<T, false>(problem, call, queue);
  });
}

}  // namespace heddle::ops::cuda
