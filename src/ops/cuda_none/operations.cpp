#include "base/error.h"
#include "ops/backend.h"

namespace heddle::ops {

const Operations& cuda_operations() {
  throw Error(ErrorCode::resources, "this heddle was built without CUDA",
              "use run.device = \"cpu\", or build where the CUDA toolkit is installed");
}

}  // namespace heddle::ops
