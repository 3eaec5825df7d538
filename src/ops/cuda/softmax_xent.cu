#include <cuda_pipeline.h>

#include <algorithm>

#include "ops/cuda/reductions.h"
#include "ops/cuda/vectors.h"
#include "ops/softmax_xent.h"

namespace heddle::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr float kLowest = -3.402823466e38F;

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

constexpr float kLog2E = 1.44269504088896341F;

__device__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// Of the elements so far: top, the largest one times log2(e), and the sum of 2^(x log2(e) - top).
/// NaN is not seen by the maximum, but by the sum.
struct Softmax {
  float top = kLowest, sum = 0.0F;

  template <int N>
  __device__ void add(const float (&x)[N]) {
    float largest = x[0];
#pragma unroll
    for (int i = 1; i < N; ++i) largest = fmaxf(largest, x[i]);
    const float higher = fmaxf(top, fmaxf(largest * kLog2E, kLowest));
    sum *= exp2_fast(top - higher);
    top = higher;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += exp2_fast(fmaf(x[i], kLog2E, -top));
  }
  /// Over the block.
  __device__ Softmax all(float* scratch) const {
    Softmax whole;
    whole.top = reduce_block<kThreads>(top, kLowest, Max{}, scratch);
    __syncthreads();
    whole.sum = reduce_block<kThreads>(sum * exp2_fast(top - whole.top), 0.0F, Sum{}, scratch);
    return whole;
  }
};

template <class T, int W>
__device__ void widen(const Pack<T, W>& from, float (&to)[W]) {
#pragma unroll
  for (int i = 0; i < W; ++i) to[i] = from.get(i);
}

constexpr int kKept = 7;                  ///< packs of a row that a thread has in registers
constexpr int kSharedBytes = 110 * 1024;  ///< half of what a processor has for two blocks

/// Shared memory as packs of which every thread reads only those it copied there itself.
template <class T, int W>
struct OwnPacks {
  static constexpr bool kExists = sizeof(T) * W == 16;  // copies behind the back need 16 bytes

  static int count(int packs) {
    const int rest = packs > kKept * kThreads ? packs - kKept * kThreads : 0;
    return kExists ? std::min(rest, kSharedBytes / 16) : 0;
  }
  __device__ static void copy(uint4* to, const T* from) {
    if constexpr (kExists) __pipeline_memcpy_async(to, from, 16);
  }
  __device__ static void wait() {
    __pipeline_commit();
    __pipeline_wait_prior(0);
  }
};

/// A block per row. Of a row's packs a thread has kKept in registers, more in shared memory
/// (`shared` packs of the block), and what is left of a very long row is read again, from the
/// cache. Two blocks share a processor: one reads while the other writes.
template <class T, int W, bool kGradient>
__global__ void __launch_bounds__(kThreads, 2)
    cross_entropy_kernel(T* logits, std::int64_t stride, int V, int shared,
                         const std::int32_t* targets, float grad_scale, double* loss) {
  extern __shared__ uint4 stored[];
  __shared__ float scratch[32];
  constexpr int kAhead = 4, kStart = kKept * kThreads;  // kStart: the first pack in shared memory
  const std::int64_t t = blockIdx.x;
  T* const row = logits + t * stride;
  const int target = targets[t], packs = V / W, first = static_cast<int>(threadIdx.x);
  const int tail = packs * W + first;  // a thread has at most one element behind the packs
  if (target == kIgnoreTarget) {
    if (first == 0) loss[t] = 0.0;
    if (kGradient) {
      for (int p = first; p < packs; p += kThreads) Pack<T, W>{}.store(row + p * W);
      if (tail < V) row[tail] = from_f32<T>(0.0F);
    }
    return;
  }
  Pack<T, W> kept[kKept];
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
    const int p = first + n * kThreads;
    if (p < packs) kept[n] = Pack<T, W>::load(row + p * W);
  }
  for (int i = first; i < shared; i += kThreads) {
    OwnPacks<T, W>::copy(stored + i, row + (kStart + i) * W);
  }
  Softmax mine;
  float x[W];
  const auto add = [&](int, const Pack<T, W>& pack) {
    widen(pack, x);
    mine.add(x);
  };
  const auto for_packs = [&](const auto& use) {  // use(index, pack), of all packs of this thread
#pragma unroll
    for (int n = 0; n < kKept; ++n) {
      if (first + n * kThreads < packs) use(first + n * kThreads, kept[n]);
    }
    if constexpr (OwnPacks<T, W>::kExists) {
      OwnPacks<T, W>::wait();
#pragma unroll 2
      for (int i = first; i < shared; i += kThreads) use(kStart + i, Pack<T, W>{stored[i]});
    }
    for (int p0 = kStart + shared + first; p0 < packs; p0 += kAhead * kThreads) {
      Pack<T, W> ahead[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        const int p = p0 + n * kThreads;
        if (p < packs) ahead[n] = Pack<T, W>::load(row + p * W);
      }
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (p0 + n * kThreads < packs) use(p0 + n * kThreads, ahead[n]);
      }
    }
  };
  for_packs(add);
  if (tail < V) {
    const float last[1] = {to_f32(row[tail])};
    mine.add(last);
  }
  const Softmax all = mine.all(scratch);
  if (first == 0) {
    loss[t] = (log2(static_cast<double>(all.sum)) + static_cast<double>(all.top)) *
                  0.69314718055994530942 -
              static_cast<double>(to_f32(row[target]));
  }
  if constexpr (!kGradient) return;
  __syncthreads();  // the target's logit has been read
  const float factor = grad_scale / all.sum;
  const auto gradient = [&](float logit) {
    return exp2_fast(fmaf(logit, kLog2E, -all.top)) * factor;
  };
  for_packs([&](int p, Pack<T, W> pack) {
    widen(pack, x);
#pragma unroll
    for (int i = 0; i < W; ++i) pack.set(i, gradient(x[i]));
    if (p == target / W) {
#pragma unroll
      for (int i = 0; i < W; ++i) {
        if (i == target % W) pack.set(i, gradient(x[i]) - grad_scale);
      }
    }
    pack.store(row + p * W);
  });
  if (tail < V) {
    const float own = tail == target ? grad_scale : 0.0F;
    row[tail] = from_f32<T>(gradient(to_f32(row[tail])) - own);
  }
}

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

unsigned rows_of(const Tensor& x_TV, std::initializer_list<const Tensor*> vectors_T) {
  for (const Tensor* t : vectors_T) {
    HEDDLE_CHECK(t->shape() == Shape{x_TV.size(0)} && t->is_contiguous(), "{} beside logits {}",
                 t->shape().text(), x_TV.shape().text());
  }
  return static_cast<unsigned>(x_TV.size(0));
}

Part part_of(const Tensor& x_TV, std::int64_t valid, const Tensor& targets_T, std::int64_t first) {
  return {x_TV.stride(0), x_TV.size(1), valid, first, device_data<std::int32_t>(targets_T)};
}

template <bool kGradient>
void cross_entropy(const Tensor& logits_TV, const Tensor& targets_T, double grad_scale,
                   const Tensor& loss_T, Stream& stream) {
  const unsigned rows = rows_of(logits_TV, {&targets_T, &loss_T});
  HEDDLE_CHECK(logits_TV.size(1) < (std::int64_t{1} << 30), "logits {}", logits_TV.shape().text());
  const cudaStream_t queue = state_of(stream).stream;
  visit_rows(logits_TV, [&](auto* logits, auto width) {
    using T = std::remove_pointer_t<decltype(logits)>;
    constexpr int W = decltype(width)::value;
    const auto words = static_cast<int>(logits_TV.size(1));
    const int shared = OwnPacks<T, W>::count(words / W);
    const auto kernel = cross_entropy_kernel<T, W, kGradient>;
    HEDDLE_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    kernel<<<rows, kThreads, static_cast<std::size_t>(shared) * 16, queue>>>(
        logits, logits_TV.stride(0), words, shared, device_data<std::int32_t>(targets_T),
        static_cast<float>(grad_scale), device_data<double>(loss_T));
  });
}

}  // namespace

void cross_entropy_forward(const Tensor& logits_TV, const Tensor& targets_T, const Tensor& loss_T,
                           Stream& stream) {
  cross_entropy<false>(logits_TV, targets_T, 1.0, loss_T, stream);
}

void cross_entropy_forward_backward(const Tensor& logits_TV, const Tensor& targets_T,
                                    double grad_scale, const Tensor& loss_T, Stream& stream) {
  cross_entropy<true>(logits_TV, targets_T, grad_scale, loss_T, stream);
}

void row_max(const Tensor& logits_TV, std::int64_t valid, const Tensor& max_T, Stream& stream) {
  const unsigned rows = rows_of(logits_TV, {&max_T});
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
  const unsigned rows = rows_of(logits_TV, {&targets_T, &max_T, &sum_T, &chosen_T});
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
  const unsigned rows = rows_of(exponentials_TV, {&targets_T, &sum_T});
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
