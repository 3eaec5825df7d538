#include "ops/cpu/openmp.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include "base/error.h"

namespace heddle::ops::cpu {
namespace {

constexpr const char* kLibrary = "libgomp.so.1";
constexpr const char* kHint = "install the package libgomp1";

template <class Function>
void resolve(void* library, const char* name, Function& function) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) {
    throw Error(ErrorCode::resources, fmt::format("{} has no function {}", kLibrary, name), kHint);
  }
  function = reinterpret_cast<Function>(symbol);
}

}  // namespace

const OpenMp& OpenMp::instance() {
  static const OpenMp openmp;
  return openmp;
}

OpenMp::OpenMp() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // open until the program ends
  if (library == nullptr) {
    throw Error(ErrorCode::resources, fmt::format("cannot load OpenMP: {}", dlerror()), kHint);
  }
  resolve(library, "GOMP_parallel", parallel_);
  resolve(library, "omp_get_thread_num", get_thread_num);
  resolve(library, "omp_get_num_threads", get_num_threads);
  resolve(library, "omp_get_max_threads", get_max_threads);
  resolve(library, "omp_get_thread_limit", get_thread_limit);
  resolve(library, "omp_get_dynamic", get_dynamic);
  resolve(library, "omp_set_num_threads", set_num_threads);
  resolve(library, "omp_set_dynamic", set_dynamic);
}

}  // namespace heddle::ops::cpu
