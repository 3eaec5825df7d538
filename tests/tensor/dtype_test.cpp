#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace heddle {
namespace {

TEST(DType, EverySixteenBitFloatSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = Float16{static_cast<std::uint16_t>(bits)};
    const auto brain = BFloat16{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(half))) {
      EXPECT_TRUE(std::isnan(to_float(to_float16(to_float(half)))));
    } else {
      EXPECT_EQ(to_float16(to_float(half)).bits, bits);
    }
    if (std::isnan(to_float(brain))) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(to_float(brain)))));
    } else {
      EXPECT_EQ(to_bfloat16(to_float(brain)).bits, bits);
    }
  }
}

TEST(DType, RoundsToNearestEven) {
  EXPECT_EQ(to_float(to_float16(2049.0F)), 2048.0F);
  EXPECT_EQ(to_float(to_float16(2051.0F)), 2052.0F);
  EXPECT_EQ(to_float(to_bfloat16(257.0F)), 256.0F);
  EXPECT_EQ(to_float(to_bfloat16(259.0F)), 260.0F);
  EXPECT_EQ(to_float(to_float16(65520.0F)), std::numeric_limits<float>::infinity());
  EXPECT_EQ(to_float(to_float16(65519.0F)), 65504.0F);
  EXPECT_EQ(to_float(to_float16(0x1.0p-25F)), 0.0F);
  EXPECT_EQ(to_float(to_float16(0x1.8p-25F)), 0x1.0p-24F);
}

}  // namespace
}  // namespace heddle
