#pragma once

// Device code only: elementwise operations.
#include <array>

#include "ops/cuda/vectors.h"
#include "ops/rows.h"

namespace heddle::ops::cuda {

/// Where the rows of N tensors start: Rows, for kernels.
template <int N>
struct RowLayout {
  static constexpr int kLevels = 3;
  std::int64_t length = 0, rows = 0;
  int levels = 0;
  std::int64_t sizes[kLevels] = {};
  std::int64_t strides[kLevels][N] = {};

  RowLayout(const std::array<const Tensor*, N>& tensors, typename Rows<N>::Merge merge) {
    const Rows<N> from(tensors, merge);
    HEDDLE_CHECK(from.levels() <= kLevels, "rows of {}", tensors[0]->shape().text());
    length = from.length();
    rows = from.count();
    levels = from.levels();
    for (int level = 0; level < levels; ++level) {
      sizes[level] = from.size(level);
      for (int n = 0; n < N; ++n) strides[level][n] = from.stride(level, n);
    }
  }

  __device__ void offsets(std::int64_t row, std::int64_t (&at)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] = 0;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if (level >= levels) break;
      std::int64_t index = row;
      if (level + 1 < levels) {
        index = row % sizes[level];
        row /= sizes[level];
      }
#pragma unroll
      for (int n = 0; n < N; ++n) at[n] += index * strides[level][n];
    }
  }
};

template <class T, int N>
struct Pointers {
  T* at[N];
};

/// Division by a number that is known before the kernel runs: a product and a shift, exact for
/// dividends below 2^31.
struct Divisor {
  std::uint32_t divisor = 1, factor = 1;
  int shift = 0;

  explicit Divisor(std::uint32_t by) : divisor(by), shift(31) {
    while ((std::uint64_t{1} << (shift - 31)) < by) ++shift;  // 2^(shift - 31) is by or more
    factor = static_cast<std::uint32_t>((std::uint64_t{1} << shift) / by + 1);
  }
  __device__ std::uint32_t quotient(std::uint32_t dividend) const {
    return static_cast<std::uint32_t>((static_cast<std::uint64_t>(dividend) * factor) >> shift);
  }
};

inline constexpr int kMapThreads = 256, kMapUnroll = 2;

/// Applies `f` to elements [begin, end) of a row.
template <class T, int I, int O, class F>
__device__ void map_scalars(const Pointers<T, I + O>& tensors, const std::int64_t (&at)[I + O],
                            std::int64_t count, const F& f) {
  for (std::int64_t i = 0; i < count; ++i) {
    float in[I > 0 ? I : 1], out[O];
    for (int n = 0; n < I; ++n) in[n] = to_f32(tensors.at[n][at[n] + i]);
    f(in, out);
    for (int n = 0; n < O; ++n) tensors.at[I + n][at[I + n] + i] = from_f32<T>(out[n]);
  }
}

/// A thread has kMapUnroll packs of W elements. All loads come first: outputs may be inputs.
template <class T, int W, bool kFlat, int I, int O, class F>
__global__ void __launch_bounds__(kMapThreads)
    map_kernel(RowLayout<I + O> layout, Pointers<T, I + O> tensors, std::int64_t packs,
               Divisor packs_per_row, F f) {
  constexpr int N = I + O;
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * kMapThreads * kMapUnroll + threadIdx.x;
  Pack<T, W> in[kMapUnroll][I > 0 ? I : 1];
  std::int64_t at[kMapUnroll][N];
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    const std::int64_t pack = first + u * kMapThreads;
    if (pack >= packs) continue;
    if constexpr (kFlat) {
      for (int n = 0; n < N; ++n) at[u][n] = pack * W;
    } else {
      // Packs are fewer than 2^31: the launcher sees to it.
      const std::uint32_t row = packs_per_row.quotient(static_cast<std::uint32_t>(pack));
      const std::uint32_t column = static_cast<std::uint32_t>(pack) - row * packs_per_row.divisor;
      layout.offsets(row, at[u]);
#pragma unroll
      for (int n = 0; n < N; ++n) at[u][n] += static_cast<std::int64_t>(column) * W;
    }
#pragma unroll
    for (int n = 0; n < I; ++n) in[u][n] = Pack<T, W>::load(tensors.at[n] + at[u][n]);
  }
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    if (first + u * kMapThreads >= packs) continue;
    float results[O][W];
#pragma unroll
    for (int i = 0; i < W; ++i) {
      float x[I > 0 ? I : 1], y[O];
#pragma unroll
      for (int n = 0; n < I; ++n) x[n] = in[u][n].get(i);
      f(x, y);
#pragma unroll
      for (int n = 0; n < O; ++n) results[n][i] = y[n];
    }
#pragma unroll
    for (int n = 0; n < O; ++n) {
      Pack<T, W> result;
      result.set_all(results[n]);
      result.store(tensors.at[I + n] + at[u][I + n]);
    }
  }
  if constexpr (kFlat && W > 1) {  // what is left of the one row
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      std::int64_t rest[N];
      for (int n = 0; n < N; ++n) rest[n] = packs * W;
      map_scalars<T, I, O>(tensors, rest, layout.length - packs * W, f);
    }
  }
}

/// outputs = f(inputs) element by element, for I inputs and then O outputs of one shape and dtype;
/// f(const float (&in)[I], float (&out)[O]). An output may be an input.
template <int I, int O, class F>
void map(Stream& stream, const std::array<const Tensor*, I + O>& tensors, const F& f) {
  constexpr int N = I + O;
  const RowLayout<N> layout(tensors, Rows<N>::Merge::all);
  if (layout.length == 0 || layout.rows == 0) return;
  bool aligned = true;
  for (const Tensor* t : tensors) aligned = aligned && is_aligned(*t);
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(tensors[0]->dtype(), [&](auto zero) {
    using T = decltype(zero);
    Pointers<T, N> pointers;
    for (int n = 0; n < N; ++n) pointers.at[n] = device_data<T>(*tensors[n]);
    const auto launch = [&](auto kernel, std::int64_t packs, std::int64_t packs_per_row) {
      HEDDLE_CHECK(layout.rows == 1 || packs < (std::int64_t{1} << 31), "{} strided elements",
                   layout.rows * layout.length);
      const unsigned blocks = blocks_for(packs, kMapThreads * kMapUnroll);
      kernel<<<blocks, kMapThreads, 0, queue>>>(
          layout, pointers, packs, Divisor(static_cast<std::uint32_t>(packs_per_row)), f);
      HEDDLE_CUDA(cudaGetLastError());
    };
    constexpr int W = kWidest<T>;
    const std::int64_t elements = layout.rows * layout.length;
    if (layout.rows == 1) {
      aligned ? launch(map_kernel<T, W, true, I, O, F>, elements / W, 1)
              : launch(map_kernel<T, 1, true, I, O, F>, elements, 1);
    } else if (aligned && layout.length % W == 0) {
      launch(map_kernel<T, W, false, I, O, F>, elements / W, layout.length / W);
    } else {
      launch(map_kernel<T, 1, false, I, O, F>, elements, layout.length);
    }
  });
}

}  // namespace heddle::ops::cuda
