// The codecs of blocks with a scale against what their headers say, done slowly.
#include <functional>

#include "codec/codec_testing.h"

namespace heddle::codec {
namespace {

/// All magnitudes that codes of one block stand for, ascending, in units of the scale.
using BlockLevels = std::vector<double>;

BlockLevels int_levels(int most) {
  BlockLevels levels;
  for (int code = 0; code <= most; ++code) levels.push_back(code);
  return levels;
}

BlockLevels e4m3_levels() {
  BlockLevels levels;
  for (int code = 0; code <= 0x7e; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    levels.push_back(exponent == 0 ? std::ldexp(mantissa, -9)
                                   : std::ldexp(8 + mantissa, exponent - 10));
  }
  return levels;
}

BlockLevels e3m0_levels() {
  BlockLevels levels = {0};
  for (int exponent = -6; exponent <= 0; ++exponent) levels.push_back(std::ldexp(1, exponent));
  return levels;
}

double nearest_distance(const BlockLevels& levels, double value) {
  double least = std::numeric_limits<double>::infinity();
  for (const double level : levels) least = std::min(least, std::abs(level - value));
  return least;
}

struct BlockFormat {
  std::string name;
  std::size_t block;
  BlockLevels levels;
  std::function<float(float)> scale;  ///< from the largest magnitude
};

std::vector<BlockFormat> formats() {
  return {
      {"int8", 128, int_levels(127), [](float most) { return most / 127.0F; }},
      {"int4:32", 32, int_levels(7), [](float most) { return most / 7.0F; }},
      {"fp8", 128, e4m3_levels(), [](float most) { return most / 448.0F; }},
      {"e3m0", 256, e3m0_levels(), [](float most) { return to_float(to_bfloat16(most)); }},
  };
}

TEST(BlockCodecs, DecodeToTheNearestLevelOfTheirScale) {
  for (const BlockFormat& format : formats()) {
    const auto codec = make_codec(format.name);
    for (const double sigma : {1.0, 1e-20, 1e20}) {
      Floats x = gaussian(3001, 21, sigma);
      for (std::size_t i = 0; i < x.size(); i += 3) x[i] *= 1e-2F;
      const Floats y = round_trip(*codec, x);
      for (std::size_t begin = 0; begin < x.size(); begin += format.block) {
        const std::size_t end = std::min(begin + format.block, x.size());
        float most = 0;
        for (std::size_t i = begin; i < end; ++i) most = std::max(most, std::abs(x[i]));
        const double scale = static_cast<double>(format.scale(most));
        for (std::size_t i = begin; i < end; ++i) {
          const double value = std::abs(static_cast<double>(x[i])) / scale;
          const double got = static_cast<double>(y[i]) / scale;
          ASSERT_LE(std::abs(std::abs(got) - value),
                    nearest_distance(format.levels, value) + 1e-6 * value)
              << format.name << " " << i << ": " << x[i] << " became " << y[i];
          ASSERT_LE(nearest_distance(format.levels, std::abs(got)), 1e-6 * std::abs(got));
          if (y[i] != 0.0F) {
            ASSERT_EQ(std::signbit(y[i]), std::signbit(x[i]));
          }
        }
      }
    }
  }
}

TEST(BlockCodecs, KeepValuesThatAreLevels) {
  for (const BlockFormat& format : formats()) {
    // A power of two for a scale, so that levels are floats.
    const double scale = format.name == "e3m0" ? 0.5 : 0.25;
    Floats x;
    for (const double level : format.levels) {
      for (const double sign : {1.0, -1.0}) x.push_back(static_cast<float>(sign * level * scale));
    }
    // Every block has the largest level.
    Floats blocks;
    for (const float value : x) {
      if (blocks.size() % format.block == 0) {
        blocks.push_back(static_cast<float>(format.levels.back() * scale));
      }
      blocks.push_back(value);
    }
    EXPECT_EQ(round_trip(*make_codec(format.name), blocks), blocks) << format.name;
  }
}

TEST(BlockCodecs, RoundTiesToEvenOrForPowersOfTwoDown) {
  const auto decoded = [](const char* name, float largest, float value) {
    return round_trip(*make_codec(name), {largest, value})[1];
  };
  EXPECT_EQ(decoded("int8", 127.0F, 2.5F), 2.0F);
  EXPECT_EQ(decoded("int8", 127.0F, 3.5F), 4.0F);
  EXPECT_EQ(decoded("int8", 127.0F, -0.5F), 0.0F);
  EXPECT_EQ(decoded("int4", 7.0F, 1.5F), 2.0F);
  EXPECT_EQ(decoded("fp8", 448.0F, 17.0F), 16.0F);
  EXPECT_EQ(decoded("fp8", 448.0F, 19.0F), 20.0F);
  EXPECT_EQ(decoded("fp8", 448.0F, std::ldexp(1.0F, -10)), 0.0F);
  EXPECT_EQ(decoded("fp8", 448.0F, std::ldexp(3.0F, -10)), std::ldexp(2.0F, -9));
  EXPECT_EQ(decoded("e3m0", 1.0F, 0.75F), 0.5F);
  EXPECT_EQ(decoded("e3m0", 1.0F, 0.7500001F), 1.0F);
  EXPECT_EQ(decoded("e3m0", 1.0F, std::ldexp(1.0F, -7)), 0.0F);
  EXPECT_EQ(decoded("e3m0", 1.0F, -0.008F), -std::ldexp(1.0F, -6));
  EXPECT_EQ(decoded("bf16", 1.0F, 1.0F + 0x1.0p-8F), 1.0F);
  EXPECT_EQ(decoded("bf16", 1.0F, 1.0F + 0x1.8p-7F), 1.0F + 0x1.0p-6F);
}

TEST(BlockCodecs, KeepTheOthersWhereOneValueIsHuge) {
  // Only the block of the huge value suffers.
  for (const std::string name : {"int8", "int4", "fp8", "e3m0", "zfp:16"}) {
    const auto codec = make_codec(name);
    Floats x = gaussian(4096, 23);
    const Floats before = round_trip(*codec, x);
    x[1000] = 3e38F;
    const Floats after = round_trip(*codec, x);
    EXPECT_NEAR(static_cast<double>(after[1000]) / 3e38, 1.0, 0.005) << name;
    const auto block = static_cast<std::size_t>(codec->block());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i / block != 1000 / block) {
        ASSERT_EQ(after[i], before[i]) << name << " " << i;
      }
    }
  }
}

TEST(BlockCodecs, NeverDecodeToInfinity) {
  for (const std::string& name : all_codecs()) {
    for (const auto& [what, x] : hard_inputs()) {
      for (const float value : round_trip(*make_codec(name), x)) {
        ASSERT_TRUE(std::isfinite(value)) << name << ", " << what;
      }
    }
  }
}

}  // namespace
}  // namespace heddle::codec
