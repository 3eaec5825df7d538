#include "ops/backend.h"
#include "ops/cuda/grouped_plain.h"
#include "ops/cuda/grouped_product.h"
#include "ops/cuda/stream_state.h"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/vectors.h"
#include "tensor/cuda/check.h"

namespace heddle::ops::cuda {
namespace {

using hopper::Grouped;

/// Whether tensor cores of Hopper can make it: factors of bf16, in rows that hardware copies can
/// begin at.
bool takes_tensor_cores(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& offsets_E1,
                        const StreamState& state) {
  return state.is_hopper && a.dtype() == DType::bf16 && is_aligned(a) && is_aligned(b) &&
         is_aligned(c) && c.size(-1) % 8 == 0 && a.size(1) > 0 && a.size(0) <= (1 << 30) &&
         offsets_E1.count() - 1 <= hopper::grouped::kMostExperts;
}

template <Grouped kWhat>
void launch(const hopper::GroupedMaps& maps, const hopper::GroupedProduct& product,
            const StreamState& state) {
  const auto kernel = hopper::grouped_product<kWhat>;
  constexpr int kBytes = hopper::grouped::kSharedBytes;
  HEDDLE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const auto blocks = static_cast<unsigned>(state.processors / 2 * 2);
  kernel<<<blocks, hopper::pair::kThreads, kBytes, state.stream>>>(maps, product);
  HEDDLE_CUDA(cudaGetLastError());
}

hopper::GroupedProduct product_of(const Tensor& a, const Tensor& offsets_E1, const Tensor& c) {
  return {.offsets = device_data<std::int32_t>(offsets_E1),
          .experts = static_cast<int>(offsets_E1.count() - 1),
          .left = static_cast<int>(a.size(1)),
          .width = static_cast<int>(c.size(-1)),
          .adds = false,
          .c = nullptr,
          .stride = 0};
}

}  // namespace

void grouped_gemm(const Tensor& a_RK, const Tensor& b_EXX, Transpose transpose_b,
                  const Tensor& offsets_E1, const Tensor& c_RN, Stream& stream) {
  if (c_RN.count() == 0 || b_EXX.size(0) == 0) return;
  const StreamState& state = state_of(stream);
  if (c_RN.dtype() != DType::bf16 || !takes_tensor_cores(a_RK, b_EXX, c_RN, offsets_E1, state)) {
    return grouped_gemm_plain(a_RK, b_EXX, transpose_b, offsets_E1, c_RN, state);
  }
  hopper::GroupedProduct product = product_of(a_RK, offsets_E1, c_RN);
  product.c = device_data<Bf16>(c_RN);
  product.stride = c_RN.stride(0);
  const bool is_forward = transpose_b == Transpose::yes;
  const hopper::GroupedMaps maps{.a = tensor_map(a_RK, {64, 64}),
                                 .b = tensor_map(b_EXX, {1, is_forward ? 128 : 64, 64}),
                                 .c = {}};
  is_forward ? launch<Grouped::forward>(maps, product, state)
             : launch<Grouped::input>(maps, product, state);
}

void grouped_gemm_weight(const Tensor& a_RM, const Tensor& b_RN, const Tensor& offsets_E1,
                         double beta, const Tensor& c_EMN, Stream& stream) {
  if (c_EMN.count() == 0) return;
  const StreamState& state = state_of(stream);
  if (a_RM.size(0) == 0) {
    return beta == 0.0 ? fill(c_EMN, 0.0, stream) : cuda::scale(c_EMN, beta, stream);
  }
  if (c_EMN.dtype() != DType::f32 || !takes_tensor_cores(a_RM, b_RN, c_EMN, offsets_E1, state)) {
    return grouped_gemm_weight_plain(a_RM, b_RN, offsets_E1, beta, c_EMN, state);
  }
  if (beta != 0.0 && beta != 1.0) cuda::scale(c_EMN, beta, stream);
  hopper::GroupedProduct product = product_of(a_RM, offsets_E1, c_EMN);
  product.adds = beta != 0.0;
  launch<Grouped::weight>({.a = tensor_map(a_RM, {64, 64}),
                           .b = tensor_map(b_RN, {64, 64}),
                           .c = tensor_map(c_EMN, {1, 64, 32})},
                          product, state);
}

}  // namespace heddle::ops::cuda
