#include "ops/reduce.h"

#include <limits>

#include "ops/cast.h"
#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

const std::int64_t kCounts[] = {0, 1, 3, 127, 129, 8191, 8193, 100003};

TEST(SumOfSquares, IsPreciseAndTheSameForAnyNumberOfThreads) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t count : kCounts) {
      const Tensor x = random_tensor({count}, dtype, 1);
      long double want = 0.0L;
      for (const double v : values(x)) want += static_cast<long double>(v) * v;
      Stream one(1), two(2), four(4);
      const double got = sum_of_squares(x, one);
      EXPECT_NEAR(got, static_cast<double>(want), 1e-13 * static_cast<double>(want));
      EXPECT_EQ(got, sum_of_squares(x, two));
      EXPECT_EQ(got, sum_of_squares(x, four));
    }
  }
}

TEST(ClipFactor, BoundsTheNormAndShowsWhatIsNotFinite) {
  Stream stream(1);
  const Tensor x = empty({2}, DType::f32), sums = empty({2}, DType::f64);
  const Tensor factor = empty({1}, DType::f32);
  set(x, {3.0, 4.0});
  set(sums, {0.0, 1.0});
  add_sum_of_squares(x, sums.slice(0, 0, 1), stream);
  const auto clipped = [&](double limit) {
    clip_factor(sums, limit, factor, stream);
    return factor.host<float>()[0];
  };
  EXPECT_FLOAT_EQ(clipped(1.0), 0.2F);
  EXPECT_EQ(clipped(10.0), 1.0F);
  EXPECT_EQ(clipped(0.0), 1.0F);
  set(sums, {1.0, std::numeric_limits<double>::infinity()});
  EXPECT_TRUE(std::isnan(clipped(1.0)));
}

TEST(AddSum, AddsToWhatIsThere) {
  Stream stream(1);
  const Tensor x = random_tensor({129}, DType::f64, 1), sum = empty({1}, DType::f64);
  set(sum, {2.0});
  add_sum(x, sum, stream);
  double want = 2.0;
  for (const double v : values(x)) want += v;
  EXPECT_NEAR(values(sum)[0], want, 1e-12);
}

TEST(SumOfSquares, DoesNotOverflowInFloat) {
  Stream stream(2);
  const Tensor x = empty({5}, DType::f32);
  set(x, std::vector<double>(5, 3e30));
  EXPECT_NEAR(sum_of_squares(x, stream), 45e60, 1e55);
}

TEST(FirstNonFinite, FindsTheFirstWhereverItIs) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const std::int64_t count : kCounts) {
      for (const int threads : {1, 2, 4}) {
        Stream stream(threads);
        const Tensor wide = random_tensor({count}, DType::f64, 1), x = empty({count}, dtype);
        cast(wide, x, stream);
        EXPECT_EQ(first_non_finite(x, stream), -1);
        const Tensor untouched = empty({1}, DType::f64);
        put(untouched, 0, 7.0);
        mark_non_finite(x, untouched, stream);
        EXPECT_EQ(untouched.host<double>()[0], 7.0);
        for (const std::int64_t at : {count - 1, count * 2 / 3, count / 7}) {
          if (at < 0 || count == 0) continue;
          put(wide, at, at % 2 == 0 ? nan : -inf);
          cast(wide, x, stream);
          EXPECT_EQ(first_non_finite(x, stream), at) << name_of(dtype) << " of " << count;
          const Tensor mark = empty({1}, DType::f64);
          put(mark, 0, 7.0);
          mark_non_finite(x, mark, stream);
          EXPECT_TRUE(std::isnan(mark.host<double>()[0]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace heddle::ops
