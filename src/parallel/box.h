#pragma once

#include <functional>
#include <vector>

#include "tensor/tensor.h"

namespace heddle {

/// A box of an array.
struct Box {
  Shape corner;  ///< its first element
  Shape extent;
};

/// The boxes that elements [begin, end) of an array are made of, in their order: of a matrix the
/// end of a row, whole rows, and the beginning of a row.
std::vector<Box> boxes_in(const Shape& array, std::int64_t begin, std::int64_t end);

/// Calls visit(stretch, number of its first element in the whole array) for the stretches of `data`
/// that are stretches of the array too; `data` is the box of it that begins at `corner`.
void for_each_stretch(const Tensor& data, const Shape& corner, const Shape& whole,
                      const std::function<void(const Tensor&, std::int64_t)>& visit);

}  // namespace heddle
