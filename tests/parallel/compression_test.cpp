#include "parallel/compression.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

using Kind = Compression::Kind;

std::vector<std::string> names(const Compression& compression) {
  std::vector<std::string> all;
  for (const Kind kind : kCompressionKinds) all.push_back(compression.codec_name(kind));
  return all;
}

TEST(Compression, ThatSaysNothingCompressesNothing) {
  const Compression none;
  EXPECT_TRUE(none.is_none());
  EXPECT_EQ(none.text(), "");
  for (const Kind kind : kCompressionKinds) EXPECT_EQ(none.codec(kind), nullptr);
  EXPECT_TRUE((Compression{.gradients = "none", .pipeline = "none"}.is_none()));
  EXPECT_TRUE(problems_of(none).empty());
}

TEST(Compression, PresetsAreTheSchemesOfThePaper) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({.preset = "mzhybrid"}),
            (Names{"zfp:8:4", "lossless", "lossless", "lossless", "none"}));
  EXPECT_EQ(names({.preset = "zhybrid"}),
            (Names{"zfp:8:4", "zfp:16:4", "zfp:16:4", "zfp:16:4", "zfp:16:4"}));
  EXPECT_EQ(names({.preset = "naive"}), Names(5, "zfp:8:1:truncate"));
  for (const std::string& preset : compression_presets()) {
    EXPECT_TRUE(problems_of(Compression{.preset = preset}).empty()) << preset;
  }
}

TEST(Compression, FeedsBackWhatGradientsLoseButNotNaively) {
  EXPECT_TRUE((Compression{.gradients = "int8"}.feeds_back()));
  EXPECT_FALSE((Compression{.gradients = "int8", .error_feedback = false}.feeds_back()));
  EXPECT_TRUE((Compression{.preset = "zhybrid"}.feeds_back()));
  EXPECT_FALSE((Compression{.preset = "naive"}.feeds_back()));
  EXPECT_TRUE((Compression{.preset = "naive", .error_feedback = true}.feeds_back()));
}

TEST(Compression, KeysThatAreGivenWinOverThePreset) {
  const Compression mixed{.gradients = "int8", .tensor = "none", .preset = "mzhybrid"};
  EXPECT_EQ(mixed.text(), "gradients int8:128, weights lossless, pipeline lossless");
}

TEST(Compression, RefusesWhatDoesNotSuitTheTraffic) {
  const Compression bad{.gradients = "lossless",
                        .weights = "topk",
                        .tensor = "int9",
                        .pipeline = "zfp:99",
                        .experts = "lossless",
                        .min_bytes = 0};
  const auto problems = problems_of(bad);
  ASSERT_EQ(problems.size(), 5u);
  EXPECT_EQ(problems[0].first, "compress.gradients");
  EXPECT_EQ(problems[0].second,
            "compress.gradients = \"lossless\": sums travel as bytes whose number is known "
            "beforehand, and that of lossless is not; use \"none\", or a codec such as int8:128");
  EXPECT_EQ(problems[1].second,
            "compress.weights = \"topk\": topk leaves most of a value to later steps, which only "
            "gradients have; use bf16, int8:128, zfp:16 or lossless");
  EXPECT_NE(problems[2].second.find("there is no codec \"int9\"; did you mean int8?"),
            std::string::npos);
  EXPECT_NE(problems[3].second.find("rate in bits \"99\""), std::string::npos);
  EXPECT_EQ(problems[4].second,
            "compress.experts = \"lossless\": rows travel as bytes whose number is known "
            "beforehand, and that of lossless is not; use \"none\", or a codec such as fp8:128");
}

}  // namespace
}  // namespace heddle
