#include "ops/cuda/reductions.h"
#include "ops/cuda/vectors.h"
#include "ops/softmax_xent.h"

namespace heddle::ops::cuda {
namespace {

constexpr int kThreads = 512;

/// A row of `size` elements in packs of W, of which the last may be short.
template <class T, int W>
struct Row {
  T* at;
  std::int64_t size;

  __device__ std::int64_t packs() const { return (size + W - 1) / W; }
  /// What lies beyond the row reads as -infinity.
  __device__ Pack<T, W> load(std::int64_t pack) const {
    if ((pack + 1) * W <= size) return Pack<T, W>::load(at + pack * W);
    Pack<T, W> part;
    for (int i = 0; i < W; ++i) {
      const std::int64_t column = pack * W + i;
      part.set(i, column < size ? to_f32(at[column]) : -INFINITY);
    }
    return part;
  }
  __device__ void store(std::int64_t pack, const Pack<T, W>& values) const {
    if ((pack + 1) * W <= size) return values.store(at + pack * W);
    for (int i = 0; i < W; ++i) {
      if (pack * W + i < size) at[pack * W + i] = from_f32<T>(values.get(i));
    }
  }
};

template <class T, int W>
__global__ void __launch_bounds__(kThreads)
    row_max_kernel(T* logits, std::int64_t stride, std::int64_t valid, float* max) {
  __shared__ float scratch[32];
  const Row<T, W> row{logits + blockIdx.x * stride, valid};
  float mine = -INFINITY;
#pragma unroll 4
  for (std::int64_t p = threadIdx.x; p < row.packs(); p += kThreads) {
    const auto x = row.load(p);
#pragma unroll
    for (int i = 0; i < W; ++i) mine = Max{}(mine, x.get(i));
  }
  mine = reduce_block<kThreads>(mine, -INFINITY, Max{}, scratch);
  if (threadIdx.x == 0) max[blockIdx.x] = mine;
}

/// The column of a target among those that begin at `first`, or -1.
__device__ std::int64_t column_of(std::int32_t target, std::int64_t first, std::int64_t columns) {
  const std::int64_t column = target - first;
  return target == kIgnoreTarget || column < 0 || column >= columns ? -1 : column;
}

struct Part {
  std::int64_t stride, columns, valid, first;
  const std::int32_t* targets;
};

template <class T, int W>
__global__ void __launch_bounds__(kThreads)
    exponentials_kernel(T* logits, Part part, const float* max, float* sum, float* chosen) {
  __shared__ float scratch[32];
  const std::int64_t t = blockIdx.x;
  const Row<T, W> row{logits + t * part.stride, part.columns};
  const float top = max[t];
  const std::int64_t own = column_of(part.targets[t], part.first, part.valid);
  if (threadIdx.x == 0) chosen[t] = own < 0 ? 0.0F : to_f32(row.at[own]) - top;
  __syncthreads();
  float mine = 0.0F;
#pragma unroll 4
  for (std::int64_t p = threadIdx.x; p < row.packs(); p += kThreads) {
    auto x = row.load(p);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const float e = p * W + i < part.valid ? __expf(x.get(i) - top) : 0.0F;
      mine += e;
      x.set(i, e);
    }
    row.store(p, x);
  }
  mine = reduce_block<kThreads>(mine, 0.0F, Sum{}, scratch);
  if (threadIdx.x == 0) sum[t] = mine;
}

template <class T, int W>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(T* exponentials, Part part, const float* sum, float grad_scale) {
  const std::int64_t t = blockIdx.x;
  const Row<T, W> row{exponentials + t * part.stride, part.columns};
  const bool is_ignored = part.targets[t] == kIgnoreTarget;
  const std::int64_t own = column_of(part.targets[t], part.first, part.columns);
  const float factor = grad_scale / sum[t];
#pragma unroll 4
  for (std::int64_t p = threadIdx.x; p < row.packs(); p += kThreads) {
    auto e = row.load(p);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const float gradient = e.get(i) * factor - (p * W + i == own ? grad_scale : 0.0F);
      e.set(i, is_ignored ? 0.0F : gradient);
    }
    row.store(p, e);
  }
}

__global__ void row_loss_kernel(const float* sum, const float* chosen, const std::int32_t* targets,
                                std::int64_t count, double* loss) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const bool counts = targets[i] != kIgnoreTarget;
  loss[i] = counts ? log(static_cast<double>(sum[i])) - static_cast<double>(chosen[i]) : 0.0;
}

/// Calls launch(T{}, W, data) for the matrix's element type, and the widest packs its rows allow.
template <class Launch>
void visit_rows(const Tensor& x_TV, const Launch& launch) {
  if (x_TV.count() == 0) return;
  visit_float(x_TV.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (is_aligned(x_TV)) {
      launch(device_data<T>(x_TV), std::integral_constant<int, kWidest<T>>{});
    } else {
      launch(device_data<T>(x_TV), std::integral_constant<int, 1>{});
    }
    HEDDLE_CUDA(cudaGetLastError());
  });
}

Part part_of(const Tensor& x_TV, std::int64_t valid, const Tensor& targets_T, std::int64_t first) {
  return {x_TV.stride(0), x_TV.size(1), valid, first, device_data<std::int32_t>(targets_T)};
}

}  // namespace

void row_max(const Tensor& logits_TV, std::int64_t valid, const Tensor& max_T, Stream& stream) {
  const auto rows = static_cast<unsigned>(logits_TV.size(0));
  const cudaStream_t queue = state_of(stream).stream;
  visit_rows(logits_TV, [&](auto* logits, auto width) {
    using T = std::remove_pointer_t<decltype(logits)>;
    row_max_kernel<T, decltype(width)::value><<<rows, kThreads, 0, queue>>>(
        logits, logits_TV.stride(0), valid, device_data<float>(max_T));
  });
}

void row_exponentials(const Tensor& logits_TV, std::int64_t valid, const Tensor& targets_T,
                      std::int64_t first, const Tensor& max_T, const Tensor& sum_T,
                      const Tensor& chosen_T, Stream& stream) {
  const auto rows = static_cast<unsigned>(logits_TV.size(0));
  const cudaStream_t queue = state_of(stream).stream;
  visit_rows(logits_TV, [&](auto* logits, auto width) {
    using T = std::remove_pointer_t<decltype(logits)>;
    exponentials_kernel<T, decltype(width)::value><<<rows, kThreads, 0, queue>>>(
        logits, part_of(logits_TV, valid, targets_T, first), device_data<float>(max_T),
        device_data<float>(sum_T), device_data<float>(chosen_T));
  });
}

void softmax_gradient(const Tensor& exponentials_TV, const Tensor& targets_T, std::int64_t first,
                      const Tensor& sum_T, double grad_scale, Stream& stream) {
  const auto rows = static_cast<unsigned>(exponentials_TV.size(0));
  const cudaStream_t queue = state_of(stream).stream;
  visit_rows(exponentials_TV, [&](auto* exponentials, auto width) {
    using T = std::remove_pointer_t<decltype(exponentials)>;
    gradient_kernel<T, decltype(width)::value><<<rows, kThreads, 0, queue>>>(
        exponentials, part_of(exponentials_TV, exponentials_TV.size(1), targets_T, first),
        device_data<float>(sum_T), static_cast<float>(grad_scale));
  });
}

void row_loss(const Tensor& sum_T, const Tensor& chosen_T, const Tensor& targets_T,
              const Tensor& loss_T, Stream& stream) {
  const std::int64_t count = loss_T.count();
  if (count == 0) return;
  row_loss_kernel<<<blocks_for(count, 256), 256, 0, state_of(stream).stream>>>(
      device_data<float>(sum_T), device_data<float>(chosen_T), device_data<std::int32_t>(targets_T),
      count, device_data<double>(loss_T));
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::ops::cuda
