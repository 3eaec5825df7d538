#include "ops/backend.h"
#include "ops/cuda/grouped_launch.h"
#include "ops/cuda/grouped_plain.h"
#include "ops/cuda/tensor_map.h"

namespace heddle::ops::cuda {

using hopper::Grouped;

void grouped_gemm(const Tensor& a_RK, const Tensor& b_EXX, Transpose transpose_b,
                  const Tensor& offsets_E1, const Tensor& c_RN, Stream& stream) {
  if (c_RN.count() == 0 || b_EXX.size(0) == 0) return;
  const StreamState& state = state_of(stream);
  if (c_RN.dtype() != DType::bf16 ||
      !takes_tensor_cores<Grouped::forward>(a_RK, b_EXX, c_RN, offsets_E1, state)) {
    return grouped_gemm_plain(a_RK, b_EXX, transpose_b, offsets_E1, c_RN, state);
  }
  hopper::GroupedProduct product = product_of(a_RK, offsets_E1, c_RN.size(1));
  product.c = device_data<Bf16>(c_RN);
  product.stride = c_RN.stride(0);
  const bool is_forward = transpose_b == Transpose::yes;
  const hopper::GroupedMaps maps{.a = tensor_map(a_RK, {64, 64}),
                                 .b = tensor_map(b_EXX, {1, is_forward ? 128 : 64, 64})};
  is_forward ? launch_grouped<Grouped::forward>(maps, product, state)
             : launch_grouped<Grouped::input>(maps, product, state);
}

void grouped_gemm_weight(const Tensor& a_RM, const Tensor& b_RN, const Tensor& offsets_E1,
                         double beta, const Tensor& c_EMN, Stream& stream) {
  cuda::grouped_gemm_weight_part(a_RM, b_RN, offsets_E1, 0, beta, c_EMN, stream);
}

void grouped_gemm_weight_part(const Tensor& a_PM, const Tensor& b_PN, const Tensor& offsets_E1,
                              std::int64_t first, double beta, const Tensor& c_EMN,
                              Stream& stream) {
  if (c_EMN.count() == 0) return;
  const StreamState& state = state_of(stream);
  if (a_PM.size(0) == 0) {
    if (first > 0) return;
    return beta == 0.0 ? fill(c_EMN, 0.0, stream) : cuda::scale(c_EMN, beta, stream);
  }
  if (c_EMN.dtype() != DType::f32 ||
      !takes_tensor_cores<Grouped::weight>(a_PM, b_PN, c_EMN, offsets_E1, state)) {
    return grouped_gemm_weight_plain(a_PM, b_PN, offsets_E1, first, beta, c_EMN, state);
  }
  if (first == 0 && beta != 0.0 && beta != 1.0) cuda::scale(c_EMN, beta, stream);
  hopper::GroupedProduct product = product_of(a_PM, offsets_E1, c_EMN.size(2));
  product.part = {.first = static_cast<int>(first), .rows = static_cast<int>(a_PM.size(0))};
  product.gradient = {.of = device_data<float>(c_EMN),
                      .expert_stride = c_EMN.stride(0),
                      .stride = c_EMN.stride(1),
                      .adds = beta != 0.0};
  launch_grouped<Grouped::weight>(
      {.a = tensor_map(a_PM, {64, 64}), .b = tensor_map(b_PN, {64, 64})}, product, state);
}

}  // namespace heddle::ops::cuda
