#include "ops/backend.h"
#include "ops/cuda/grouped_launch.h"
#include "ops/cuda/tensor_map.h"

namespace heddle::ops::cuda {

void grouped_swiglu(const Tensor& x_RI, const Tensor& w_EGI, const Tensor& offsets_E1,
                    const Tensor& gate_up_RG, const Tensor& y_RF, Stream& stream) {
  if (y_RF.count() == 0 || w_EGI.size(0) == 0) return;
  const StreamState& state = state_of(stream);
  const auto [gate_RF, up_RF] = halves(gate_up_RG);
  if (y_RF.dtype() != DType::bf16 || !is_aligned(gate_up_RG) ||
      !takes_tensor_cores(x_RI, w_EGI, y_RF, offsets_E1, state)) {
    cuda::grouped_gemm(x_RI, w_EGI, Transpose::yes, offsets_E1, gate_up_RG, stream);
    return swiglu_forward(gate_RF, up_RF, y_RF, stream);
  }
  hopper::GroupedProduct product = product_of(x_RI, offsets_E1, y_RF.size(1));
  const auto at = [](const Tensor& t) { return reinterpret_cast<Bf16*>(t.bytes()); };
  product.gated = {.rows = 0,
                   .width = product.width,
                   .summed = product.left,
                   .gate = at(gate_RF),
                   .up = at(up_RF),
                   .dgate = nullptr,
                   .dup = nullptr,
                   .y = at(y_RF),
                   .stride = gate_up_RG.stride(0),
                   .y_stride = y_RF.stride(0)};
  launch_grouped<hopper::Grouped::gated>(
      {.a = tensor_map(x_RI, {64, 64}), .b = tensor_map(w_EGI, {1, 128, 64}), .c = {}}, product,
      state);
}

}  // namespace heddle::ops::cuda
