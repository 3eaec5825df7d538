#include "ops/random.h"

#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

TEST(FillNormal, EqualsTheScalarGeneratorToTheBit) {
  const std::uint64_t key = rng_key(7, "weights");
  for (const DType dtype : kFloats) {
    for (const std::int64_t count : {1, 3, 127, 129, 257, 5001}) {
      // The last start crosses the 32-bit boundary of the counter.
      for (const std::uint64_t first : {0UL, 1001UL, 0xffffffffUL - 100UL}) {
        const Tensor y = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
          const Tensor t = empty({count}, dtype);
          fill_normal(t, key, first, 0.02, stream);
          return {t};
        })[0];
        for (std::int64_t i = 0; i < count; ++i) {
          const double want = 0.02 * random_normal(key, first + static_cast<std::uint64_t>(i));
          if (dtype == DType::f32) {
            ASSERT_EQ(y.data<float>()[i], static_cast<float>(want));
          } else {
            ASSERT_EQ(y.data<double>()[i], want);
          }
        }
      }
    }
  }
}

TEST(FillNormal, HasTheMomentsOfANormalDistribution) {
  Stream stream(2);
  const Tensor y = empty({200000}, DType::f64);
  fill_normal(y, 42, 0, 3.0, stream);
  double mean = 0.0, square = 0.0, fourth = 0.0;
  for (const double v : values(y)) {
    mean += v / 200000;
    square += v * v / 200000;
    fourth += v * v * v * v / 200000;
  }
  EXPECT_NEAR(mean, 0.0, 0.03);
  EXPECT_NEAR(square, 9.0, 0.15);
  EXPECT_NEAR(fourth, 243.0, 10.0);
}

}  // namespace
}  // namespace heddle::ops
