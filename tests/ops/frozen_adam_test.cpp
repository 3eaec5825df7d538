#include "ops/frozen_adam.h"

#include <cmath>
#include <limits>

#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

Tensor one(double value) {
  const Tensor made = empty({1}, DType::f32);
  set(made, {value});
  return made;
}

/// Some of them zero.
Tensor second_moment(std::int64_t count, DType dtype) {
  const Tensor made = random_tensor({count}, dtype, 9);
  auto numbers = values(made);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = i % 5 == 2 ? 0.0 : numbers[i] * numbers[i];
  }
  set(made, numbers);
  return made;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Blend, FollowsItsFormula) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t count : {1, 3, 127, 70001}) {
      const Tensor x = random_tensor({count}, dtype, 1), m = random_tensor({count}, dtype, 2);
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Tensor with = copy_of(x), without = copy_of(x);
        blend(with, m, {.keep = 0.45, .take = 0.1, .clip = one(0.5)}, stream);
        blend(without, {}, {.take = 0.1, .guard = one(7.0)}, stream);
        return {with, without};
      });
      const auto old = values(x), moments = values(m), with = values(got[0]),
                 without = values(got[1]);
      for (std::size_t i = 0; i < old.size(); ++i) {
        ASSERT_NEAR(with[i], 0.45 * moments[i] + 0.1 * 0.5 * old[i], 1e-6);
        ASSERT_NEAR(without[i], 0.1 * old[i], 1e-6);
      }
    }
  }
}

TEST(Blend, OfAFactorThatIsNotFiniteIsNotANumberAnywhere) {
  Stream stream(1);
  for (const BlendArgs& args :
       {BlendArgs{.keep = 1.0, .clip = one(kNan)}, BlendArgs{.keep = 1.0, .guard = one(kNan)}}) {
    const Tensor x = random_tensor({37}, DType::f32, 1), m = random_tensor({37}, DType::f32, 2);
    blend(x, m, args, stream);
    for (const double value : values(x)) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(FrozenAdam, FollowsItsFormulaAndMasksElementsWithoutSecondMoment) {
  for (const bool masks : {true, false}) {
    for (const DType dtype : kFloats) {
      const std::int64_t count = 131;
      const Tensor p = random_tensor({count}, dtype, 1), made = random_tensor({count}, dtype, 2),
                   m = random_tensor({count}, dtype, 3), v = second_moment(count, dtype);
      const auto before = values(p);
      Stream stream(1);
      const FrozenAdamArgs args{.lr = 0.01,
                                .eps = 1e-3,
                                .weight_decay = 0.2,
                                .first = 1.5,
                                .second = 2.0,
                                .masks = masks,
                                .guard = one(0.3)};
      frozen_adam(p, made, m, v, args, stream);
      for (std::size_t i = 0; i < before.size(); ++i) {
        const double first = values(made)[i], second = values(v)[i];
        const double change =
            masks && second == 0.0 ? 0.0 : 0.01 * 1.5 * first / (std::sqrt(2.0 * second) + 1e-3);
        EXPECT_NEAR(values(p)[i], before[i] * (1 - 0.01 * 0.2) - change,
                    1e-6 * (1 + std::abs(change)));
        EXPECT_EQ(values(m)[i], first);
      }
    }
  }
}

TEST(FrozenAdam, LeavesEverythingWhereTheGuardIsNotFinite) {
  const Tensor p = random_tensor({37}, DType::f32, 1), made = random_tensor({37}, DType::f32, 2),
               m = random_tensor({37}, DType::f32, 3), v = second_moment(37, DType::f32);
  const auto params = values(p), moments = values(m);
  Stream stream(1);
  frozen_adam(p, made, m, v, {.lr = 0.1, .guard = one(kNan)}, stream);
  frozen_adam({}, made, m, {}, {.guard = one(kNan)}, stream);
  EXPECT_EQ(values(p), params);
  EXPECT_EQ(values(m), moments);
  frozen_adam({}, made, m, {}, {.guard = one(1.0)}, stream);
  EXPECT_EQ(values(m), values(made));
}

}  // namespace
}  // namespace heddle::ops
