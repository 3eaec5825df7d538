#pragma once

#include <string>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

enum class Transpose : bool { no = false, yes = true };

struct GemmScale {
  double alpha = 1.0;
  double beta = 0.0;  ///< 1 accumulates into c; with 0, c need not be initialised
};

/// c_MN = alpha * op(a) op(b) + beta * c, where op(a) is M x K and op(b) is K x N.
/// All are two-dimensional, with unit stride in the last dimension; rows may be strided. c overlaps
/// neither input. CPU: f32 or f64, all alike, in OpenBLAS or oneDNN on stream.threads() threads.
/// CUDA: cuBLASLt; f32 (never TF32), or a and b bf16 with c bf16 or f32, summed in f32.
void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
          const Tensor& c, GemmScale scale, Stream& stream);

/// c_MN = op(a) op(b) + bias_N for every row + addend_MN. Bias and addend may be absent and have
/// the dtype of c; the addend's rows may be strided, and it is not c.
void gemm_add(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
              const Tensor& bias_N, const Tensor& addend_MN, const Tensor& c, Stream& stream);

/// gate_up = x w^T, gate in its first half and up in the second, and y = silu(gate) * up
/// (ops/activation.h): gemm and swiglu_forward, in one pass where the device can.
void gemm_swiglu(const Tensor& x_TI, const Tensor& w_GI, const Tensor& gate_up_TG,
                 const Tensor& y_TF, Stream& stream);
/// swiglu_backward of dy = dout w; y receives forward's result again. dgate_up may be gate_up. dy
/// is scratch, and written only where the device cannot do it in one pass.
void gemm_swiglu_backward(const Tensor& dout_TO, const Tensor& w_OF, const Tensor& dy_TF,
                          const Tensor& gate_up_TG, const Tensor& dgate_up_TG, const Tensor& y_TF,
                          Stream& stream);

/// "oneDNN 2.6.3, OpenBLAS 0.3.21 SkylakeX": the libraries and the kernel set chosen, for `doctor`
/// and reports.
std::string gemm_backend(Device device = {});

}  // namespace heddle::ops
