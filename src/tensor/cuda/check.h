#pragma once

#include <cuda_runtime_api.h>

namespace heddle {

/// Throws Error(resources) with the call, the device it went to and CUDA's own words.
[[noreturn]] void cuda_failed(cudaError_t error, const char* call, const char* file, int line);

}  // namespace heddle

/// Every call of the CUDA run time goes through this; after a kernel launch:
/// HEDDLE_CUDA(cudaGetLastError()).
#define HEDDLE_CUDA(call)                                                       \
  do {                                                                          \
    if (const cudaError_t heddle_error = (call); heddle_error != cudaSuccess) { \
      ::heddle::cuda_failed(heddle_error, #call, __FILE__, __LINE__);           \
    }                                                                           \
  } while (false)
