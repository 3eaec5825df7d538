#pragma once

#include <cublasLt.h>

namespace heddle::ops::cuda {

/// Throws Error(resources) with the call and cuBLAS's own words.
[[noreturn]] void cublas_failed(cublasStatus_t status, const char* call, const char* file,
                                int line);

}  // namespace heddle::ops::cuda

#define HEDDLE_CUBLAS(call)                                                                    \
  do {                                                                                         \
    if (const cublasStatus_t heddle_status = (call); heddle_status != CUBLAS_STATUS_SUCCESS) { \
      ::heddle::ops::cuda::cublas_failed(heddle_status, #call, __FILE__, __LINE__);            \
    }                                                                                          \
  } while (false)

namespace heddle::ops::cuda {

struct Product {
  Product();
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
};

}  // namespace heddle::ops::cuda
