#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"

namespace heddle {
namespace {

Tensor iota(Memory& memory, const Shape& shape) {
  Tensor t = memory.alloc(shape, DType::f32, MemoryTag::workspace);
  std::iota(t.host<float>().begin(), t.host<float>().end(), 0.0F);
  return t;
}

TEST(Tensor, SliceAndSelectAreViews) {
  Memory memory;
  const Tensor t = iota(memory, {2, 3, 4});
  const Tensor s = t.slice(1, 1, 3);
  EXPECT_EQ(s.shape(), (Shape{2, 2, 4}));
  EXPECT_EQ(s.data<float>()[0], 4.0F);
  EXPECT_FALSE(s.is_contiguous());
  const Tensor row = t.select(0, 1).select(0, 2);
  EXPECT_EQ(row.host<float>()[3], 23.0F);
}

TEST(Tensor, ViewSplitsStridedDimensions) {
  Memory memory;
  const Tensor fused = iota(memory, {5, 12});
  const Tensor q = fused.slice(1, 4, 8).view({5, 2, 2});
  EXPECT_EQ(q.stride(0), 12);
  EXPECT_EQ(q.stride(1), 2);
  EXPECT_EQ(q.data<float>()[0], 4.0F);
  const Tensor batched = q.view({1, 5, 2, 2});
  EXPECT_EQ(batched.stride(1), 12);
}

TEST(Tensor, ViewRefusesToCopy) {
  Memory memory;
  const Tensor half = iota(memory, {4, 6}).slice(1, 0, 3);
  EXPECT_THROW(half.view({12}), Error);
  EXPECT_THROW(half.view({5}), Error);
  EXPECT_THROW(half.host<float>(), Error);
  EXPECT_THROW(half.data<double>(), Error);
}

}  // namespace
}  // namespace heddle
