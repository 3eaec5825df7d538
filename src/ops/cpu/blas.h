#pragma once

#include <mutex>
#include <shared_mutex>
#include <string>

namespace heddle::ops::cpu {

/// The matrix products of OpenBLAS and, where it is installed, the faster single-precision one of
/// oneDNN (docs/design/007-onednn-for-sgemm.md). Loaded at run time, so that the program starts
/// (and says what is missing) without them.
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
  using Sgemv = void (*)(int order, int trans, int m, int n, float alpha, const float* a, int lda,
                         const float* x, int incx, float beta, float* y, int incy);
  using Dgemv = void (*)(int order, int trans, int m, int n, double alpha, const double* a, int lda,
                         const double* x, int incx, double beta, double* y, int incy);

  Sgemm sgemm = nullptr;
  Dgemm dgemm = nullptr;
  Sgemv sgemv = nullptr;
  Dgemv dgemv = nullptr;

  /// "oneDNN 2.6.3, OpenBLAS 0.3.21 SkylakeX"
  std::string description() const;

  /// While one lives, calls from this thread run on `wanted` threads, or as many as OpenMP is
  /// allowed. Threads may call at the same time, each with its own number.
  class Team {
   public:
    Team(const Blas& blas, int wanted);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

   private:
    int before_;
    bool was_dynamic_;
    std::shared_lock<std::shared_mutex> with_others_;
    std::unique_lock<std::shared_mutex> alone_;
  };

 private:
  Blas();

  void use_one_dnn();

  using Text = char* (*)();
  Text config_ = nullptr, corename_ = nullptr;
  std::string one_dnn_;  // its version; empty without it
  mutable std::shared_mutex team_mutex_;
  mutable int team_size_ = 0;  // the last one above 1
};

}  // namespace heddle::ops::cpu
