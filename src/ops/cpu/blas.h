#pragma once

#include <string>

namespace heddle::ops::cpu {

/// OpenBLAS, loaded at run time so that the program starts (and says what is missing) without it.
class Blas {
 public:
  /// Loads the library on first use. Throws Error(resources) where there is none.
  static const Blas& instance();

  // cblas.h: order, transposes and sizes as there.
  enum Order : int { row_major = 101 };
  enum Trans : int { no_trans = 111, trans = 112 };
  using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float* a, int lda, const float* b, int ldb, float beta, float* c,
                         int ldc);
  using Dgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, double alpha,
                         const double* a, int lda, const double* b, int ldb, double beta, double* c,
                         int ldc);

  Sgemm sgemm = nullptr;
  Dgemm dgemm = nullptr;

  /// "OpenBLAS 0.3.21 SkylakeX"
  std::string description() const;

 private:
  Blas();

  using Text = char* (*)();
  Text config_ = nullptr, corename_ = nullptr;
};

}  // namespace heddle::ops::cpu
