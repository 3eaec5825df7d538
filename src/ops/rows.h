#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// The rows that N tensors of equal shape have in common, each with its own strides: leading
/// dimensions that are adjacent in memory in all of them are merged, so that walking rows rarely
/// divides.
template <int N>
class Rows {
 public:
  using Offsets = std::array<std::int64_t, N>;
  enum class Merge { leading, all };  ///< all: contiguous tensors become one long row

  Rows(const std::array<const Tensor*, N>& tensors, Merge merge) {
    const Tensor& first = *tensors[0];
    for (const Tensor* t : tensors) {
      HEDDLE_CHECK(t->shape() == first.shape() && t->dtype() == first.dtype(),
                   "operands {} {} and {} {} differ", name_of(first.dtype()), first.shape().text(),
                   name_of(t->dtype()), t->shape().text());
    }
    if (first.dims() == 0) return;
    length_ = first.size(-1);
    for (int dim = first.dims() - 2; dim >= 0; --dim) prepend(tensors, dim, merge);
  }

  std::int64_t count() const {
    std::int64_t rows = 1;
    for (int level = 0; level < levels_; ++level) rows *= sizes_[level];
    return rows;
  }
  std::int64_t length() const { return length_; }

  // Rows are counted along `levels` dimensions, level 0 the innermost.
  int levels() const { return levels_; }
  std::int64_t size(int level) const { return sizes_[static_cast<std::size_t>(level)]; }
  std::int64_t stride(int level, int n) const {
    return strides_[static_cast<std::size_t>(level)][static_cast<std::size_t>(n)];
  }

  /// Where row `row` starts in each tensor, in elements.
  Offsets offsets(std::int64_t row) const {
    Offsets result{};
    for (int level = 0; level < levels_; ++level) {
      std::int64_t index = row;
      if (level + 1 < levels_) {
        index = row % sizes_[level];
        row /= sizes_[level];
      }
      for (std::size_t n = 0; n < N; ++n) result[n] += index * strides_[level][n];
    }
    return result;
  }

 private:
  void prepend(const std::array<const Tensor*, N>& tensors, int dim, Merge merge) {
    const std::int64_t size = tensors[0]->size(dim);
    if (size == 1) return;
    Offsets strides{};
    for (std::size_t n = 0; n < N; ++n) strides[n] = tensors[n]->stride(dim);
    if (levels_ == 0) {
      bool adjacent = merge == Merge::all;
      for (const std::int64_t stride : strides) adjacent = adjacent && stride == length_;
      if (adjacent) {
        length_ *= size;
        return;
      }
    } else {
      const int top = levels_ - 1;
      bool adjacent = true;
      for (std::size_t n = 0; n < N; ++n) {
        adjacent = adjacent && strides[n] == strides_[top][n] * sizes_[top];
      }
      if (adjacent) {
        sizes_[top] *= size;
        return;
      }
    }
    sizes_[levels_] = size;
    strides_[levels_++] = strides;
  }

  // Level 0 is the innermost.
  std::array<std::int64_t, Shape::kMaxDims> sizes_{};
  std::array<Offsets, Shape::kMaxDims> strides_{};
  int levels_ = 0;
  std::int64_t length_ = 1;
};

}  // namespace heddle::ops
