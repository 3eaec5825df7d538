#include "ops/cuda/run_time_library.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace heddle::ops::cuda {

void* library_function(const char* library, const char* function, const char* hint) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* const found = handle != nullptr ? dlsym(handle, function) : nullptr;
  if (found == nullptr) {
    throw Error(ErrorCode::resources,
                std::string("device cuda needs ") + library + ": " + dlerror(), hint);
  }
  return found;
}

}  // namespace heddle::ops::cuda
