#include "ops/cuda/vectors.h"
#include "ops/softmax_xent.h"
#include "ops/split_vocabulary.h"

namespace heddle::ops::cuda {
namespace {

/// A thread has a token.
__global__ void merge_kernel(const float* statistics_N3T, std::int64_t holders, std::int64_t tokens,
                             const std::int32_t* targets, std::int64_t rows_per_holder,
                             std::int64_t own, float* divisor, double* loss) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (t >= tokens) return;
  if (targets[t] == kIgnoreTarget) {
    loss[t] = 0.0;
    divisor[t] = INFINITY;
    return;
  }
  const auto at = [&](std::int64_t holder, int which) {
    return static_cast<double>(statistics_N3T[(3 * holder + which) * tokens + t]);
  };
  double largest = at(0, 0), sum = 0.0;
  for (std::int64_t n = 1; n < holders; ++n) largest = largest < at(n, 0) ? at(n, 0) : largest;
  for (std::int64_t n = 0; n < holders; ++n) sum += at(n, 1) * exp(at(n, 0) - largest);
  const std::int64_t owner = targets[t] / rows_per_holder;
  loss[t] = log(sum) - (at(owner, 2) + at(owner, 0) - largest);
  divisor[t] = static_cast<float>(sum / exp(at(own, 0) - largest));
}

template <class T, int W>
__global__ void __launch_bounds__(256)
    divide_kernel(T* y, std::int64_t stride, const float* divisor, std::int64_t packs,
                  std::int64_t packs_per_row) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const std::int64_t t = i / packs_per_row;
  T* const at = y + t * stride + i % packs_per_row * W;
  const float factor = 1.0F / divisor[t];
  auto values = Pack<T, W>::load(at);
#pragma unroll
  for (int n = 0; n < W; ++n) values.set(n, values.get(n) * factor);
  values.store(at);
}

}  // namespace

void merge_row_statistics(const Tensor& statistics_N3T, const Tensor& targets_T,
                          std::int64_t rows_per_holder, std::int64_t own, const Tensor& divisor_T,
                          const Tensor& loss_T, Stream& stream) {
  const std::int64_t holders = statistics_N3T.size(0), tokens = targets_T.count();
  if (tokens == 0) return;
  merge_kernel<<<blocks_for(tokens, 128), 128, 0, state_of(stream).stream>>>(
      device_data<float>(statistics_N3T), holders, tokens, device_data<std::int32_t>(targets_T),
      rows_per_holder, own, device_data<float>(divisor_T), device_data<double>(loss_T));
  HEDDLE_CUDA(cudaGetLastError());
}

void divide_rows(const Tensor& y_TD, const Tensor& divisor_T, Stream& stream) {
  if (y_TD.count() == 0) return;
  visit_float(y_TD.dtype(), [&](auto zero) {
    using T = decltype(zero);
    constexpr int W = kWidest<T>;
    const bool wide = is_aligned(y_TD) && y_TD.size(1) % W == 0;
    const std::int64_t per_row = y_TD.size(1) / (wide ? W : 1), packs = y_TD.size(0) * per_row;
    const auto kernel = wide ? divide_kernel<T, W> : divide_kernel<T, 1>;
    kernel<<<blocks_for(packs, 256), 256, 0, state_of(stream).stream>>>(
        device_data<T>(y_TD), y_TD.stride(0), device_data<float>(divisor_T), packs, per_row);
    HEDDLE_CUDA(cudaGetLastError());
  });
}

}  // namespace heddle::ops::cuda
