#include "parallel/box.h"

#include <algorithm>

namespace heddle {
namespace {

/// Elements between neighbours in dimension `dim`.
std::int64_t stride_of(const Shape& array, int dim) {
  std::int64_t stride = 1;
  for (int inner = dim + 1; inner < array.dims(); ++inner) stride *= array[inner];
  return stride;
}

/// The largest box at element `at` that is a stretch of at most `left` elements.
Box box_at(const Shape& array, std::int64_t at, std::int64_t left) {
  Box box{array, array};
  bool is_whole = true;  // from here on inwards
  for (int dim = array.dims() - 1; dim >= 0; --dim) {
    const std::int64_t stride = stride_of(array, dim), place = at / stride % array[dim];
    const bool grows = is_whole && at % stride == 0 && left >= stride;
    box.corner.set(dim, place);
    box.extent.set(dim, grows ? std::min(array[dim] - place, left / stride) : 1);
    is_whole = grows && box.extent[dim] == array[dim];
  }
  return box;
}

void visit_stretches(const Tensor& data, const Shape& corner, const Shape& whole, int dim,
                     std::int64_t first,
                     const std::function<void(const Tensor&, std::int64_t)>& visit) {
  const std::int64_t stride = stride_of(whole, dim);
  bool is_whole = data.is_contiguous();
  for (int inner = dim + 1; inner < whole.dims(); ++inner) {
    is_whole = is_whole && data.size(inner - dim) == whole[inner];
  }
  if (is_whole) return visit(data, first + corner[dim] * stride);
  for (std::int64_t i = 0; i < data.size(0); ++i) {
    visit_stretches(data.select(0, i), corner, whole, dim + 1, first + (corner[dim] + i) * stride,
                    visit);
  }
}

}  // namespace

std::vector<Box> boxes_in(const Shape& array, std::int64_t begin, std::int64_t end) {
  std::vector<Box> boxes;
  for (std::int64_t at = begin; at < end;) {
    boxes.push_back(box_at(array, at, end - at));
    at += boxes.back().extent.count();
  }
  return boxes;
}

void for_each_stretch(const Tensor& data, const Shape& corner, const Shape& whole,
                      const std::function<void(const Tensor&, std::int64_t)>& visit) {
  visit_stretches(data, corner, whole, 0, 0, visit);
}

}  // namespace heddle
