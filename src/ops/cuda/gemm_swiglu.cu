#include "ops/backend.h"
#include "ops/cuda/gated_product.h"
#include "ops/cuda/stream_state.h"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/vectors.h"
#include "tensor/cuda/check.h"

namespace heddle::ops::cuda {
namespace {

/// One call, of either direction: the product's factors, and what it makes or changes.
struct Call {
  const Tensor &a, &b, &gate_up, &dgate_up, &y;  // forward has no gradient: gate_up
  std::int64_t rows() const { return a.size(0); }
  std::int64_t summed() const { return a.size(1); }
  std::int64_t width() const { return y.size(1); }
};

/// Whether the device and the tensors are such that the product in one pass is the faster way: with
/// few tiles, the last ones leave most of the device idle.
template <bool kBackward>
bool takes_one_pass(const Call& call, const StreamState& state) {
  constexpr std::int64_t kColumns = hopper::gated::Tiles<kBackward>::kWidth, kLeastTurns = 4;
  const std::int64_t tiles = (call.rows() + 255) / 256 * ((call.width() + kColumns - 1) / kColumns);
  bool taken = state.is_hopper && tiles >= kLeastTurns * (state.processors / 2) &&
               call.summed() > 0 && call.rows() <= (1 << 30) && call.width() % 8 == 0 &&
               call.dgate_up.stride(0) == call.gate_up.stride(0);
  for (const Tensor* t : {&call.a, &call.b, &call.gate_up, &call.dgate_up, &call.y}) {
    taken = taken && t->dtype() == DType::bf16 && is_aligned(*t);
  }
  return taken;
}

template <bool kBackward>
void launch(const Call& call, const hopper::GatedMaps& maps, const StreamState& state) {
  using namespace hopper;
  const auto [gate, up] = halves(call.gate_up);
  const auto [dgate, dup] = halves(call.dgate_up);
  const auto at = [](const Tensor& t) { return reinterpret_cast<Bf16*>(t.bytes()); };
  const GatedProduct product{.rows = static_cast<int>(call.rows()),
                             .width = static_cast<int>(call.width()),
                             .summed = static_cast<int>(call.summed()),
                             .gate = at(gate),
                             .up = at(up),
                             .dgate = at(dgate),
                             .dup = at(dup),
                             .y = at(call.y),
                             .stride = call.gate_up.stride(0),
                             .y_stride = call.y.stride(0)};
  const auto kernel = gated_product<kBackward>;
  HEDDLE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   pair::kSharedBytes));
  const auto blocks = static_cast<unsigned>(state.processors / 2 * 2);
  kernel<<<blocks, pair::kThreads, pair::kSharedBytes, state.stream>>>(maps, product);
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace

void gemm_swiglu(const Tensor& x_TI, const Tensor& w_GI, const Tensor& gate_up_TG,
                 const Tensor& y_TF, Stream& stream) {
  const Call call{x_TI, w_GI, gate_up_TG, gate_up_TG, y_TF};
  const StreamState& state = state_of(stream);
  if (!takes_one_pass<false>(call, state)) {
    const auto [gate_TF, up_TF] = halves(gate_up_TG);
    cuda::gemm(x_TI, Transpose::no, w_GI, Transpose::yes, gate_up_TG, {}, stream);
    return swiglu_forward(gate_TF, up_TF, y_TF, stream);
  }
  const std::int64_t width = call.width();
  launch<false>(call,
                {.a = tensor_map(x_TI, {128, 64}),
                 .b = {tensor_map(w_GI.slice(0, 0, width), {128, 64}),
                       tensor_map(w_GI.slice(0, width, 2 * width), {128, 64})}},
                state);
}

void gemm_swiglu_backward(const Tensor& dout_TO, const Tensor& w_OF, const Tensor& dy_TF,
                          const Tensor& gate_up_TG, const Tensor& dgate_up_TG, const Tensor& y_TF,
                          Stream& stream) {
  const Call call{dout_TO, w_OF, gate_up_TG, dgate_up_TG, y_TF};
  const StreamState& state = state_of(stream);
  if (!takes_one_pass<true>(call, state)) {
    const auto [gate_TF, up_TF] = halves(gate_up_TG);
    const auto [dgate_TF, dup_TF] = halves(dgate_up_TG);
    cuda::gemm(dout_TO, Transpose::no, w_OF, Transpose::no, dy_TF, {}, stream);
    return swiglu_backward(dy_TF, gate_TF, up_TF, dgate_TF, dup_TF, y_TF, stream);
  }
  launch<true>(call, {.a = tensor_map(dout_TO, {128, 64}), .b = {tensor_map(w_OF, {64, 64})}},
               state);
}

}  // namespace heddle::ops::cuda
