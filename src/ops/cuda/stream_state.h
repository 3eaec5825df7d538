#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tensor/stream.h"

namespace heddle::ops::cuda {

/// Device memory that grows to the largest request and is then reused, in stream order, by one
/// operation after the other.
class Workspace {
 public:
  /// What it begins with: what NVIDIA recommends for matrix products on Hopper.
  static constexpr std::size_t kLeastBytes = std::size_t{32} << 20;

  explicit Workspace(cudaStream_t stream) : stream_(stream) {}
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// At least `bytes`, 256-byte aligned; valid until the next call.
  void* at_least(std::size_t bytes);

 private:
  cudaStream_t stream_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Parts of one workspace: take() every part of a null one to learn the size, then again.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  T* take(std::int64_t count) {
    std::byte* const part = base_ + used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(part);
  }
  std::size_t used_bytes() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

/// A matrix product as cuBLASLt was asked for it, and the algorithm it chose.
struct Product;

/// What the operations keep with a CUDA stream.
class StreamState {
 public:
  explicit StreamState(const Stream& stream);
  ~StreamState();
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

  const cudaStream_t stream;
  int processors = 0;      ///< of the device: what a grid should fill
  bool is_hopper = false;  ///< whether code for sm_90a runs there
  Workspace workspace;
  /// Two zeros on the device, for kernels whose blocks take work by counting; those leave zeros.
  int* work_counter = nullptr;
  cublasLtHandle_t blas = nullptr;
  std::map<std::vector<std::int64_t>, std::unique_ptr<Product>> products;
  std::shared_ptr<void> attention;  ///< attention_cudnn.cpp's
};

/// Made at the first call; makes the stream's device the thread's current one.
StreamState& state_of(Stream& stream);

}  // namespace heddle::ops::cuda
