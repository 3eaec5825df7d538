#include "tensor/tensor.h"

#include <vector>

#include "base/check.h"

namespace heddle {
namespace {

Shape row_major_strides(const Shape& shape) {
  Shape strides = shape;
  std::int64_t stride = 1;
  for (int dim = shape.dims() - 1; dim >= 0; --dim) {
    strides.set(dim, stride);
    stride *= shape[dim];
  }
  return strides;
}

}  // namespace

Tensor::Tensor(std::shared_ptr<std::byte> storage, std::int64_t offset, const Shape& shape,
               DType dtype, Device device)
    : storage_(std::move(storage)),
      offset_(offset),
      shape_(shape),
      strides_(row_major_strides(shape)),
      dtype_(dtype),
      device_(device) {}

bool Tensor::is_contiguous() const {
  std::int64_t stride = 1;
  for (int dim = dims() - 1; dim >= 0; --dim) {
    if (shape_[dim] != 1 && strides_[dim] != stride) return false;
    stride *= shape_[dim];
  }
  return true;
}

Tensor Tensor::slice(int dim, std::int64_t begin, std::int64_t end) const {
  HEDDLE_CHECK(0 <= begin && begin <= end && end <= size(dim),
               "slice [{}, {}) of dimension {} of {}", begin, end, dim, shape_.text());
  Tensor view = *this;
  view.offset_ += begin * strides_[dim];
  view.shape_.set(dim, end - begin);
  return view;
}

Tensor Tensor::box(const Shape& begin, const Shape& extent) const {
  Tensor result = *this;
  for (int dim = 0; dim < dims(); ++dim) {
    result = result.slice(dim, begin[dim], begin[dim] + extent[dim]);
  }
  return result;
}

Tensor Tensor::select(int dim, std::int64_t at) const {
  const int index = dim < 0 ? dim + dims() : dim;
  HEDDLE_CHECK(index < dims() - 1, "select of the last dimension of {}", shape_.text());
  HEDDLE_CHECK(0 <= at && at < size(index), "index {} of dimension {} of {}", at, index,
               shape_.text());
  std::vector<std::int64_t> sizes, strides;
  for (int d = 0; d < dims(); ++d) {
    if (d == index) continue;
    sizes.push_back(shape_[d]);
    strides.push_back(strides_[d]);
  }
  Tensor view = *this;
  view.offset_ += at * strides_[index];
  view.shape_ = Shape(sizes);
  view.strides_ = Shape(strides);
  return view;
}

Tensor Tensor::view(const Shape& shape) const {
  HEDDLE_CHECK(shape.count() == count(), "view of {} as {}", shape_.text(), shape.text());
  Tensor result = *this;
  result.shape_ = shape;
  result.strides_ = row_major_strides(shape);
  if (is_contiguous() || count() == 0) return result;
  // Match groups of old and new dimensions with equal products, from the back. Inside a group the
  // old dimensions must be adjacent in memory; the new ones then divide the group's span.
  int old_dim = dims() - 1, new_dim = shape.dims() - 1;
  while (old_dim >= 0 && new_dim >= 0) {
    std::int64_t old_product = shape_[old_dim], new_product = shape[new_dim];
    const std::int64_t group_stride = strides_[old_dim];
    int old_first = old_dim, new_first = new_dim;
    while (old_product != new_product) {
      if (old_product < new_product) {
        --old_first;
        HEDDLE_CHECK(strides_[old_first] == strides_[old_first + 1] * shape_[old_first + 1],
                     "view of a strided {} as {} would copy", shape_.text(), shape.text());
        old_product *= shape_[old_first];
      } else {
        --new_first;
        new_product *= shape[new_first];
      }
    }
    std::int64_t stride = group_stride;
    for (int dim = new_dim; dim >= new_first; --dim) {
      result.strides_.set(dim, stride);
      stride *= shape[dim];
    }
    old_dim = old_first - 1;
    new_dim = new_first - 1;
  }
  return result;
}

std::byte* Tensor::bytes() const {
  HEDDLE_CHECK(defined(), "use of an absent tensor");
  return storage_.get() + offset_ * static_cast<std::int64_t>(size_of(dtype_));
}

void Tensor::require(DType dtype) const {
  HEDDLE_CHECK(dtype == dtype_, "a {} tensor read as {}", name_of(dtype_), name_of(dtype));
}

void Tensor::require_contiguous_host() const {
  HEDDLE_CHECK(device_.kind == Device::Kind::cpu, "host access to device memory");
  HEDDLE_CHECK(is_contiguous(), "host access to a strided tensor of shape {}", shape_.text());
}

}  // namespace heddle
