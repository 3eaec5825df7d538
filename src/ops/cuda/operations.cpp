#include "ops/backend.h"

namespace heddle::ops {

const Operations& cuda_operations() {
#define HEDDLE_ENTRY(name) .name = cuda::name,
  static constexpr Operations operations{HEDDLE_OPERATIONS(HEDDLE_ENTRY)};
#undef HEDDLE_ENTRY
  return operations;
}

}  // namespace heddle::ops
