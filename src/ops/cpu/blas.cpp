#include "ops/cpu/blas.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>
#include <sstream>

#include "base/error.h"

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

}  // namespace

const Blas& Blas::instance() {
  static const Blas blas;
  return blas;
}

Blas::Blas() {
  void* const library = load();  // stays loaded until the program ends
  sgemm = resolve<Sgemm>(library, "cblas_sgemm");
  dgemm = resolve<Dgemm>(library, "cblas_dgemm");
  config_ = resolve<Text>(library, "openblas_get_config");
  corename_ = resolve<Text>(library, "openblas_get_corename");
}

std::string Blas::description() const {
  std::istringstream config(config_());  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
  std::string name, version;
  config >> name >> version;
  return fmt::format("{} {} {}", name, version, corename_());
}

}  // namespace heddle::ops::cpu
