// Cross entropy with its gradient in place, [rows, words] in bf16: from the plain kernel to the one
// that trains (src/ops/cuda/cross_entropy.cu). Every rung prints its time, the time that the bytes
// it moves would take at the speed of a copy, and its error.
//   ladder_cross_entropy [rows] [words]
#include <cooperative_groups.h>

#include "ladder/ladder.h"
#include "ops/softmax_xent.h"

namespace {

using namespace heddle;
using ladder::Bf16;

/// Rung 1: a thread per row. Neighbouring threads read addresses a row apart: every element is a
/// transaction of its own.
__global__ void thread_per_row(Bf16* logits, int rows, int words, const int* targets,
                               double* loss) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (t >= rows) return;
  Bf16* const row = logits + static_cast<std::int64_t>(t) * words;
  float max = -INFINITY, sum = 0.0F;
  for (int i = 0; i < words; ++i) max = fmaxf(max, __bfloat162float(row[i]));
  for (int i = 0; i < words; ++i) sum += expf(__bfloat162float(row[i]) - max);
  loss[t] = log(static_cast<double>(sum)) + max - __bfloat162float(row[targets[t]]);
  for (int i = 0; i < words; ++i) {
    const float p = expf(__bfloat162float(row[i]) - max) / sum;
    row[i] = __float2bfloat16(p - (i == targets[t] ? 1.0F : 0.0F));
  }
}

template <class Op>
__device__ float over_block(float value, Op op) {
  __shared__ float scratch[32];
  for (int d = 16; d > 0; d /= 2) value = op(value, __shfl_xor_sync(~0U, value, d));
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[threadIdx.x % (blockDim.x / 32)];
  for (int d = static_cast<int>(blockDim.x / 64); d > 0; d /= 2) {
    value = op(value, __shfl_xor_sync(~0U, value, d));
  }
  return value;
}

/// Rung 2: a block of 1024 threads per row, an element at a time: whole transactions, of 64 bytes a
/// warp, and three reads of the row.
__global__ void block_per_row(Bf16* logits, int words, const int* targets, double* loss) {
  Bf16* const row = logits + static_cast<std::int64_t>(blockIdx.x) * words;
  const int target = targets[blockIdx.x];
  float max = -INFINITY, sum = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < words; i += 1024) {
    max = fmaxf(max, __bfloat162float(row[i]));
  }
  max = over_block(max, [](float a, float b) { return fmaxf(a, b); });
  for (int i = static_cast<int>(threadIdx.x); i < words; i += 1024) {
    sum += __expf(__bfloat162float(row[i]) - max);
  }
  sum = over_block(sum, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) {
    loss[blockIdx.x] = log(static_cast<double>(sum)) + max - __bfloat162float(row[target]);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < words; i += 1024) {
    const float p = __expf(__bfloat162float(row[i]) - max) / sum;
    row[i] = __float2bfloat16(p - (i == target ? 1.0F : 0.0F));
  }
}

/// Rung 3: the row is read once, in packs of 16 bytes, into the registers of a block that has the
/// processor to itself: nothing is read while it computes and writes.
template <int kPacks>
__global__ void __launch_bounds__(1024, 1)
    row_in_registers(Bf16* logits, int words, const int* targets, double* loss) {
  Bf16* const row = logits + static_cast<std::int64_t>(blockIdx.x) * words;
  const int target = targets[blockIdx.x], packs = words / 8;
  uint4 kept[kPacks];
  float max = -INFINITY, sum = 0.0F;
#pragma unroll
  for (int n = 0; n < kPacks; ++n) {
    const int p = static_cast<int>(threadIdx.x) + n * 1024;
    if (p < packs) kept[n] = reinterpret_cast<const uint4*>(row)[p];
  }
  const auto for_elements = [&](const auto& use) {
#pragma unroll
    for (int n = 0; n < kPacks; ++n) {
      const int p = static_cast<int>(threadIdx.x) + n * 1024;
      if (p >= packs) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) use(p * 8 + i, reinterpret_cast<Bf16*>(&kept[n])[i]);
    }
  };
  for_elements([&](int, Bf16& x) { max = fmaxf(max, __bfloat162float(x)); });
  max = over_block(max, [](float a, float b) { return fmaxf(a, b); });
  for_elements([&](int, Bf16& x) { sum += __expf(__bfloat162float(x) - max); });
  sum = over_block(sum, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) {
    loss[blockIdx.x] = log(static_cast<double>(sum)) + max - __bfloat162float(row[target]);
  }
  __syncthreads();
  for_elements([&](int column, Bf16& x) {
    const float p = __expf(__bfloat162float(x) - max) / sum;
    x = __float2bfloat16(p - (column == target ? 1.0F : 0.0F));
  });
#pragma unroll
  for (int n = 0; n < kPacks; ++n) {
    const int p = static_cast<int>(threadIdx.x) + n * 1024;
    if (p < packs) reinterpret_cast<uint4*>(row)[p] = kept[n];
  }
}

__device__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// Of some elements: the sum of 2^(x log2(e) - top).
struct Softmax {
  float top = -3.4e38F, sum = 0.0F;
  __device__ Softmax with(Softmax other) const {
    const float higher = fmaxf(top, other.top);
    return {higher, sum * exp2_fast(top - higher) + other.sum * exp2_fast(other.top - higher)};
  }
  __device__ Softmax over_lanes() const {
    Softmax all = *this;
    for (int d = 16; d > 0; d /= 2) {
      all = all.with({__shfl_xor_sync(~0U, all.top, d), __shfl_xor_sync(~0U, all.sum, d)});
    }
    return all;
  }
};

/// Rung 4: two blocks of 256 threads per row, each with its half in shared memory, and four of them
/// on a processor: some read while others compute or write. Sum and maximum in one pass.
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256, 4)
    halves_in_shared_memory(Bf16* logits, int words, const int* targets, double* loss) {
  extern __shared__ uint4 kept[];
  __shared__ Softmax of_warp[8];
  constexpr float kLog2E = 1.44269504F;
  const auto cluster = cooperative_groups::this_cluster();
  const int row = static_cast<int>(blockIdx.x / 2), half = static_cast<int>(blockIdx.x % 2);
  const int thread = static_cast<int>(threadIdx.x), target = targets[row];
  const int begin = half * (words / 16), packs = half == 0 ? words / 16 : words / 8 - begin;
  uint4* const part =
      reinterpret_cast<uint4*>(logits + static_cast<std::int64_t>(row) * words) + begin;
  const float chosen = __bfloat162float(logits[static_cast<std::int64_t>(row) * words + target]);
  Softmax mine;
#pragma unroll 6
  for (int p = thread; p < packs; p += 256) {
    const uint4 pack = part[p];
    kept[p] = pack;
    float x[8], largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = kLog2E * __bfloat162float(reinterpret_cast<const Bf16*>(&pack)[i]);
      largest = fmaxf(largest, x[i]);
    }
    if (largest > mine.top + 16.0F) {
      mine.sum *= exp2_fast(mine.top - largest);
      mine.top = largest;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) mine.sum += exp2_fast(x[i] - mine.top);
  }
  mine = mine.over_lanes();
  if (thread % 32 == 0) of_warp[thread / 32] = mine;
  cluster.sync();
  Softmax all;
  if (thread % 32 < 16) all = *cluster.map_shared_rank(of_warp + thread % 8, thread % 32 / 8);
  all = all.over_lanes();
  cluster.sync();
  if (half == 0 && thread == 0) {
    loss[row] = (log2(static_cast<double>(all.sum)) + all.top) * 0.69314718055994531 - chosen;
  }
#pragma unroll 4
  for (int p = thread; p < packs; p += 256) {
    uint4 pack = kept[p];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      Bf16& x = reinterpret_cast<Bf16*>(&pack)[i];
      const float e = exp2_fast(kLog2E * __bfloat162float(x) - all.top) / all.sum;
      x = __float2bfloat16(e - ((begin + p) * 8 + i == target ? 1.0F : 0.0F));
    }
    part[p] = pack;
  }
}

/// Logits and what becomes of them.
struct Problem {
  int rows, words;
  Tensor logits, targets, loss;

  Problem(ladder::Bench& bench, int rows_, int words_)
      : rows(rows_),
        words(words_),
        logits(bench.normal({rows_, words_}, DType::bf16, 1)),
        targets(bench.empty({rows_}, DType::i32)),
        loss(bench.empty({rows_}, DType::f64)) {
    ops::fill(targets, 3.0, bench.stream);
  }
};

using Kernel = std::function<void(const Problem&)>;

/// The worst of losses and gradients, against double precision.
double error_of(const Kernel& kernel, int words, ladder::Bench& bench) {
  const Problem small(bench, 3, words);
  const auto before = ladder::as_double(bench.on_host<Bf16>(small.logits));
  kernel(small);
  const auto got = ladder::as_double(bench.on_host<Bf16>(small.logits));
  const auto got_loss = bench.on_host<double>(small.loss);
  std::vector<double> want, want_loss;
  for (int t = 0; t < small.rows; ++t) {
    const double* const row = before.data() + static_cast<std::int64_t>(t) * words;
    const double max = *std::max_element(row, row + words);
    double sum = 0.0;
    for (int i = 0; i < words; ++i) sum += std::exp(row[i] - max);
    want_loss.push_back(std::log(sum) + max - row[3]);
    for (int i = 0; i < words; ++i) {
      want.push_back(std::exp(row[i] - max) / sum - (i == 3 ? 1.0 : 0.0));
    }
  }
  return std::max(ladder::difference(got, want), ladder::difference(got_loss, want_loss));
}

}  // namespace

int main(int argc, char** argv) {
  const int rows = argc > 1 ? std::atoi(argv[1]) : 8192,
            words = argc > 2 ? std::atoi(argv[2]) : 50304;
  ladder::Bench bench;
  const cudaStream_t queue = bench.queue();
  const Problem problem(bench, rows, words);
  const auto with_pointers = [&](const auto& launch) -> Kernel {
    return [=](const Problem& p) {
      launch(p, reinterpret_cast<Bf16*>(p.logits.bytes()), p.targets.data<std::int32_t>(),
             p.loss.data<double>());
    };
  };
  const Kernel kernels[] = {
      with_pointers([=](const Problem& p, Bf16* x, int* goal, double* loss) {
        thread_per_row<<<(p.rows + 63) / 64, 64, 0, queue>>>(x, p.rows, p.words, goal, loss);
      }),
      with_pointers([=](const Problem& p, Bf16* x, int* goal, double* loss) {
        block_per_row<<<p.rows, 1024, 0, queue>>>(x, p.words, goal, loss);
      }),
      with_pointers([=](const Problem& p, Bf16* x, int* goal, double* loss) {
        row_in_registers<7><<<p.rows, 1024, 0, queue>>>(x, p.words, goal, loss);
      }),
      with_pointers([=](const Problem& p, Bf16* x, int* goal, double* loss) {
        const std::size_t bytes = static_cast<std::size_t>(p.words / 8 - p.words / 16) * 16;
        HEDDLE_CUDA(cudaFuncSetAttribute(halves_in_shared_memory,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(bytes)));
        halves_in_shared_memory<<<2 * p.rows, 256, bytes, queue>>>(x, p.words, goal, loss);
      }),
      [&](const Problem& p) {
        ops::cross_entropy_forward_backward(p.logits, p.targets, 1.0, p.loss, bench.stream);
      }};
  const double rate = bench.copy_rate();
  const auto row_bytes = static_cast<double>(problem.logits.size_bytes());
  const char* const names[] = {"1 a thread per row", "2 a block per row",
                               "3 a block per row, which stays in registers",
                               "4 halves in shared memory, several rows at once",
                               "5 whole rows, copied while others compute"};
  const double passes[] = {4, 4, 2, 2, 2};
  std::vector<ladder::Rung> rungs;
  for (int i = 0; i < 5; ++i) {
    const Kernel& kernel = kernels[i];
    rungs.push_back({names[i], passes[i] * row_bytes, [&] { kernel(problem); },
                     error_of(kernel, words, bench)});
  }
  return ladder::climb(bench, rungs, 2.0 * row_bytes, rate, 4e-3);
}
