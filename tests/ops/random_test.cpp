#include "ops/random.h"

#include "ops/elementwise.h"
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

TEST(Dropout, DropsWhatTheGeneratorSaysAndScalesTheRest) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t width : {1, 7, 512, 1301}) {
      for (const bool adds : {false, true}) {
        // Rows of a wider matrix, of which odd columns come first, with numbers beyond 32 bits.
        const DropoutMask mask{.key = 42,
                               .rate = 0.3,
                               .first_row = 0xfffffffUL,
                               .first_column = 3,
                               .columns = width + 6};
        const Tensor wide = random_tensor({5, width + 2}, dtype, 1);
        const Tensor x = wide.slice(1, 1, 1 + width);
        const Tensor before = random_tensor({5, width}, dtype, 2);
        const Tensor y = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
          const Tensor t = empty({5, width}, dtype);
          copy(before, t, stream);
          (adds ? add_dropout : dropout)(x, mask, t, stream);
          return {t};
        })[0];
        const auto from = values(x), was = values(before), is = values(y);
        for (std::int64_t row = 0; row < 5; ++row) {
          for (std::int64_t column = 0; column < width; ++column) {
            const std::uint64_t i = (mask.first_row + static_cast<std::uint64_t>(row)) *
                                        static_cast<std::uint64_t>(mask.columns) +
                                    static_cast<std::uint64_t>(3 + column);
            const bool stays = philox(42, i / 2)[i % 2] >= 0.3 * 0x1.0p32;
            const auto at = static_cast<std::size_t>(row * width + column);
            const double value = stays ? from[at] / 0.7 : 0.0;
            ASSERT_NEAR(is[at], (adds ? was[at] : 0.0) + value, 1e-6) << row << " " << column;
          }
        }
      }
    }
  }
}

TEST(Dropout, GoesByTheNumbersOfRowsAndDropsItsShare) {
  Stream stream(2);
  constexpr std::int64_t kRows = 200, kWidth = 300;
  const Tensor ones = empty({kRows, kWidth}, DType::f64), all = empty({kRows, kWidth}, DType::f64);
  fill(ones, 1.0, stream);
  const DropoutMask mask{.key = 7, .rate = 0.25, .first_row = 50, .columns = kWidth};
  dropout(ones, mask, all, stream);
  double mean = 0.0;
  for (const double value : values(all)) {
    ASSERT_TRUE(value == 0.0 || value == 1.0 / 0.75);
    mean += value / static_cast<double>(kRows * kWidth);
  }
  EXPECT_NEAR(mean, 1.0, 0.01);
  // Every other row, from the last to the first.
  DropoutMask some = mask;
  some.rows_T = empty({kRows / 2}, DType::i64);
  for (std::int64_t t = 0; t < kRows / 2; ++t) {
    some.rows_T.data<std::int64_t>()[t] = 50 + kRows - 1 - 2 * t;
  }
  const Tensor y = empty({kRows / 2, kWidth}, DType::f64);
  dropout(ones.slice(0, 0, kRows / 2), some, y, stream);
  for (std::int64_t t = 0; t < kRows / 2; ++t) {
    ASSERT_EQ(values(y.select(0, t)), values(all.select(0, kRows - 1 - 2 * t)));
  }
}

}  // namespace
}  // namespace heddle::ops
