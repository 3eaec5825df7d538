#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "model/config_testing.h"
#include "model/rope_tables.h"

namespace heddle {
namespace {

void expect_same(const RopeSpec& a, const RopeSpec& b) {
  EXPECT_EQ(a.theta, b.theta);
  EXPECT_EQ(a.dims, b.dims);
  EXPECT_EQ(a.scaling, b.scaling);
  EXPECT_EQ(a.factor, b.factor);
  EXPECT_EQ(a.low_freq_factor, b.low_freq_factor);
  EXPECT_EQ(a.high_freq_factor, b.high_freq_factor);
  EXPECT_EQ(a.original_positions, b.original_positions);
}

RopeSpec rope_of(const std::string& family, const Json& changes) {
  return *spec_of(with(with(small_config(family), {{"rope_theta", nullptr}}), changes)).rope;
}

TEST(Rope, OldAndNewKeysMeanTheSame) {
  expect_same(
      rope_of("llama", {{"rope_theta", 5e5}}),
      rope_of("llama", {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}}));
  const Json linear = {{"type", "linear"}, {"factor", 4.0}};
  expect_same(
      rope_of("llama", {{"rope_theta", 3e4}, {"rope_scaling", linear}}),
      rope_of("llama", {{"rope_parameters",
                         {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 3e4}}}}));
  Json scaling = {{"rope_type", "llama3"},
                  {"factor", 32.0},
                  {"low_freq_factor", 1.5},
                  {"high_freq_factor", 3.0},
                  {"original_max_position_embeddings", 4096}};
  const RopeSpec old = rope_of("llama", {{"rope_theta", 5e5}, {"rope_scaling", scaling}});
  scaling["rope_theta"] = 5e5;
  expect_same(old, rope_of("llama", {{"rope_parameters", scaling}}));
  EXPECT_EQ(old.scaling, RopeSpec::Scaling::llama3);
  EXPECT_EQ(old.original_positions, 4096);
}

TEST(Rope, OldAndNewKeysOfGptNeoxMeanTheSame) {
  const RopeSpec old = rope_of("gpt_neox", {{"rotary_pct", 0.5}, {"rotary_emb_base", 20000}});
  expect_same(old, rope_of("gpt_neox", {{"rope_parameters",
                                         {{"rope_type", "default"},
                                          {"partial_rotary_factor", 0.5},
                                          {"rope_theta", 20000}}}}));
  EXPECT_EQ(old.dims, 4);
  EXPECT_EQ(old.theta, 20000);
}

// What follows is what transformers 5.22 makes of the same keys; the losses of models with them
// were compared with it.

TEST(Rope, ScalingReplacesParametersWhereBothAreThere) {
  const Json linear = {{"type", "linear"}, {"factor", 4.0}};
  const Json other = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  expect_same(rope_of("llama", {{"rope_scaling", linear}, {"rope_parameters", other}}),
              rope_of("llama", {{"rope_scaling", linear}, {"rope_theta", 1e4}}));
  expect_same(
      rope_of("llama", {{"rope_scaling", linear}, {"rope_parameters", other}, {"rope_theta", 3e4}}),
      rope_of("llama", {{"rope_scaling", linear}, {"rope_theta", 3e4}}));
  expect_same(rope_of("llama", {{"rope_scaling", Json::object()}, {"rope_parameters", other}}),
              rope_of("llama", {{"rope_theta", 5e5}}));
}

TEST(Rope, WhatIsInsideGoesBeforeWhatIsOutside) {
  expect_same(rope_of("llama", {{"rope_theta", 7.0}, {"rope_parameters", {{"rope_theta", 5e5}}}}),
              rope_of("llama", {{"rope_theta", 5e5}}));
  const Json both = {{"rope_type", "default"}, {"type", "linear"}, {"factor", 3.0}};
  EXPECT_EQ(rope_of("llama", {{"rope_scaling", both}}).scaling, RopeSpec::Scaling::none);
}

TEST(Rope, Llama3WithoutItsOriginalLengthTakesTheModels) {
  const Json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0}};
  EXPECT_EQ(rope_of("llama", {{"rope_scaling", scaling}}).original_positions, 2048);
  EXPECT_EQ(rope_of("llama", {{"rope_scaling", scaling}, {"max_position_embeddings", 131072}})
                .original_positions,
            131072);
  EXPECT_EQ(rope_of("mistral", {{"rope_scaling", scaling}}).original_positions, 131072);
}

TEST(Rope, Llama3TakesTheOriginalLengthOfTheConfigItselfFirst) {
  Json scaling = {{"rope_type", "llama3"},
                  {"factor", 8.0},
                  {"low_freq_factor", 1.0},
                  {"high_freq_factor", 4.0},
                  {"original_max_position_embeddings", 64}};
  EXPECT_EQ(rope_of("llama", {{"rope_scaling", scaling}}).original_positions, 64);
  EXPECT_EQ(rope_of("llama", {{"rope_scaling", scaling}, {"original_max_position_embeddings", 16}})
                .original_positions,
            16);
}

TEST(Rope, WholeRotationOfLlamaMayBeSaid) {
  EXPECT_EQ(rope_of("llama", {{"partial_rotary_factor", 1.0}}).dims, 8);
}

TEST(Rope, GptNeoxRotatesAQuarterWhereTheFileDoesNotSay) {
  EXPECT_EQ(rope_of("gpt_neox", {}).dims, 2);
  EXPECT_EQ(rope_of("gpt_neox", {{"rope_parameters", {{"rope_theta", 10000}}}}).dims, 2);
}

TEST(Rope, FrequenciesAreThePublishedOnesOfLlama3) {
  const RopeSpec spec{.theta = 500000.0,
                      .dims = 128,
                      .scaling = RopeSpec::Scaling::llama3,
                      .factor = 8.0,
                      .low_freq_factor = 1.0,
                      .high_freq_factor = 4.0,
                      .original_positions = 8192};
  const auto frequencies = rope_frequencies(spec);
  ASSERT_EQ(frequencies.size(), 64u);
  const std::map<std::size_t, double> table = {{0, 1.0},
                                               {16, 0.0376060309},
                                               {28, 0.00321144599},
                                               {29, 0.00216657076},
                                               {31, 0.000856751413},
                                               {34, 0.000178507813},
                                               {35, 9.55621235e-05},
                                               {63, 3.06892599e-07}};
  for (const auto& [index, want] : table) {
    EXPECT_NEAR(frequencies[index], want, 2e-7 * want) << "index " << index;
  }
  auto plain = spec;
  plain.scaling = RopeSpec::Scaling::none;
  const auto unscaled = rope_frequencies(plain);
  for (std::size_t i = 0; i < 29; ++i) EXPECT_EQ(frequencies[i], unscaled[i]) << i;
  for (std::size_t i = 35; i < 64; ++i) {
    EXPECT_NEAR(frequencies[i], unscaled[i] / 8.0, 1e-7 * unscaled[i]) << i;
  }
}

TEST(Rope, LinearScalingDividesEveryFrequency) {
  RopeSpec spec{.theta = 10000.0, .dims = 16};
  const auto plain = rope_frequencies(spec);
  spec.scaling = RopeSpec::Scaling::linear;
  spec.factor = 4.0;
  const auto scaled = rope_frequencies(spec);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(scaled[i], plain[i] / 4.0);
}

TEST(Rope, TablesHoldCosinesAndSinesOfPositionTimesFrequency) {
  Memory memory;
  const RopeSpec spec{.theta = 100.0, .dims = 6};
  const auto frequencies = rope_frequencies(spec);
  for (const DType dtype : {DType::f32, DType::f64}) {
    const auto tables = make_rope_tables(spec, 5, dtype, memory);
    ASSERT_EQ(tables->cos_PR.shape(), Shape({5, 3}));
    for (std::size_t p = 0; p < 5; ++p) {
      for (std::size_t i = 0; i < 3; ++i) {
        const double angle = static_cast<double>(p) * frequencies[i];
        const std::size_t at = 3 * p + i;
        const bool narrow = dtype == DType::f32;
        EXPECT_NEAR(narrow ? static_cast<double>(tables->cos_PR.host<float>()[at])
                           : tables->cos_PR.host<double>()[at],
                    std::cos(angle), 1e-6);
        EXPECT_NEAR(narrow ? static_cast<double>(tables->sin_PR.host<float>()[at])
                           : tables->sin_PR.host<double>()[at],
                    std::sin(angle), 1e-6);
      }
    }
  }
  EXPECT_FALSE(make_rope_tables(std::nullopt, 5, DType::f32, memory)->defined());
}

}  // namespace
}  // namespace heddle
