#include <algorithm>
#include <cmath>

#include "ops/cuda/vectors.h"
#include "ops/random.h"

namespace heddle::ops::cuda {

template <>
inline constexpr DType kDTypeOf<std::int64_t> = DType::i64;  // numbers of rows

namespace {

/// Words 0 and 1 of philox(key, index) of base/rng.h.
struct PhiloxWords {
  std::uint32_t first, second;
};
__device__ PhiloxWords philox_words(std::uint64_t key, std::uint64_t index) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  auto c0 = static_cast<std::uint32_t>(index), c1 = static_cast<std::uint32_t>(index >> 32);
  std::uint32_t c2 = 0, c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ULL * c0, p1 = 0xCD9E8D57ULL * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {c0, c1};
}

/// random_normal of base/rng.h: Box-Muller in double.
__device__ double random_normal(std::uint64_t key, std::uint64_t index) {
  const auto [c0, c1] = philox_words(key, index);
  const double u1 = (static_cast<double>(c0) + 0.5) * 0x1.0p-32;
  const double u2 = static_cast<double>(c1) * 0x1.0p-32;
  return sqrt(-2.0 * log(u1)) * cos(2.0 * 3.14159265358979323846 * u2);
}

template <class T>
__global__ void __launch_bounds__(256)
    fill_normal_kernel(T* y, std::int64_t count, std::uint64_t key, std::uint64_t first,
                       double stddev) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const double value = stddev * random_normal(key, first + static_cast<std::uint64_t>(i));
  y[i] = from_f32<T>(static_cast<float>(value));
}

/// One thread to a value; a block's rows are those of blockIdx.y and every gridDim.y behind it.
template <class T, bool kAdds>
__global__ void __launch_bounds__(256)
    dropout_kernel(const T* x, std::int64_t x_stride, T* y, std::int64_t y_stride,
                   std::int64_t rows, std::int64_t width, const std::int64_t* numbers,
                   std::uint64_t key, std::uint64_t first_row, std::uint64_t columns,
                   std::uint64_t first_column, std::uint64_t dropped, float scale) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= width) return;
  for (std::int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
    const std::uint64_t row = numbers != nullptr ? static_cast<std::uint64_t>(numbers[t])
                                                 : first_row + static_cast<std::uint64_t>(t);
    const std::uint64_t i = row * columns + first_column + static_cast<std::uint64_t>(column);
    const auto [even, odd] = philox_words(key, i / 2);
    const bool stays = (i % 2 == 0 ? even : odd) >= dropped;
    const float value = stays ? to_f32(x[t * x_stride + column]) * scale : 0.0F;
    T& out = y[t * y_stride + column];
    out = from_f32<T>(kAdds ? to_f32(out) + value : value);
  }
}

template <bool kAdds>
void launch_dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI,
                    Stream& stream) {
  if (x_TI.count() == 0) return;
  visit_float(x_TI.dtype(), [&](auto zero) {
    using T = decltype(zero);
    constexpr std::int64_t kMostRows = 65535;
    const dim3 grid(blocks_for(x_TI.size(1), 256),
                    static_cast<unsigned>(std::min(x_TI.size(0), kMostRows)));
    dropout_kernel<T, kAdds><<<grid, 256, 0, state_of(stream).stream>>>(
        device_data<T>(x_TI), x_TI.stride(0), device_data<T>(y_TI), y_TI.stride(0), x_TI.size(0),
        x_TI.size(1), mask.rows_T.defined() ? device_data<std::int64_t>(mask.rows_T) : nullptr,
        mask.key, mask.first_row, static_cast<std::uint64_t>(mask.columns),
        static_cast<std::uint64_t>(mask.first_column),
        static_cast<std::uint64_t>(std::llround(mask.rate * 0x1.0p32)),
        static_cast<float>(1.0 / (1.0 - mask.rate)));
    HEDDLE_CUDA(cudaGetLastError());
  });
}

}  // namespace

void dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI, Stream& stream) {
  launch_dropout<false>(x_TI, mask, y_TI, stream);
}

void add_dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI, Stream& stream) {
  launch_dropout<true>(x_TI, mask, y_TI, stream);
}

void fill_normal(const Tensor& y, std::uint64_t key, std::uint64_t first_index, double stddev,
                 Stream& stream) {
  if (y.count() == 0) return;
  visit_float(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    fill_normal_kernel<<<blocks_for(y.count(), 256), 256, 0, state_of(stream).stream>>>(
        device_data<T>(y), y.count(), key, first_index, stddev);
    HEDDLE_CUDA(cudaGetLastError());
  });
}

}  // namespace heddle::ops::cuda
