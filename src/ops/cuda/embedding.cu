#include "ops/cuda/sort_ids.h"
#include "ops/cuda/vectors.h"
#include "ops/embedding.h"

namespace heddle::ops::cuda {
namespace {

/// y[t] = or += table[ids[t]], a pack per thread.
template <class T, int W, bool kAdds>
__global__ void __launch_bounds__(256)
    lookup_kernel(const std::int32_t* ids, const T* table, std::int64_t table_stride, T* y,
                  std::int64_t y_stride, std::int64_t packs, std::int64_t packs_per_row) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const std::int64_t t = i / packs_per_row, column = i % packs_per_row * W;
  const std::int32_t id = ids[t];
  T* const to = y + t * y_stride + column;
  if (kAdds && id == kAbsentRow) return;
  Pack<T, W> row{};
  if (id != kAbsentRow) row = Pack<T, W>::load(table + id * table_stride + column);
  if constexpr (kAdds) {
    const auto before = Pack<T, W>::load(to);
#pragma unroll
    for (int n = 0; n < W; ++n) row.set(n, before.get(n) + row.get(n));
  }
  row.store(to);
}

template <bool kAdds>
void lookup(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD, Stream& stream) {
  if (y_TD.count() == 0) return;
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(y_TD.dtype(), [&](auto zero) {
    using T = decltype(zero);
    constexpr int W = kWidest<T>;
    const bool wide = is_aligned(table_VD) && is_aligned(y_TD) && y_TD.size(1) % W == 0;
    const std::int64_t per_row = y_TD.size(1) / (wide ? W : 1), packs = y_TD.size(0) * per_row;
    const auto kernel = wide ? lookup_kernel<T, W, kAdds> : lookup_kernel<T, 1, kAdds>;
    kernel<<<blocks_for(packs, 256), 256, 0, queue>>>(
        device_data<std::int32_t>(ids_T), device_data<T>(table_VD), table_VD.stride(0),
        device_data<T>(y_TD), y_TD.stride(0), packs, per_row);
    HEDDLE_CUDA(cudaGetLastError());
  });
}

// The gradient: tokens are sorted by id (stably, so in order within an id) and the sorted list is
// cut into chunks. A chunk adds what begins and ends in it to the table itself. The sum of an id
// that reaches over a border goes to the chunk's `head` (it began before) or `tail` (it begins
// here), and a second kernel adds those up in order. No two threads add to one place.

constexpr int kChunk = 32, kColumnThreads = 128;

template <class T>
struct Operands {
  const std::uint32_t* keys;   // sorted
  const std::int32_t* tokens;  // in the order of the keys
  std::int32_t count;
  std::uint32_t absent;  // the key of tokens that take no part
  const T* dy;
  std::int64_t dy_stride;
  float* dtable;
  std::int64_t dtable_stride, D;
  float *head, *tail;  // [chunks, D]
};

/// Rows of f32 that W elements of a row are put into can be written in packs of 4 where W is 4 or
/// more: the launcher sees to it.
template <int W>
__device__ void put(float* to, const float (&values)[W], bool adds) {
  constexpr int kPack = W % 4 == 0 ? 4 : 1;
  Pack<float, kPack> sums[W / kPack] = {};
  if (adds) {
#pragma unroll
    for (int p = 0; p < W / kPack; ++p) sums[p] = Pack<float, kPack>::load(to + p * kPack);
  }
#pragma unroll
  for (int i = 0; i < W; ++i)
    sums[i / kPack].set(i % kPack, sums[i / kPack].get(i % kPack) + values[i]);
#pragma unroll
  for (int p = 0; p < W / kPack; ++p) sums[p].store(to + p * kPack);
}

template <class T, int W>
__global__ void __launch_bounds__(kColumnThreads) chunk_kernel(Operands<T> o) {
  __shared__ std::uint32_t keys[kChunk + 2];  // with a neighbour on each side
  __shared__ std::int32_t tokens[kChunk];
  const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) * kChunk;
  const std::int32_t size = min(kChunk, o.count - begin);
  for (int i = static_cast<int>(threadIdx.x); i < size + 2; i += kColumnThreads) {
    const std::int32_t at = begin + i - 1;
    keys[i] = at >= 0 && at < o.count ? o.keys[at] : 0xffffffffU;
    if (i < size) tokens[i] = o.tokens[begin + i];
  }
  __syncthreads();
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.y) * kColumnThreads + threadIdx.x) * W;
  if (column >= o.D) return;
  constexpr int kUnroll = 8;
  float sum[W] = {};
  bool began_before = keys[0] == keys[1];
  for (int i0 = 0; i0 < size; i0 += kUnroll) {
    Pack<T, W> rows[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i0 + u < size && keys[i0 + u + 1] != o.absent) {
        rows[u] = Pack<T, W>::load(o.dy + tokens[i0 + u] * o.dy_stride + column);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = i0 + u;
      if (i >= size) break;
      const std::uint32_t key = keys[i + 1];
      if (key == o.absent) continue;
#pragma unroll
      for (int n = 0; n < W; ++n) sum[n] += rows[u].get(n);
      const bool is_last_here = i + 1 == size || keys[i + 2] != key;
      if (!is_last_here) continue;
      const bool goes_on = keys[i + 2] == key;
      const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * o.D + column;
      if (began_before) {
        put(o.head + at, sum, false);
      } else if (goes_on) {
        put(o.tail + at, sum, false);
      } else {
        put(o.dtable + key * o.dtable_stride + column, sum, true);
      }
      began_before = false;
#pragma unroll
      for (int n = 0; n < W; ++n) sum[n] = 0.0F;
    }
  }
}

/// A block per border: where an id begins in this chunk and goes on, adds up its parts.
template <class T, int W>
__global__ void __launch_bounds__(kColumnThreads) border_kernel(Operands<T> o) {
  const auto chunk = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t end = (chunk + 1) * kChunk;
  const std::uint32_t key = o.keys[end - 1];
  if (key == o.absent || o.keys[end] != key) return;
  if (chunk > 0 && o.keys[chunk * kChunk] == key && o.keys[chunk * kChunk - 1] == key) return;
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.y) * kColumnThreads + threadIdx.x) * W;
  if (column >= o.D) return;
  float sum[W];
#pragma unroll
  for (int n = 0; n < W; ++n) sum[n] = o.tail[chunk * o.D + column + n];
  for (std::int32_t next = chunk + 1;; ++next) {
#pragma unroll
    for (int n = 0; n < W; ++n) sum[n] += o.head[next * o.D + column + n];
    const std::int32_t next_end = (next + 1) * kChunk;
    if (next_end >= o.count || o.keys[next_end] != key || o.keys[next_end - 1] != key) break;
  }
  put(o.dtable + key * o.dtable_stride + column, sum, true);
}

__global__ void held_rows_kernel(const std::int32_t* ids, std::int64_t count, std::int64_t first,
                                 std::int64_t held, std::int32_t* rows) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t row = ids[i] - first;
  rows[i] = row >= 0 && row < held ? static_cast<std::int32_t>(row) : kAbsentRow;
}

}  // namespace

void embedding_forward(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD,
                       Stream& stream) {
  lookup<false>(ids_T, table_VD, y_TD, stream);
}

void embedding_add(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD,
                   Stream& stream) {
  lookup<true>(ids_T, table_VD, y_TD, stream);
}

void embedding_backward(const Tensor& ids_T, const Tensor& dy_TD, const Tensor& dtable_VD,
                        Stream& stream) {
  const std::int64_t D = dy_TD.size(1), count = ids_T.count();
  if (dy_TD.count() == 0) return;
  StreamState& state = state_of(stream);
  const std::int64_t chunks = (count + kChunk - 1) / kChunk;
  const auto borders = static_cast<std::size_t>(chunks * D);
  const SortedIds sorted = sort_ids(ids_T, dtable_VD.size(0), 2 * borders * sizeof(float), state);
  float* const head = reinterpret_cast<float*>(sorted.extra);
  visit_float(dy_TD.dtype(), [&](auto zero) {
    using T = decltype(zero);
    constexpr int W = kWidest<T>;
    const Operands<T> operands{.keys = sorted.keys,
                               .tokens = sorted.positions,
                               .count = static_cast<std::int32_t>(count),
                               .absent = static_cast<std::uint32_t>(dtable_VD.size(0)),
                               .dy = device_data<T>(dy_TD),
                               .dy_stride = dy_TD.stride(0),
                               .dtable = device_data<float>(dtable_VD),
                               .dtable_stride = dtable_VD.stride(0),
                               .D = D,
                               .head = head,
                               .tail = head + borders};
    const bool wide = is_aligned(dy_TD) && is_aligned(dtable_VD) && D % W == 0;
    const unsigned strips = blocks_for(D, kColumnThreads * (wide ? W : 1));
    const auto chunk = wide ? chunk_kernel<T, W> : chunk_kernel<T, 1>;
    chunk<<<dim3(static_cast<unsigned>(chunks), strips), kColumnThreads, 0, state.stream>>>(
        operands);
    HEDDLE_CUDA(cudaGetLastError());
    if (chunks == 1) return;
    const auto border = wide ? border_kernel<T, W> : border_kernel<T, 1>;
    border<<<dim3(static_cast<unsigned>(chunks - 1), strips), kColumnThreads, 0, state.stream>>>(
        operands);
    HEDDLE_CUDA(cudaGetLastError());
  });
}

void held_rows(const Tensor& ids_T, std::int64_t first, std::int64_t held, const Tensor& rows_T,
               Stream& stream) {
  held_rows_kernel<<<blocks_for(ids_T.count(), 256), 256, 0, state_of(stream).stream>>>(
      device_data<std::int32_t>(ids_T), ids_T.count(), first, held,
      device_data<std::int32_t>(rows_T));
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::ops::cuda
