#include <cooperative_groups.h>

#include <algorithm>

#include "ops/cuda/reductions.h"
#include "ops/cuda/vectors.h"
#include "ops/softmax_xent.h"

namespace heddle::ops::cuda {
namespace {

namespace cg = cooperative_groups;

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

/// Of some elements: the sum of 2^(x log2(e) - top), where no exponent is much above 0. NaN is not
/// seen by top, but by the sum.
struct Softmax {
  static constexpr float kSlack = 16.0F;  ///< by which an exponent may be above 0
  float top = kLowest, sum = 0.0F;

  /// top is raised only when it has to be, which is rare after the first elements.
  template <int N>
  __device__ void add(float largest, const float (&x)[N]) {
    if (largest * kLog2E > top + kSlack) {
      const float higher = largest * kLog2E;
      sum *= exp2_fast(top - higher);
      top = higher;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum += exp2_fast(fmaf(x[i], kLog2E, -top));
  }

  __device__ Softmax with(const Softmax& other) const {
    const float higher = fmaxf(top, other.top);
    return {higher, sum * exp2_fast(top - higher) + other.sum * exp2_fast(other.top - higher)};
  }
  __device__ Softmax over_lanes() const {
    Softmax all = *this;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      all = all.with({__shfl_xor_sync(0xffffffffU, all.top, distance),
                      __shfl_xor_sync(0xffffffffU, all.sum, distance)});
    }
    return all;
  }
};

constexpr int kRowThreads = 256, kRowWarps = kRowThreads / 32;
constexpr int kMostBlocksPerRow = 8;           ///< a cluster that every device has
constexpr int kUsualPartBytes = 55 * 1024;     ///< a quarter of what a processor has
constexpr int kLargestPartBytes = 110 * 1024;  ///< half of it

/// How a row of packs is divided among the blocks of a cluster. A block has its part in shared
/// memory after the first pass, as far as that goes, and reads the rest of a very long one again. A
/// pack is loaded, read and written by one thread.
struct RowParts {
  int blocks = 1, packs = 0, stored = 0;  // packs and stored ones of a block

  /// Of rows of `row_packs` packs, which are stored if they are 16 bytes each and needed again.
  RowParts(int row_packs, bool stores) {
    const auto bytes = [&] { return std::int64_t{16} * ((row_packs + blocks - 1) / blocks); };
    while (blocks < kMostBlocksPerRow && bytes() > kUsualPartBytes) blocks *= 2;
    packs = (row_packs + blocks - 1) / blocks;
    stored = stores ? std::min(packs, kLargestPartBytes / 16) : 0;
  }
};

template <class T, int W>
__device__ float largest_of(const Pack<T, W>& pack) {
  float largest = pack.get(0);
#pragma unroll
  for (int i = 1; i < W; ++i) largest = fmaxf(largest, pack.get(i));
  return largest;
}
template <>
__device__ float largest_of<Bf16, 8>(const Pack<Bf16, 8>& pack) {
  const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(&pack.raw);
  const __nv_bfloat162 both = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
  return fmaxf(__low2float(both), __high2float(both));
}

/// A cluster of blocks per row. The blocks of several rows share a processor: some read while
/// others compute or write.
template <class T, int W, bool kGradient>
__global__ void __launch_bounds__(kRowThreads, 4)
    cross_entropy_kernel(T* logits, std::int64_t stride, int V, RowParts parts,
                         const std::int32_t* targets, float grad_scale, double* loss) {
  extern __shared__ uint4 stored[];
  __shared__ Softmax of_warp[kRowWarps];
  constexpr int kAhead = 6;
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const std::int64_t t = blockIdx.x / static_cast<unsigned>(parts.blocks);
  T* const row = logits + t * stride;
  const int target = targets[t], thread = static_cast<int>(threadIdx.x);
  const int begin = min(rank * parts.packs, V / W), packs = min(parts.packs, V / W - begin);
  const int stored_packs = min(parts.stored, packs);
  // What lies behind the packs belongs to the last block, at most one element a thread.
  const int tail = rank + 1 == parts.blocks ? V / W * W + thread : V;
  T* const part = row + static_cast<std::int64_t>(begin) * W;
  if (target == kIgnoreTarget) {  // for the whole cluster
    if (rank == 0 && thread == 0) loss[t] = 0.0;
    if (kGradient) {
      for (int p = thread; p < packs; p += kRowThreads) Pack<T, W>{}.store(part + p * W);
      if (tail < V) row[tail] = from_f32<T>(0.0F);
    }
    return;
  }
  const float chosen = rank == 0 && thread == 0 ? to_f32(row[target]) : 0.0F;
  const float last = tail < V ? to_f32(row[tail]) : 0.0F;
  // use(index, pack), of all packs of this thread from `from` on, out of the device's memory.
  const auto for_packs = [&](int from, const auto& use) {
    for (int p0 = from + thread; p0 < packs; p0 += kAhead * kRowThreads) {
      Pack<T, W> ahead[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        const int p = p0 + n * kRowThreads;
        if (p < packs) ahead[n] = Pack<T, W>::load(part + p * W);
      }
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (p0 + n * kRowThreads < packs) use(p0 + n * kRowThreads, ahead[n]);
      }
    }
  };
  Softmax mine;
  if (tail < V) mine.add<1>(last, {last});
  for_packs(0, [&](int p, const Pack<T, W>& pack) {
    if constexpr (kGradient && sizeof(T) * W == 16) {
      if (p < stored_packs) stored[p] = pack.raw;
    }
    float x[W];
#pragma unroll
    for (int i = 0; i < W; ++i) x[i] = pack.get(i);
    mine.add(largest_of(pack), x);
  });
  mine = mine.over_lanes();
  if (thread % 32 == 0) of_warp[thread / 32] = mine;
  cluster.sync();
  Softmax all;
  for (int i = thread % 32; i < parts.blocks * kRowWarps; i += 32) {
    all = all.with(*cluster.map_shared_rank(of_warp + i % kRowWarps, i / kRowWarps));
  }
  all = all.over_lanes();
  cluster.barrier_arrive();  // nobody leaves before all have read
  if (rank == 0 && thread == 0) {
    loss[t] = (log2(static_cast<double>(all.sum)) + static_cast<double>(all.top)) *
                  0.69314718055994530942 -
              static_cast<double>(chosen);
  }
  if constexpr (kGradient) {
    const float factor = grad_scale / all.sum;
    const auto gradient = [&](float logit) {
      return exp2_fast(fmaf(logit, kLog2E, -all.top)) * factor;
    };
    const int own = target / W - begin;  // of this block's packs, if it is one
    const auto write = [&](int p, Pack<T, W> pack) {
      float x[W];
#pragma unroll
      for (int i = 0; i < W; ++i) x[i] = gradient(pack.get(i));
      if (p == own) {
#pragma unroll
        for (int i = 0; i < W; ++i) x[i] -= i == target % W ? grad_scale : 0.0F;
      }
      pack.set_all(x);
      pack.store(part + p * W);
    };
    if constexpr (sizeof(T) * W == 16) {
#pragma unroll 4
      for (int p = thread; p < stored_packs; p += kRowThreads) write(p, Pack<T, W>{stored[p]});
    }
    // The index of what is not stored goes on where the stored packs of this thread end.
    for_packs(stored_packs, write);
    if (tail < V) {
      row[tail] = from_f32<T>(gradient(last) - (tail == target ? grad_scale : 0.0F));
    }
  }
  cluster.barrier_wait();
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
    const RowParts parts(words / W, kGradient && sizeof(T) * W == 16);
    const auto kernel = cross_entropy_kernel<T, W, kGradient>;
    HEDDLE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     kLargestPartBytes));
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(parts.blocks), 1, 1};
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(rows * static_cast<unsigned>(parts.blocks));
    launch.blockDim = dim3(kRowThreads);
    launch.dynamicSmemBytes = static_cast<std::size_t>(parts.stored) * 16;
    launch.stream = queue;
    launch.attrs = &cluster;
    launch.numAttrs = 1;
    HEDDLE_CUDA(
        cudaLaunchKernelEx(&launch, kernel, logits, logits_TV.stride(0), words, parts,
                           static_cast<const std::int32_t*>(device_data<std::int32_t>(targets_T)),
                           static_cast<float>(grad_scale), device_data<double>(loss_T)));
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
