#include "tensor/shape.h"

#include <algorithm>

#include "base/check.h"

namespace heddle {

Shape::Shape(std::initializer_list<std::int64_t> sizes)
    : Shape(std::span(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const std::int64_t> sizes) : dims_(static_cast<int>(sizes.size())) {
  HEDDLE_CHECK(dims_ <= kMaxDims, "a tensor of {} dimensions", dims_);
  for (const auto size : sizes) HEDDLE_CHECK(size >= 0, "a dimension of size {}", size);
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
}

std::int64_t Shape::count() const {
  std::int64_t product = 1;
  for (const auto size : sizes()) product *= size;
  return product;
}

std::string Shape::text() const {
  std::string text = "[";
  for (int dim = 0; dim < dims_; ++dim) {
    if (dim > 0) text += ", ";
    text += std::to_string((*this)[dim]);
  }
  return text + "]";
}

int Shape::index(int dim) const {
  const int at = dim < 0 ? dim + dims_ : dim;
  HEDDLE_CHECK(at >= 0 && at < dims_, "dimension {} of shape {}", dim, text());
  return at;
}

bool operator==(const Shape& a, const Shape& b) { return std::ranges::equal(a.sizes(), b.sizes()); }

}  // namespace heddle
