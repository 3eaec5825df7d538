#include "ops/backend.h"
#include "ops/cuda/grouped_launch.h"
#include "ops/cuda/tensor_map.h"

namespace heddle::ops::cuda {

using hopper::Grouped;

namespace {

/// What passes through SwiGLU, but for its rows. dgate_up may be absent.
hopper::GatedProduct gated_of(const hopper::GroupedProduct& product, const Tensor& gate_up_RG,
                              const Tensor& dgate_up_RG, const Tensor& y_RF) {
  const auto at = [](const Tensor& t) { return reinterpret_cast<Bf16*>(t.bytes()); };
  const auto [gate_RF, up_RF] = halves(gate_up_RG);
  hopper::GatedProduct gated{.rows = 0,
                             .width = product.width,
                             .summed = product.left,
                             .gate = at(gate_RF),
                             .up = at(up_RF),
                             .dgate = nullptr,
                             .dup = nullptr,
                             .y = at(y_RF),
                             .stride = gate_up_RG.stride(0),
                             .y_stride = y_RF.stride(0)};
  if (dgate_up_RG.defined()) {
    const auto [dgate_RF, dup_RF] = halves(dgate_up_RG);
    gated.dgate = at(dgate_RF);
    gated.dup = at(dup_RF);
  }
  return gated;
}

__global__ void weights_of_rows_kernel(const std::int32_t* row_TK, const float* weights_TK,
                                       std::int64_t choices, float* weights_R) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < choices && row_TK[i] != kAbsentRow) weights_R[row_TK[i]] = weights_TK[i];
}

/// dweights_TK = the sums of their rows' dots.
__global__ void sum_dots_kernel(const std::int32_t* row_TK, const float* dots, int columns,
                                std::int64_t choices, float* dweights_TK) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= choices) return;
  float sum = 0.0F;
  if (const std::int64_t row = row_TK[i]; row != kAbsentRow) {
    for (int column = 0; column < columns; ++column) sum += dots[row * columns + column];
  }
  dweights_TK[i] = sum;
}

}  // namespace

void grouped_swiglu(const Tensor& x_RI, const Tensor& w_EGI, const Tensor& offsets_E1,
                    const Tensor& gate_up_RG, const Tensor& y_RF, Stream& stream) {
  if (y_RF.count() == 0 || w_EGI.size(0) == 0) return;
  const StreamState& state = state_of(stream);
  if (y_RF.dtype() != DType::bf16 || !is_aligned(gate_up_RG) ||
      !takes_tensor_cores<Grouped::gated>(x_RI, w_EGI, y_RF, offsets_E1, state)) {
    const auto [gate_RF, up_RF] = halves(gate_up_RG);
    cuda::grouped_gemm(x_RI, w_EGI, Transpose::yes, offsets_E1, gate_up_RG, stream);
    return swiglu_forward(gate_RF, up_RF, y_RF, stream);
  }
  hopper::GroupedProduct product = product_of(x_RI, offsets_E1, y_RF.size(1));
  product.gated = gated_of(product, gate_up_RG, {}, y_RF);
  launch_grouped<Grouped::gated>(
      {.a = tensor_map(x_RI, {64, 64}), .b = tensor_map(w_EGI, {1, 128, 64})}, product, state);
}

void grouped_swiglu_backward(const Tensor& dout_RO, const Tensor& w_EOF, const Tensor& offsets_E1,
                             const Tensor& gate_up_RG, const Tensor& row_TK,
                             const Tensor& weights_TK, const Tensor& scratch_RF,
                             const Tensor& dgate_up_RG, const Tensor& y_RF,
                             const Tensor& dweights_TK, Stream& stream) {
  if (row_TK.count() == 0) return;
  StreamState& state = state_of(stream);
  const std::int64_t rows = y_RF.size(0), choices = row_TK.count(), width = y_RF.size(1),
                     columns = (width + 255) / 256;
  if (y_RF.dtype() != DType::bf16 || !is_aligned(gate_up_RG) || !is_aligned(dgate_up_RG) ||
      gate_up_RG.stride(0) != dgate_up_RG.stride(0) || w_EOF.size(0) == 0 ||
      !takes_tensor_cores<Grouped::gated_input>(dout_RO, w_EOF, y_RF, offsets_E1, state)) {
    cuda::grouped_gemm(dout_RO, w_EOF, Transpose::no, offsets_E1, scratch_RF, stream);
    return cuda::expert_swiglu_backward(scratch_RF, gate_up_RG, row_TK, weights_TK, dgate_up_RG,
                                        y_RF, dweights_TK, stream);
  }
  // A weight for each row, and its dots.
  auto* const weights_R = static_cast<float*>(
      state.workspace.at_least(static_cast<std::size_t>(rows * (1 + columns)) * sizeof(float)));
  float* const dots = weights_R + rows;
  const auto* const row_of = device_data<std::int32_t>(row_TK);
  weights_of_rows_kernel<<<blocks_for(choices, 256), 256, 0, state.stream>>>(
      row_of, device_data<float>(weights_TK), choices, weights_R);
  HEDDLE_CUDA(cudaGetLastError());
  hopper::GroupedProduct product = product_of(dout_RO, offsets_E1, width);
  product.gated = gated_of(product, gate_up_RG, dgate_up_RG, y_RF);
  product.weighed = {.weights = weights_R, .dots = dots};
  launch_grouped<Grouped::gated_input>(
      {.a = tensor_map(dout_RO, {64, 64}), .b = tensor_map(w_EOF, {1, 64, 64})}, product, state);
  sum_dots_kernel<<<blocks_for(choices, 256), 256, 0, state.stream>>>(
      row_of, dots, static_cast<int>(columns), choices, device_data<float>(dweights_TK));
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::ops::cuda
