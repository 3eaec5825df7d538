#pragma once

// Host code: when and how grouped products (grouped_product.h) are started.

#include "ops/cuda/grouped_product.h"
#include "ops/cuda/stream_state.h"
#include "ops/cuda/vectors.h"
#include "tensor/cuda/check.h"

namespace heddle::ops::cuda {

/// Whether tensor cores of Hopper can make it: factors of bf16, in rows that hardware copies can
/// begin at.
template <hopper::Grouped kWhat>
bool takes_tensor_cores(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& offsets_E1,
                        const StreamState& state) {
  return state.is_hopper && a.dtype() == DType::bf16 && is_aligned(a) && is_aligned(b) &&
         is_aligned(c) && c.size(-1) % 8 == 0 && a.size(1) > 0 && a.size(0) <= (1 << 30) &&
         offsets_E1.count() - 1 <= hopper::grouped::kMostExperts<kWhat>;
}

inline hopper::GroupedProduct product_of(const Tensor& a, const Tensor& offsets_E1,
                                         std::int64_t width) {
  hopper::GroupedProduct product{};
  product.offsets = device_data<std::int32_t>(offsets_E1);
  product.experts = static_cast<int>(offsets_E1.count() - 1);
  product.left = static_cast<int>(a.size(1));
  product.width = static_cast<int>(width);
  return product;
}

template <hopper::Grouped kWhat>
void launch_grouped(const hopper::GroupedMaps& maps, const hopper::GroupedProduct& product,
                    const StreamState& state) {
  const auto kernel = hopper::grouped_product<kWhat>;
  constexpr int kBytes = hopper::grouped::Memory<kWhat>::kBytes;
  HEDDLE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const auto blocks = static_cast<unsigned>(state.processors / 2 * 2);
  kernel<<<blocks, hopper::pair::kThreads, kBytes, state.stream>>>(maps, product);
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::ops::cuda
