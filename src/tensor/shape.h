#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace heddle {

/// The sizes of a tensor's dimensions: at most six, held inline, no negative sizes.
class Shape {
 public:
  static constexpr int kMaxDims = 6;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes);
  explicit Shape(std::span<const std::int64_t> sizes);

  int dims() const { return dims_; }
  std::int64_t operator[](int dim) const { return sizes_[static_cast<std::size_t>(index(dim))]; }
  void set(int dim, std::int64_t size) { sizes_[static_cast<std::size_t>(index(dim))] = size; }
  /// Product of all sizes; 1 for a scalar.
  std::int64_t count() const;
  std::span<const std::int64_t> sizes() const {
    return {sizes_.data(), static_cast<std::size_t>(dims_)};
  }
  /// "[4, 512, 768]"
  std::string text() const;

  friend bool operator==(const Shape& a, const Shape& b);

 private:
  /// Negative dims count from the back.
  int index(int dim) const;

  std::array<std::int64_t, kMaxDims> sizes_{};
  int dims_ = 0;
};

}  // namespace heddle
