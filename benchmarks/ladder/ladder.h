#pragma once

// What the ladders share: a rung is a kernel, the bytes it has to move, and how far its results are
// from a reference in double precision. Device code only.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <vector>

#include "ops/elementwise.h"
#include "ops/random.h"
#include "tensor/cuda/check.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace heddle::ladder {

using Bf16 = __nv_bfloat16;

/// A stream, its memory, and tensors with something in them.
class Bench {
 public:
  Stream stream{1, Device{Device::Kind::cuda, 0}};

  cudaStream_t queue() const { return static_cast<cudaStream_t>(stream.native()); }
  Tensor empty(const Shape& shape, DType dtype) {
    return memory_.alloc(shape, dtype, MemoryTag::workspace);
  }
  Tensor normal(const Shape& shape, DType dtype, std::uint64_t key) {
    const Tensor t = empty(shape, dtype);
    ops::fill_normal(t.view({t.count()}), key, 0, 1.0, stream);
    return t;
  }
  template <class T>
  std::vector<T> on_host(const Tensor& t) {
    std::vector<T> values(static_cast<std::size_t>(t.count()));
    HEDDLE_CUDA(
        cudaMemcpyAsync(values.data(), t.bytes(), t.size_bytes(), cudaMemcpyDeviceToHost, queue()));
    stream.synchronize();
    return values;
  }

  /// The median of five times, after one run that does not count.
  float milliseconds(const std::function<void()>& run) {
    cudaEvent_t begin, end;
    HEDDLE_CUDA(cudaEventCreate(&begin));
    HEDDLE_CUDA(cudaEventCreate(&end));
    run();
    std::vector<float> times(5);
    for (float& time : times) {
      HEDDLE_CUDA(cudaEventRecord(begin, queue()));
      run();
      HEDDLE_CUDA(cudaEventRecord(end, queue()));
      HEDDLE_CUDA(cudaEventSynchronize(end));
      HEDDLE_CUDA(cudaEventElapsedTime(&time, begin, end));
    }
    HEDDLE_CUDA(cudaEventDestroy(begin));
    HEDDLE_CUDA(cudaEventDestroy(end));
    std::ranges::sort(times);
    return times[2];
  }

  /// Bytes a millisecond of a copy, read and written ones counted.
  double copy_rate() {
    const Tensor from = normal({std::int64_t{1} << 28}, DType::bf16, 9);
    const Tensor to = empty(from.shape(), DType::bf16);
    const float time = milliseconds([&] { ops::copy(from, to, stream); });
    const double rate = 2.0 * static_cast<double>(from.size_bytes()) / time;
    std::printf("copy: %.0f GB/s\n", rate / 1e6);
    return rate;
  }

 private:
  Memory memory_{Device{Device::Kind::cuda, 0}};
};

/// The largest |got - want|, of the largest |want|; infinite where something is not a number.
inline double difference(std::span<const double> got, std::span<const double> want) {
  double worst = 0.0, largest = 1e-300;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(got[i] - want[i]);
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
    largest = std::max(largest, std::abs(want[i]));
  }
  return worst / largest;
}

inline std::vector<double> as_double(std::span<const Bf16> values) {
  std::vector<double> result;
  for (const Bf16 value : values) result.push_back(static_cast<double>(__bfloat162float(value)));
  return result;
}

struct Rung {
  const char* name;
  double bytes;  ///< that this way of doing it moves
  std::function<void()> run;
  double error;  ///< of its results on a small problem
};

/// Prints a line for each rung; returns the status of the program: 1 where one is wrong.
inline int climb(Bench& bench, std::span<const Rung> rungs, double least_bytes, double rate,
                 double tolerance) {
  int status = 0;
  for (const Rung& rung : rungs) {
    const float time = bench.milliseconds(rung.run);
    HEDDLE_CUDA(cudaGetLastError());
    const bool is_right = rung.error < tolerance;
    std::printf("%-52s predicted %8.3f ms, measured %8.3f ms, %4.0f %% of the copy, error %.1e%s\n",
                rung.name, rung.bytes / rate, time, 100.0 * least_bytes / rate / time, rung.error,
                is_right ? "" : " WRONG");
    if (!is_right) status = 1;
  }
  return status;
}

}  // namespace heddle::ladder
