#include "ops/gemm.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "ops/backend.h"
#include "ops/cpu/blas.h"

namespace heddle::ops::cpu {
namespace {

int blas_size(std::int64_t size) {
  HEDDLE_CHECK(size <= std::numeric_limits<int>::max(), "a matrix of {} rows or columns", size);
  return static_cast<int>(size);
}

/// A matrix of one row may have any stride, but BLAS wants at least the width.
int leading(const Tensor& t) {
  return blas_size(std::max({t.stride(0), t.size(1), std::int64_t{1}}));
}

int blas_trans(Transpose transpose) {
  return transpose == Transpose::yes ? Blas::trans : Blas::no_trans;
}

/// The distance between the elements of op(t), which is one row (`is_row`) or one column.
int step(const Tensor& t, Transpose transpose, bool is_row) {
  return is_row == (transpose == Transpose::no) ? 1 : leading(t);
}

/// y = alpha * op(matrix) x + beta * y for the products whose result is one row or column: several
/// times faster than a general product, which first copies the matrix into blocks.
template <class T, class Gemv>
void multiply_vector(Gemv gemv, const Tensor& matrix, int trans, const T* x, int x_step, T* y,
                     int y_step, GemmScale scale) {
  gemv(Blas::row_major, trans, blas_size(matrix.size(0)), blas_size(matrix.size(1)),
       static_cast<T>(scale.alpha), matrix.data<T>(), leading(matrix), x, x_step,
       static_cast<T>(scale.beta), y, y_step);
}

template <class T, class Gemm, class Gemv>
void multiply(Gemm gemm, Gemv gemv, const Tensor& a, Transpose ta, const Tensor& b, Transpose tb,
              const Tensor& c, GemmScale scale) {
  if (c.size(0) == 1) {  // c^T = op(b)^T op(a)^T
    const int trans = tb == Transpose::yes ? Blas::no_trans : Blas::trans;
    multiply_vector<T>(gemv, b, trans, a.data<T>(), step(a, ta, true), c.data<T>(), 1, scale);
  } else if (c.size(1) == 1) {
    multiply_vector<T>(gemv, a, blas_trans(ta), b.data<T>(), step(b, tb, false), c.data<T>(),
                       leading(c), scale);
  } else {
    gemm(Blas::row_major, blas_trans(ta), blas_trans(tb), blas_size(c.size(0)),
         blas_size(c.size(1)), blas_size(a.size(ta == Transpose::yes ? 0 : 1)),
         static_cast<T>(scale.alpha), a.data<T>(), leading(a), b.data<T>(), leading(b),
         static_cast<T>(scale.beta), c.data<T>(), leading(c));
  }
}

}  // namespace

void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
          const Tensor& c, GemmScale scale, Stream& stream) {
  const std::int64_t m = c.size(0), n = c.size(1);
  const std::int64_t k = a.size(transpose_a == Transpose::yes ? 0 : 1);
  if (m == 0 || n == 0) return;
  if (k == 0 || scale.alpha == 0.0) {
    if (scale.beta == 0.0) {
      fill(c, 0.0, stream);
    } else {
      cpu::scale(c, scale.beta, stream);
    }
    return;
  }
  const auto& blas = Blas::instance();
  // Whatever stands in c (NaN, say) is not to be multiplied by 0.
  if (scale.beta == 0.0 && (m == 1 || n == 1)) fill(c, 0.0, stream);
  const Blas::Team team(blas, stream.threads());
  if (c.dtype() == DType::f32) {
    multiply<float>(blas.sgemm, blas.sgemv, a, transpose_a, b, transpose_b, c, scale);
  } else {
    multiply<double>(blas.dgemm, blas.dgemv, a, transpose_a, b, transpose_b, c, scale);
  }
}

void gemm_add(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
              const Tensor& bias_N, const Tensor& addend_MN, const Tensor& c, Stream& stream) {
  cpu::gemm(a, transpose_a, b, transpose_b, c, {}, stream);
  if (bias_N.defined()) add_bias(c, bias_N, stream);
  if (addend_MN.defined()) accumulate(addend_MN, c, stream);
}

void gemm_swiglu(const Tensor& x_TI, const Tensor& w_GI, const Tensor& gate_up_TG,
                 const Tensor& y_TF, Stream& stream) {
  cpu::gemm(x_TI, Transpose::no, w_GI, Transpose::yes, gate_up_TG, {}, stream);
  const auto [gate_TF, up_TF] = halves(gate_up_TG);
  swiglu_forward(gate_TF, up_TF, y_TF, stream);
}

void gemm_swiglu_backward(const Tensor& dout_TO, const Tensor& w_OF, const Tensor& dy_TF,
                          const Tensor& gate_up_TG, const Tensor& dgate_up_TG, const Tensor& y_TF,
                          Stream& stream) {
  cpu::gemm(dout_TO, Transpose::no, w_OF, Transpose::no, dy_TF, {}, stream);
  const auto [gate_TF, up_TF] = halves(gate_up_TG);
  const auto [dgate_TF, dup_TF] = halves(dgate_up_TG);
  swiglu_backward(dy_TF, gate_TF, up_TF, dgate_TF, dup_TF, y_TF, stream);
}

std::string gemm_backend(Device) { return Blas::instance().description(); }

}  // namespace heddle::ops::cpu
