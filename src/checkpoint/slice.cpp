#include "checkpoint/slice.h"

namespace heddle {

SliceEntry whole_entry(std::string name, const Tensor& data) {
  const auto sizes = data.shape().sizes();
  return {.name = std::move(name),
          .global_shape = data.shape(),
          .begin = std::vector<std::int64_t>(sizes.size(), 0),
          .end = {sizes.begin(), sizes.end()},
          .data = data};
}

}  // namespace heddle
