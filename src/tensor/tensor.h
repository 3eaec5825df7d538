#pragma once

#include <memory>
#include <span>

#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/memory.h"
#include "tensor/shape.h"

namespace heddle {

/// A cheap view of typed, shared bytes: shape and strides, row-major. Copying copies the view, not
/// the data. Views made by slice and select may be strided; the last dimension always has stride 1.
class Tensor {
 public:
  /// An absent tensor: defined() is false and nothing else may be called.
  Tensor() = default;
  /// A contiguous view over `storage`, starting `offset` elements in. `storage` keeps the bytes
  /// alive.
  Tensor(std::shared_ptr<std::byte> storage, std::int64_t offset, const Shape& shape, DType dtype,
         Device device = {});

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  std::int64_t size(int dim) const { return shape_[dim]; }
  std::int64_t stride(int dim) const { return strides_[dim]; }
  int dims() const { return shape_.dims(); }
  std::int64_t count() const { return shape_.count(); }
  std::size_t size_bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  bool is_contiguous() const;

  /// [begin, end) of dimension `dim`; never copies.
  Tensor slice(int dim, std::int64_t begin, std::int64_t end) const;
  /// [begin, begin + extent) of every dimension; never copies.
  Tensor box(const Shape& begin, const Shape& extent) const;
  /// Index `at` of dimension `dim`, which disappears. `dim` is not the last.
  Tensor select(int dim, std::int64_t at) const;
  /// The same elements with other sizes. Any tensor may split dimensions; joining dimensions needs
  /// them to be adjacent in memory. Fails where it would have to copy.
  Tensor view(const Shape& shape) const;

  /// First element; T must match dtype().
  template <class T>
  T* data() const {
    require(DTypeOf<T>::value);
    return reinterpret_cast<T*>(bytes());
  }
  /// All elements of a contiguous tensor in host memory.
  template <class T>
  std::span<T> host() const {
    require_contiguous_host();
    return {data<T>(), static_cast<std::size_t>(count())};
  }
  std::byte* bytes() const;

 private:
  void require(DType dtype) const;
  void require_contiguous_host() const;

  std::shared_ptr<std::byte> storage_;
  std::int64_t offset_ = 0;  // in elements
  Shape shape_, strides_;
  DType dtype_ = DType::f32;
  Device device_;
};

}  // namespace heddle
