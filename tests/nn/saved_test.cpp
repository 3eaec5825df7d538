#include "nn/saved.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "nn/parameter.h"
#include "tensor/memory.h"

namespace heddle {
namespace {

Tensor doubles(std::int64_t count, Memory& memory) {
  return memory.zeros({count}, DType::f64, MemoryTag::activations);
}

TEST(Saved, CountsATensorThatIsPutTwiceOnce) {
  Memory memory;
  const Tensor shared = doubles(5, memory), other = doubles(3, memory);
  Saved saved;
  saved.put(0, shared);
  saved.child(0).put(0, shared);
  saved.child(2).put(1, other);
  EXPECT_EQ(saved.size_bytes(), 8u * 8u);
}

TEST(Saved, IsEmptyOnlyWhenItsChildrenAre) {
  Memory memory;
  Saved saved;
  EXPECT_TRUE(saved.empty());
  saved.child(3).put(0, doubles(1, memory));
  EXPECT_FALSE(saved.empty());
  saved.child(3).take(0);
  EXPECT_TRUE(saved.empty());
}

TEST(Saved, RefusesASlotThatIsPutTwiceOrTakenWithoutBeingPut) {
  Memory memory;
  Saved saved;
  EXPECT_THROW(saved.take(0), Error);
  EXPECT_THROW(saved.get(0), Error);
  saved.put(0, doubles(1, memory));
  EXPECT_THROW(saved.put(0, doubles(1, memory)), Error);
  saved.take(0);
  EXPECT_FALSE(saved.has(0));
}

TEST(Parameter, PartsAreRowsOfTheWhole) {
  Memory memory;
  Parameter p;
  p.parts = {{"q", 3}, {"k", 1}};
  p.shape = {4, 2};
  p.value = memory.zeros(p.shape, DType::f64, MemoryTag::parameters);
  for (std::size_t i = 0; i < 8; ++i) p.value.host<double>()[i] = static_cast<double>(i);
  const Tensor k = p.part_of(p.value, 1);
  EXPECT_EQ(k.shape(), Shape({1, 2}));
  EXPECT_EQ(p.part_shape(1), Shape({1, 2}));
  EXPECT_EQ(k.host<double>()[0], 6.0);
}

TEST(Parameter, GradientIsOverwrittenByTheFirstContributionOfAStepOnly) {
  Parameter p;
  EXPECT_EQ(p.claim_grad(), 0.0);
  EXPECT_EQ(p.claim_grad(), 1.0);
  p.retire_grad();
  EXPECT_EQ(p.claim_grad(), 0.0);
}

}  // namespace
}  // namespace heddle
