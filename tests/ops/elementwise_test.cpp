#include "ops/elementwise.h"

#include "base/error.h"
#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

TEST(Elementwise, AgreesWithTheScalarOperationsOnStridedTensors) {
  for (const DType dtype : kFloats) {
    for (const auto [rows, n] : kSizes) {
      const Padded a(random_tensor({rows, n}, dtype, 1)), b(random_tensor({rows, n}, dtype, 2));
      const auto va = values(a.view), vb = values(b.view);
      auto sum = va, half = va;
      for (std::size_t i = 0; i < va.size(); ++i) {
        sum[i] = va[i] + vb[i];
        half[i] = va[i] * 0.5;
      }
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Padded added(a.view), grown(a.view), scaled(a.view), copied(b.view), filled(b.view);
        add(a.view, b.view, added.view, stream);
        accumulate(b.view, grown.view, stream);
        scale(scaled.view, 0.5, stream);
        copy(a.view, copied.view, stream);
        fill(filled.view, 2.5, stream);
        return {copy_of(added.view), copy_of(grown.view), copy_of(scaled.view),
                copy_of(copied.view), copy_of(filled.view)};
      });
      expect_close(got[0], sum, 1e-7, 1e-16);
      expect_same_bits(got[1], got[0]);
      EXPECT_EQ(values(got[2]), half);
      EXPECT_EQ(values(got[3]), va);
      EXPECT_EQ(values(got[4]), std::vector<double>(va.size(), 2.5));
    }
  }
}

TEST(Elementwise, WalksFourDimensionsWithDifferentStrides) {
  Stream stream(2);
  for (const DType dtype : kFloats) {
    const Tensor fused = random_tensor({3, 40, 6, 20}, dtype, 1);
    const Tensor part = fused.slice(0, 1, 3).slice(1, 3, 36).slice(2, 2, 5).slice(3, 1, 18);
    const Tensor b = random_tensor(part.shape(), dtype, 2), y = copy_of(part);
    const auto vp = values(part), vb = values(b);
    add(part, b, y, stream);
    const auto vy = values(y);
    for (std::size_t i = 0; i < vy.size(); ++i) ASSERT_NEAR(vy[i], vp[i] + vb[i], 1e-6);
    accumulate(b, part, stream);
    EXPECT_EQ(values(part), vy);
    const Tensor again = copy_of(part);
    add(b, again, again, stream);
    copy(b, part, stream);
    EXPECT_EQ(values(part), vb);
  }
}

TEST(Elementwise, TakesEmptyAndRefusesUnequalTensors) {
  Stream stream(2);
  const Tensor none = empty({0, 5}, DType::f32), thin = empty({5, 0}, DType::f32);
  add(none, none, none, stream);
  scale(thin, 2.0, stream);
  EXPECT_THROW(copy(none, thin, stream), Error);
  EXPECT_THROW(accumulate(empty({2}, DType::f32), empty({2}, DType::f64), stream), Error);
  EXPECT_THROW(fill(empty({2}, DType::u8), 0.0, stream), Error);
}

TEST(Bias, IsAddedToEveryRowAndItsGradientIsTheSumOfRows) {
  for (const DType dtype : kFloats) {
    for (const auto [rows, n] : kSizes) {
      const Padded y(random_tensor({rows, n}, dtype, 1));
      const Tensor b = random_tensor({n}, dtype, 2);
      auto sums = values(b), added = values(y.view);
      for (std::size_t i = 0; i < added.size(); ++i) {
        const auto column = static_cast<std::int64_t>(i) % n;
        sums[static_cast<std::size_t>(column)] += added[i];
        added[i] += get(b, column);
      }
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Padded to(y.view);
        const Tensor db = copy_of(b);
        add_bias(to.view, b, stream);
        bias_backward(y.view, db, stream);
        return {copy_of(to.view), db};
      });
      expect_close(got[0], added, 1e-6, 1e-15);
      expect_close(got[1], sums, 1e-5, 1e-13);
    }
  }
}

}  // namespace
}  // namespace heddle::ops
