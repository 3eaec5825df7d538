#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

// Elementwise, f32 or f64 (CUDA: f32 or bf16), on [T, F] tensors whose rows may be strided (halves
// of a fused projection).

/// The columns of [gate | up].
struct Halves {
  Tensor gate, up;
};
inline Halves halves(const Tensor& gate_up_TG) {
  const std::int64_t width = gate_up_TG.size(1) / 2;
  return {gate_up_TG.slice(1, 0, width), gate_up_TG.slice(1, width, 2 * width)};
}

/// y = silu(gate) * up. y may be gate or up.
void swiglu_forward(const Tensor& gate_TF, const Tensor& up_TF, const Tensor& y_TF, Stream& stream);
/// dgate and dup may be gate and up themselves (in place). y, where it is not absent, receives
/// forward's result again.
void swiglu_backward(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF,
                     const Tensor& dgate_TF, const Tensor& dup_TF, const Tensor& y_TF,
                     Stream& stream);

/// exact: 0.5 x (1 + erf(x / sqrt 2)); tanh: the approximation GPT-2 calls gelu_new.
enum class Gelu { exact, tanh };
/// y may be x.
void gelu_forward(const Tensor& x_TF, Gelu kind, const Tensor& y_TF, Stream& stream);
/// dx may be x or dy; y as above.
void gelu_backward(const Tensor& dy_TF, const Tensor& x_TF, Gelu kind, const Tensor& dx_TF,
                   const Tensor& y_TF, Stream& stream);

/// y = gelu(gate) * up, and its gradients, as those of swiglu.
void geglu_forward(const Tensor& gate_TF, const Tensor& up_TF, Gelu kind, const Tensor& y_TF,
                   Stream& stream);
void geglu_backward(const Tensor& dy_TF, const Tensor& gate_TF, const Tensor& up_TF, Gelu kind,
                    const Tensor& dgate_TF, const Tensor& dup_TF, const Tensor& y_TF,
                    Stream& stream);

/// x becomes cap * tanh(x / cap), in place.
void soft_cap(const Tensor& x_TF, double cap, Stream& stream);
/// dx, the gradient of soft_cap's result y, becomes that of what it was of: times
/// 1 - (y / cap)^2.
void soft_cap_backward(const Tensor& y_TF, double cap, const Tensor& dx_TF, Stream& stream);

}  // namespace heddle::ops
