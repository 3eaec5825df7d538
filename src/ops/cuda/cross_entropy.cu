#include <cooperative_groups.h>
#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "ops/cuda/vectors.h"
#include "ops/softmax_xent.h"

namespace heddle::ops::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr float kLowest = -3.402823466e38F;

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

  template <class T, int W>
  __device__ void add(const Pack<T, W>& pack) {
    float x[W];
#pragma unroll
    for (int i = 0; i < W; ++i) x[i] = pack.get(i);
    add(largest_of(pack), x);
  }

  __device__ Softmax with(const Softmax& other) const {
    const float higher = fmaxf(top, other.top);
    return {higher, sum * exp2_fast(top - higher) + other.sum * exp2_fast(other.top - higher)};
  }
  /// Natural base.
  __device__ double log_sum() const {
    constexpr double kLn2 = 0.69314718055994530942;
    return (static_cast<double>(log2f(sum)) + static_cast<double>(top)) * kLn2;
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

constexpr int kThreads = 384, kWarps = kThreads / 32;
constexpr int kMostBlocksPerRow = 8;        ///< a cluster that every device has
constexpr int kWholeRowBytes = 110 * 1024;  ///< half of a processor's shared memory
constexpr int kUsualPartBytes = 72 * 1024;  ///< a third of it
constexpr int kStages = 2;                  ///< in which a row comes

/// How a row is divided among the blocks of a cluster: whole rows where two of them fit a
/// processor, else parts of which it holds three.
struct RowParts {
  int blocks = 1, packs = 0;  ///< of a row, of a block
  int stored = 0;             ///< packs of a block that it holds in shared memory

  RowParts(int row_packs, int pack_bytes, bool stores) {
    const auto bytes = [&] { return static_cast<std::int64_t>(packs) * pack_bytes; };
    packs = row_packs;
    while (blocks < kMostBlocksPerRow &&
           bytes() > (blocks == 1 ? kWholeRowBytes : kUsualPartBytes)) {
      blocks *= 2;
      packs = (row_packs + blocks - 1) / blocks;
    }
    stored = stores ? std::min(packs, kWholeRowBytes / pack_bytes) : 0;
  }
};

struct Arguments {
  std::int64_t stride;
  int words;
  const std::int32_t* targets;
  float grad_scale;
  double* loss;
};

/// A cluster of blocks per row. For the gradient a block copies its part of the row into shared
/// memory, all of it at once, without waiting, and reads what does not fit a second time. A pack is
/// copied, read and written by one thread, so that only the sums have to meet. The blocks of
/// several rows share a processor: some wait for their rows while others compute and write.
template <class T, int W, bool kGradient>
__global__ void __launch_bounds__(kThreads, 3)
    cross_entropy_kernel(T* logits, Arguments args, RowParts parts) {
  extern __shared__ uint4 stored[];
  __shared__ Softmax of_warp[kWarps];
  constexpr bool kStores = kGradient && sizeof(T) * W == 16;
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank()), words = args.words;
  const std::int64_t t = blockIdx.x / static_cast<unsigned>(parts.blocks);
  T* const row = logits + t * args.stride;
  const int target = args.targets[t], thread = static_cast<int>(threadIdx.x);
  const int begin = min(rank * parts.packs, words / W), packs = min(parts.packs, words / W - begin);
  const int stored_packs = min(parts.stored, packs);
  T* const part = row + static_cast<std::int64_t>(begin) * W;
  // What lies behind the packs belongs to the last block, at most one element a thread.
  const int tail = rank + 1 == parts.blocks ? words / W * W + thread : words;
  if (target == kIgnoreTarget) {  // for the whole cluster
    if (rank == 0 && thread == 0) args.loss[t] = 0.0;
    if (kGradient) {
      for (int p = thread; p < packs; p += kThreads) Pack<T, W>{}.store(part + p * W);
      if (tail < words) row[tail] = from_f32<T>(0.0F);
    }
    return;
  }
  // use(n) for this thread's packs of a stage.
  const auto for_stage = [&](int stage, const auto& use) {
    const int size = (stored_packs + kStages * kThreads - 1) / (kStages * kThreads) * kThreads;
    const int end = min(stored_packs, (stage + 1) * size);
    for (int p = stage * size + thread; p < end; p += kThreads) use(p);
  };
  if constexpr (kStores) {
    for (int stage = 0; stage < kStages; ++stage) {
      for_stage(stage, [&](int p) { __pipeline_memcpy_async(stored + p, part + p * W, 16); });
      __pipeline_commit();
    }
  }
  // use(p, pack) for this thread's packs that are not stored.
  const auto for_others = [&](const auto& use) {
    constexpr int kAhead = 4;
    for (int p0 = stored_packs + thread; p0 < packs; p0 += kAhead * kThreads) {
      Pack<T, W> ahead[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        const int p = p0 + n * kThreads;
        if (p < packs) ahead[n] = Pack<T, W>::load(part + p * W);
      }
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (p0 + n * kThreads < packs) use(p0 + n * kThreads, ahead[n]);
      }
    }
  };
  const float chosen = rank == 0 && thread == 0 ? to_f32(row[target]) : 0.0F;
  const float last = tail < words ? to_f32(row[tail]) : 0.0F;
  Softmax all;
  if (tail < words) all.add<1>(last, {last});
  if constexpr (kStores) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      __pipeline_wait_prior(kStages - 1 - stage);
      for_stage(stage, [&](int p) { all.add(Pack<T, W>{stored[p]}); });
    }
  }
  for_others([&](int, const Pack<T, W>& pack) { all.add(pack); });
  all = all.over_lanes();
  if (thread % 32 == 0) of_warp[thread / 32] = all;
  cluster.sync();
  all = {};
  for (int i = thread % 32; i < parts.blocks * kWarps; i += 32) {
    all = all.with(*cluster.map_shared_rank(of_warp + i % kWarps, i / kWarps));
  }
  all = all.over_lanes();
  cluster.barrier_arrive();  // nobody leaves before all have read
  if (rank == 0 && thread == 0) args.loss[t] = all.log_sum() - static_cast<double>(chosen);
  if constexpr (kGradient) {
    // Of an element: 2^(x log2(e) + exponent), less grad_scale where it is the target.
    const float exponent = log2f(args.grad_scale / all.sum) - all.top;
    const auto gradient = [&](float x) { return exp2_fast(fmaf(x, kLog2E, exponent)); };
    const int own = target / W - begin;  // of this block's packs, if it is one
    const auto write = [&](int p, const Pack<T, W>& pack) {
      float x[W];
#pragma unroll
      for (int i = 0; i < W; ++i) x[i] = gradient(pack.get(i));
      if (p == own) {
#pragma unroll
        for (int i = 0; i < W; ++i) x[i] -= i == target % W ? args.grad_scale : 0.0F;
      }
      Pack<T, W> result;
      result.set_all(x);
      result.store(part + p * W);
    };
    if constexpr (kStores) {
#pragma unroll 2
      for (int p = thread; p < stored_packs; p += kThreads) write(p, Pack<T, W>{stored[p]});
    }
    for_others(write);
    if (tail < words) {
      row[tail] = from_f32<T>(gradient(last) - (tail == target ? args.grad_scale : 0.0F));
    }
  }
  cluster.barrier_wait();
}

template <bool kGradient, class T, int W>
void launch(T* logits, unsigned rows, const Arguments& args, cudaStream_t queue) {
  constexpr int kPackBytes = static_cast<int>(sizeof(T)) * W;
  const RowParts parts(args.words / W, kPackBytes, kGradient && kPackBytes == 16);
  const auto kernel = cross_entropy_kernel<T, W, kGradient>;
  HEDDLE_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWholeRowBytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(parts.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(rows * static_cast<unsigned>(parts.blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(parts.stored) * 16;
  config.stream = queue;
  config.attrs = &cluster;
  config.numAttrs = 1;
  HEDDLE_CUDA(cudaLaunchKernelEx(&config, kernel, logits, args, parts));
}

template <bool kGradient>
void cross_entropy(const Tensor& logits_TV, const Tensor& targets_T, double grad_scale,
                   const Tensor& loss_T, Stream& stream) {
  HEDDLE_CHECK(
      logits_TV.size(0) < (std::int64_t{1} << 27) && logits_TV.size(1) < (std::int64_t{1} << 30),
      "logits {}", logits_TV.shape().text());
  HEDDLE_CHECK(grad_scale >= 0.0, "cross entropy with a gradient scaled by {}", grad_scale);
  if (logits_TV.count() == 0) return;
  const Arguments args{.stride = logits_TV.stride(0),
                       .words = static_cast<int>(logits_TV.size(1)),
                       .targets = device_data<std::int32_t>(targets_T),
                       .grad_scale = static_cast<float>(grad_scale),
                       .loss = device_data<double>(loss_T)};
  const auto count = static_cast<unsigned>(logits_TV.size(0));
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(logits_TV.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (is_aligned(logits_TV)) {
      launch<kGradient, T, kWidest<T>>(device_data<T>(logits_TV), count, args, queue);
    } else {
      launch<kGradient, T, 1>(device_data<T>(logits_TV), count, args, queue);
    }
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

}  // namespace heddle::ops::cuda
