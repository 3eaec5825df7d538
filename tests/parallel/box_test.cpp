#include "parallel/box.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tensor/memory.h"

namespace heddle {
namespace {

std::string text(const std::vector<Box>& boxes) {
  std::string all;
  for (const auto& [corner, extent] : boxes) all += corner.text() + "+" + extent.text() + " ";
  return all;
}

TEST(Boxes, OfAMatrixAreTheEndOfARowRowsAndTheBeginningOfOne) {
  EXPECT_EQ(text(boxes_in({4, 5}, 3, 17)), "[0, 3]+[1, 2] [1, 0]+[2, 5] [3, 0]+[1, 2] ");
  EXPECT_EQ(text(boxes_in({4, 5}, 0, 20)), "[0, 0]+[4, 5] ");
  EXPECT_EQ(text(boxes_in({4, 5}, 6, 8)), "[1, 1]+[1, 2] ");
  EXPECT_EQ(text(boxes_in({9}, 2, 5)), "[2]+[3] ");
}

/// Every stretch of an array of any dimensions: its boxes have its elements, in order.
TEST(Boxes, OfAnyArrayHoldTheStretchInOrder) {
  for (const Shape& array : {Shape{24}, Shape{4, 6}, Shape{2, 3, 4}, Shape{3, 1, 2, 4}}) {
    for (std::int64_t begin = 0; begin < array.count(); ++begin) {
      for (std::int64_t end = begin; end <= array.count(); ++end) {
        std::int64_t at = begin;
        for (const auto& [corner, extent] : boxes_in(array, begin, end)) {
          std::int64_t first = 0;
          for (int dim = 0; dim < array.dims(); ++dim) {
            ASSERT_LE(corner[dim] + extent[dim], array[dim]);
            first = first * array[dim] + corner[dim];
          }
          ASSERT_EQ(first, at);
          at += extent.count();
        }
        ASSERT_EQ(at, end);
      }
    }
  }
}

TEST(Stretches, OfABoxSayWhereTheyLieInTheArray) {
  Memory memory;
  const Tensor array = memory.alloc({3, 4, 5}, DType::i32, MemoryTag::workspace);
  std::iota(array.host<std::int32_t>().begin(), array.host<std::int32_t>().end(), 0);
  const auto visit = [&](const Tensor& data, const Shape& corner) {
    int stretches = 0;
    for_each_stretch(data, corner, array.shape(), [&](const Tensor& stretch, std::int64_t first) {
      ++stretches;
      for (const std::int32_t value : stretch.host<std::int32_t>()) EXPECT_EQ(value, first++);
    });
    return stretches;
  };
  EXPECT_EQ(visit(array, {0, 0, 0}), 1);
  EXPECT_EQ(visit(array.slice(0, 1, 3), {1, 0, 0}), 1);
  EXPECT_EQ(visit(array.slice(1, 1, 3), {0, 1, 0}), 3);
  EXPECT_EQ(visit(array.slice(2, 1, 4), {0, 0, 1}), 12);
}

}  // namespace
}  // namespace heddle
