#include "ops/gemm.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "ops/cpu/blas.h"
#include "ops/cpu/parallel.h"
#include "ops/elementwise.h"

namespace heddle::ops {
namespace {

/// The number of threads that OpenBLAS will use for calls from this thread: the OpenMP build
/// follows OpenMP's setting, which every calling thread has for itself.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~ThreadCount() { omp_set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

int blas_size(std::int64_t size) {
  HEDDLE_CHECK(size <= std::numeric_limits<int>::max(), "a matrix of {} rows or columns", size);
  return static_cast<int>(size);
}

/// A matrix of one row may have any stride, but BLAS wants at least the width.
int leading(const Tensor& t) {
  return blas_size(std::max({t.stride(0), t.size(1), std::int64_t{1}}));
}

}  // namespace

void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
          const Tensor& c, GemmScale scale, Stream& stream) {
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  HEDDLE_CHECK(a.dims() == 2 && b.dims() == 2 && c.dims() == 2, "gemm of {}, {} into {}",
               a.shape().text(), b.shape().text(), c.shape().text());
  const std::int64_t m = c.size(0), n = c.size(1), k = a.size(ta ? 0 : 1);
  HEDDLE_CHECK(a.size(ta ? 1 : 0) == m && b.size(tb ? 1 : 0) == k && b.size(tb ? 0 : 1) == n,
               "gemm of {}{}, {}{} into {}", a.shape().text(), ta ? "^T" : "", b.shape().text(),
               tb ? "^T" : "", c.shape().text());
  HEDDLE_CHECK(a.dtype() == c.dtype() && b.dtype() == c.dtype(), "gemm of {}, {} into {}",
               name_of(a.dtype()), name_of(b.dtype()), name_of(c.dtype()));
  if (m == 0 || n == 0 || stream.is_dry()) return;
  if (k == 0 || scale.alpha == 0.0) {
    if (scale.beta == 0.0) {
      fill(c, 0.0, stream);
    } else {
      ops::scale(c, scale.beta, stream);
    }
    return;
  }
  const auto& blas = cpu::Blas::instance();
  const ThreadCount threads(stream.threads());
  const auto call = [&](auto function, auto zero) {
    using T = decltype(zero);
    function(cpu::Blas::row_major, ta ? cpu::Blas::trans : cpu::Blas::no_trans,
             tb ? cpu::Blas::trans : cpu::Blas::no_trans, blas_size(m), blas_size(n), blas_size(k),
             static_cast<T>(scale.alpha), a.data<T>(), leading(a), b.data<T>(), leading(b),
             static_cast<T>(scale.beta), c.data<T>(), leading(c));
  };
  if (c.dtype() == DType::f32) {
    call(blas.sgemm, float{});
  } else {
    call(blas.dgemm, double{});
  }
}

std::string gemm_backend() { return cpu::Blas::instance().description(); }

}  // namespace heddle::ops
