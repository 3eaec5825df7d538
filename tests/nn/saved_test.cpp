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

TEST(Parameter, PartsAreBoxesOfTheWhole) {
  Memory memory;
  Parameter p;
  // Rows 5 to 7 of "q", and column 2 of "k" beside its row 8 and above one row of padding.
  p.parts = {{"q", {9, 2}, {5, 0}, {0, 0}, {2, 2}}, {"k", {9, 3}, {8, 2}, {2, 1}, {1, 1}}};
  p.shape = {4, 2};
  p.value = memory.zeros(p.shape, DType::f64, MemoryTag::parameters);
  for (std::size_t i = 0; i < 8; ++i) p.value.host<double>()[i] = static_cast<double>(i);
  const Tensor q = p.value.box(p.parts[0].at, p.parts[0].extent);
  const Tensor k = p.value.box(p.parts[1].at, p.parts[1].extent);
  EXPECT_EQ(q.shape(), Shape({2, 2}));
  EXPECT_EQ(q.host<double>()[3], 3.0);
  EXPECT_EQ(k.shape(), Shape({1, 1}));
  EXPECT_EQ(*k.data<double>(), 5.0);
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
