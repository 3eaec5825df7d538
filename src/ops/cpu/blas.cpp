#include "ops/cpu/blas.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <sstream>

#include "base/check.h"
#include "base/error.h"
#include "ops/cpu/openmp.h"

namespace heddle::ops::cpu {
namespace {

constexpr const char* kLibrary = "libopenblas.so.0";
constexpr const char* kCoreType = "OPENBLAS_CORETYPE";
constexpr const char* kHint = "install the package libopenblas0-openmp";

/// The kernel set for this processor, or nullptr to let OpenBLAS choose. OpenBLAS knows processors
/// by model number and gives the ones newer than itself kernels without AVX, several times slower;
/// the instructions the processor has are what matters.
const char* kernels_for_processor() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return "SkylakeX";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return __builtin_cpu_is("amd") ? "Zen" : "Haswell";
  }
#endif
  return nullptr;
}

/// The environment is how OpenBLAS is told its kernels, and it reads it while it is loaded. A
/// choice of the user's stands.
void* load() {
  const char* const kernels = kernels_for_processor();
  const bool choose = kernels != nullptr && std::getenv(kCoreType) == nullptr;
  if (choose) setenv(kCoreType, kernels, 1);
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (choose) unsetenv(kCoreType);
  if (library == nullptr) {
    throw Error(ErrorCode::resources, fmt::format("cannot load OpenBLAS: {}", dlerror()), kHint);
  }
  return library;
}

template <class Function>
Function resolve(void* library, const char* name) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) {
    throw Error(ErrorCode::resources, fmt::format("{} has no function {}", kLibrary, name), kHint);
  }
  return reinterpret_cast<Function>(symbol);
}

// oneDNN's C interface (dnnl.h), as far as it is used: row-major, sizes of 64 bits.
using OneDnnSgemm = int (*)(char trans_a, char trans_b, std::int64_t m, std::int64_t n,
                            std::int64_t k, float alpha, const float* a, std::int64_t lda,
                            const float* b, std::int64_t ldb, float beta, float* c,
                            std::int64_t ldc);
struct OneDnnVersion {
  int major, minor, patch;
};

constexpr const char* kOneDnn = "libdnnl.so.2";

/// The library's function, or nullptr where it is not installed. Loaded once.
template <class Function>
Function one_dnn_function(const char* name) {
  static void* const library = dlopen(kOneDnn, RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

/// oneDNN's product with the signature of cblas_sgemm.
void one_dnn_sgemm(int, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a,
                   int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  static const OneDnnSgemm sgemm = one_dnn_function<OneDnnSgemm>("dnnl_sgemm");
  const auto letter = [](int trans) { return trans == Blas::trans ? 'T' : 'N'; };
  const int status =
      sgemm(letter(trans_a), letter(trans_b), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  HEDDLE_CHECK(status == 0, "oneDNN answers {} to a product of {} x {} x {}", status, m, n, k);
}

}  // namespace

const Blas& Blas::instance() {
  static const Blas blas;
  return blas;
}

Blas::Blas() {
  void* const library = load();  // stays loaded until the program ends
  sgemm = resolve<Sgemm>(library, "cblas_sgemm");
  dgemm = resolve<Dgemm>(library, "cblas_dgemm");
  sgemv = resolve<Sgemv>(library, "cblas_sgemv");
  dgemv = resolve<Dgemv>(library, "cblas_dgemv");
  config_ = resolve<Text>(library, "openblas_get_config");
  corename_ = resolve<Text>(library, "openblas_get_corename");
  use_one_dnn();
}

/// Only where it has vector kernels of its own; elsewhere OpenBLAS stays.
void Blas::use_one_dnn() {
  if (kernels_for_processor() == nullptr || one_dnn_function<OneDnnSgemm>("dnnl_sgemm") == nullptr)
    return;
  sgemm = one_dnn_sgemm;
  const auto* const version = one_dnn_function<const OneDnnVersion* (*)()>("dnnl_version")();
  one_dnn_ = fmt::format("oneDNN {}.{}.{}, ", version->major, version->minor, version->patch);
}

// The OpenMP build follows OpenMP's number of threads, which every calling thread has for itself.
// But the buffers of its team are common to all callers and are exchanged when a call has another
// number than the call before: no other call may be under way then. Calls on one thread do not use
// them.
// A team must be as large as was asked for: libraries share out the work before they see it, and
// what absent threads should do stays undone. So a smaller limit of the environment
// (OMP_THREAD_LIMIT) is asked for instead, and OpenMP may not choose by itself (OMP_DYNAMIC).
Blas::Team::Team(const Blas& blas, int wanted)
    : before_(OpenMp::instance().get_max_threads()),
      was_dynamic_(OpenMp::instance().get_dynamic() != 0),
      with_others_(blas.team_mutex_, std::defer_lock),
      alone_(blas.team_mutex_, std::defer_lock) {
  const OpenMp& openmp = OpenMp::instance();
  const int threads = std::min(wanted, openmp.get_thread_limit());
  if (was_dynamic_) openmp.set_dynamic(0);
  if (threads > 1) {
    with_others_.lock();
    if (blas.team_size_ != threads) {
      with_others_.unlock();
      alone_.lock();
      blas.team_size_ = threads;
    }
  }
  if (threads != before_) openmp.set_num_threads(threads);
}

Blas::Team::~Team() {
  OpenMp::instance().set_num_threads(before_);
  if (was_dynamic_) OpenMp::instance().set_dynamic(1);
}

std::string Blas::description() const {
  std::istringstream config(config_());  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
  std::string name, version;
  config >> name >> version;
  return fmt::format("{}{} {} {}", one_dnn_, name, version, corename_());
}

}  // namespace heddle::ops::cpu
