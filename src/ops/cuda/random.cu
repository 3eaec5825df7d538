#include "ops/cuda/vectors.h"
#include "ops/random.h"

namespace heddle::ops::cuda {
namespace {

/// random_normal of base/rng.h: words 0 and 1 of Philox 4x32-10, and Box-Muller in double.
__device__ double random_normal(std::uint64_t key, std::uint64_t index) {
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

}  // namespace

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
