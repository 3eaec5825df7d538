#include "ops/cuda/stream_state.h"

#include <algorithm>

#include "ops/cuda/product.h"
#include "tensor/cuda/check.h"
#include "tensor/device_runtime.h"

namespace heddle::ops::cuda {

Workspace::~Workspace() { cudaFree(memory_); }

void* Workspace::at_least(std::size_t bytes) {
  if (bytes_ > 0 && bytes <= bytes_) return memory_;
  bytes = std::max(bytes, kLeastBytes);
  device_runtime::synchronize(stream_);
  HEDDLE_CUDA(cudaFree(memory_));
  memory_ = nullptr;
  bytes_ = 0;
  HEDDLE_CUDA(cudaMalloc(&memory_, bytes));
  // NaN everywhere: who reads a part before it is written shows it in its results.
  HEDDLE_CUDA(cudaMemsetAsync(memory_, 0xff, bytes, stream_));
  bytes_ = bytes;
  return memory_;
}

StreamState::StreamState(const Stream& of)
    : stream(static_cast<cudaStream_t>(of.native())), workspace(stream) {
  HEDDLE_CUDA(
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, of.device().index));
  int major = 0, minor = 0;
  HEDDLE_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, of.device().index));
  HEDDLE_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, of.device().index));
  is_hopper = major == 9 && minor == 0;
  HEDDLE_CUDA(cudaMalloc(reinterpret_cast<void**>(&work_counter), 2 * sizeof(int)));
  HEDDLE_CUDA(cudaMemsetAsync(work_counter, 0, 2 * sizeof(int), stream));
  HEDDLE_CUBLAS(cublasLtCreate(&blas));
}

StreamState::~StreamState() {
  cublasLtDestroy(blas);
  cudaFree(work_counter);
}

StreamState& state_of(Stream& stream) {
  HEDDLE_CUDA(cudaSetDevice(stream.device().index));
  std::shared_ptr<void>& slot = stream.library_state();
  if (!slot) slot = std::make_shared<StreamState>(stream);
  return *static_cast<StreamState*>(slot.get());
}

}  // namespace heddle::ops::cuda
