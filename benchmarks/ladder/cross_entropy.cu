// Cross entropy with its gradient in place, [rows, words] in bf16: from the plain kernel to the one
// that trains (src/ops/cuda/softmax_xent.cu). Every rung prints its time and the time that the
// bytes it moves would take at the speed of a copy.
//   cross_entropy [rows] [words]
#include <cuda_bf16.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "ops/elementwise.h"
#include "ops/softmax_xent.h"
#include "tensor/cuda/check.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace {

using namespace heddle;
using Bf16 = __nv_bfloat16;

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

float milliseconds(const std::function<void()>& run, cudaStream_t queue) {
  cudaEvent_t begin, end;
  HEDDLE_CUDA(cudaEventCreate(&begin));
  HEDDLE_CUDA(cudaEventCreate(&end));
  run();
  HEDDLE_CUDA(cudaEventRecord(begin, queue));
  for (int i = 0; i < 5; ++i) run();
  HEDDLE_CUDA(cudaEventRecord(end, queue));
  HEDDLE_CUDA(cudaEventSynchronize(end));
  float result = 0.0F;
  HEDDLE_CUDA(cudaEventElapsedTime(&result, begin, end));
  return result / 5;
}

}  // namespace

int main(int argc, char** argv) {
  const int rows = argc > 1 ? std::atoi(argv[1]) : 8192,
            words = argc > 2 ? std::atoi(argv[2]) : 50304;
  const Device gpu{Device::Kind::cuda, 0};
  Stream stream(1, gpu);
  Memory memory(gpu);
  const auto queue = static_cast<cudaStream_t>(stream.native());
  const Tensor logits = memory.alloc({rows, words}, DType::bf16, MemoryTag::workspace);
  const Tensor other = memory.alloc({rows, words}, DType::bf16, MemoryTag::workspace);
  const Tensor targets = memory.alloc({rows}, DType::i32, MemoryTag::workspace);
  const Tensor loss = memory.alloc({rows}, DType::f64, MemoryTag::workspace);
  ops::fill(logits, 0.5, stream);
  ops::fill(targets, 3.0, stream);
  const double bytes = 2.0 * static_cast<double>(logits.size_bytes());
  const float copy = milliseconds([&] { ops::copy(logits, other, stream); }, queue);
  std::printf("copy of %d x %d: %.3f ms, %.0f GB/s\n", rows, words, copy, bytes / copy / 1e6);

  auto* const at = reinterpret_cast<Bf16*>(logits.bytes());
  auto* const goal = targets.data<std::int32_t>();
  auto* const to = loss.data<double>();
  struct Rung {
    const char* name;
    double passes;  ///< over the row, of which the copy has two
    std::function<void()> run;
  };
  const Rung rungs[] = {
      {"1 a thread per row", 4,
       [&] { thread_per_row<<<(rows + 63) / 64, 64, 0, queue>>>(at, rows, words, goal, to); }},
      {"2 a block per row", 4,
       [&] { block_per_row<<<rows, 1024, 0, queue>>>(at, words, goal, to); }},
      {"3 packs of 16 bytes, the row kept in registers", 2,
       [&] { ops::cross_entropy_forward_backward(logits, targets, 1.0, loss, stream); }},
  };
  for (const Rung& rung : rungs) {
    ops::fill(logits, 0.5, stream);
    const float time = milliseconds(rung.run, queue);
    HEDDLE_CUDA(cudaGetLastError());
    std::printf("%-48s predicted %8.3f ms, measured %8.3f ms, %4.0f %% of the copy\n", rung.name,
                copy * rung.passes / 2, time, 100.0 * copy / time);
  }
  return 0;
}
