#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nn/parameter.h"

namespace heddle {

inline Shape origin_of(Shape shape) {
  for (int dim = 0; dim < shape.dims(); ++dim) shape.set(dim, 0);
  return shape;
}

/// A parameter that is one whole tensor, alike on all tp ranks.
inline std::shared_ptr<Parameter> parameter(const std::string& name, const Shape& shape,
                                            Init init = {}) {
  auto made = std::make_shared<Parameter>();
  made->parts = {{name, shape, origin_of(shape), origin_of(shape), shape}};
  made->shape = shape;
  made->layout = whole_on_stage();
  made->init = init;
  return made;
}

/// Whole tensors of so many rows each, one below the other.
inline std::shared_ptr<Parameter> stacked(
    const std::vector<std::pair<std::string, std::int64_t>>& rows, const Shape& shape,
    Init init = {}) {
  auto made = std::make_shared<Parameter>();
  made->shape = shape;
  made->layout = whole_on_stage();
  made->init = init;
  Shape at = origin_of(shape);
  for (const auto& [name, count] : rows) {
    Shape whole = shape;
    whole.set(0, count);
    made->parts.push_back({name, whole, origin_of(shape), at, whole});
    at.set(0, at[0] + count);
  }
  return made;
}

}  // namespace heddle
