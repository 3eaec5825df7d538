#include "ops/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "base/check.h"
#include "base/error.h"
#include "tensor/cuda/check.h"

namespace heddle::ops::cuda {
namespace {

/// From the driver, so that heddle starts where there is none.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  HEDDLE_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                               cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess) {
    throw Error(ErrorCode::resources, "the NVIDIA driver has no cuTensorMapEncodeTiled",
                "install a driver for CUDA 12 or newer");
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
}

}  // namespace

CUtensorMap tensor_map(const Tensor& t, std::initializer_list<int> box) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = encoder();
  constexpr int kDims = 4;
  HEDDLE_CHECK(t.dims() <= kDims && static_cast<int>(box.size()) == t.dims() &&
                   (t.dtype() == DType::bf16 || t.dtype() == DType::f32),
               "a map of {} {}", name_of(t.dtype()), t.shape().text());
  // Innermost first; the first stride is the element's.
  cuuint64_t sizes[kDims] = {1, 1, 1, 1}, strides[kDims] = {16, 16, 16, 16};
  cuuint32_t box_sizes[kDims] = {1, 1, 1, 1};
  const cuuint32_t steps[kDims] = {1, 1, 1, 1};
  for (int dim = 0; dim < t.dims(); ++dim) {
    const int to = t.dims() - 1 - dim;
    sizes[to] = static_cast<cuuint64_t>(t.size(dim));
    box_sizes[to] = static_cast<cuuint32_t>(box.begin()[dim]);
    if (t.size(dim) > 1) {
      strides[to] = static_cast<cuuint64_t>(t.stride(dim)) * size_of(t.dtype());
    }
  }
  CUtensorMap map;
  const CUresult status = encode(
      &map,
      t.dtype() == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
      kDims, t.bytes(), sizes, strides + 1, box_sizes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HEDDLE_CHECK(status == CUDA_SUCCESS, "a map of {} {}: CUDA's error {}", name_of(t.dtype()),
               t.shape().text(), static_cast<int>(status));
  return map;
}

}  // namespace heddle::ops::cuda
