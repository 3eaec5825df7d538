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
  EXPECT_EQ(a.attention_factor, b.attention_factor);
  EXPECT_EQ(a.pairs_neighbours, b.pairs_neighbours);
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
    const RopeTable table = make_rope_tables(spec, 5, dtype, memory)->of_length(5);
    ASSERT_EQ(table.cos_PR.shape(), Shape({5, 3}));
    for (std::size_t p = 0; p < 5; ++p) {
      for (std::size_t i = 0; i < 3; ++i) {
        const double angle = static_cast<double>(p) * frequencies[i];
        const std::size_t at = 3 * p + i;
        const bool narrow = dtype == DType::f32;
        EXPECT_NEAR(narrow ? static_cast<double>(table.cos_PR.host<float>()[at])
                           : table.cos_PR.host<double>()[at],
                    std::cos(angle), 1e-6);
        EXPECT_NEAR(narrow ? static_cast<double>(table.sin_PR.host<float>()[at])
                           : table.sin_PR.host<double>()[at],
                    std::sin(angle), 1e-6);
      }
    }
  }
  EXPECT_FALSE(make_rope_tables(std::nullopt, 5, DType::f32, memory)->defined());
}

void expect_frequencies(const RopeSpec& spec, std::int64_t length,
                        const std::vector<double>& want) {
  const auto found = rope_frequencies(spec, length);
  ASSERT_EQ(found.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(found[i], want[i], 3e-7 * want[i]) << "pair " << i;
  }
}

// The numbers below are those of transformers 5.23 for the same keys.

RopeSpec rope_of_wide_heads(const Json& changes) {
  return rope_of("llama", with({{"hidden_size", 48}, {"max_position_embeddings", 4096}}, changes));
}

TEST(Rope, YarnLeavesFastPairsAloneAndSlowsSlowOnesDown) {
  const RopeSpec spec = rope_of_wide_heads(
      {{"rope_theta", 1e4},
       {"rope_scaling",
        {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}}}});
  expect_frequencies(spec, 0,
                     {1, 0.316227764, 0.0812500045, 0.0197642371, 0.00437500002, 0.000790569466,
                      0.000250000012, 7.90569466e-05});
  EXPECT_DOUBLE_EQ(spec.attention_factor, 1.1386294361119891);
  EXPECT_FALSE(spec.depends_on_length());
}

TEST(Rope, YarnWithoutItsOriginalLengthTakesTheModels) {
  const RopeSpec spec = rope_of_wide_heads(
      {{"rope_theta", 1e4}, {"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}});
  expect_frequencies(spec, 0,
                     {1, 0.316227764, 0.100000001, 0.025693506, 0.00624999963, 0.00138349656,
                      0.000250000012, 7.90569466e-05});
}

TEST(Rope, YarnHasFactorsOfItsOwn) {
  const Json keys = {{"rope_type", "yarn"}, {"rope_theta", 5e5},
                     {"factor", 8.0},       {"original_max_position_embeddings", 512},
                     {"beta_fast", 16},     {"beta_slow", 2},
                     {"mscale", 1.2},       {"mscale_all_dim", 0.4},
                     {"truncate", false}};
  const RopeSpec spec = rope_of_wide_heads({{"rope_parameters", keys}});
  expect_frequencies(spec, 0,
                     {1, 0.192907929, 0.0114530446, 0.000911583134, 0.000176776681, 3.42810235e-05,
                      6.64786967e-06, 1.28917316e-06});
  EXPECT_DOUBLE_EQ(spec.attention_factor, 1.1535808290934819);
  Json given = keys;
  given["attention_factor"] = 1.25;
  EXPECT_EQ(rope_of_wide_heads({{"rope_parameters", given}}).attention_factor, 1.25);
  // A factor of null is what the positions grew by.
  given["factor"] = nullptr;
  Json config = small_config("llama");
  config["max_position_embeddings"] = 2048;
  config["rope_parameters"] = given;
  config.erase("rope_theta");
  EXPECT_EQ(spec_of(config).rope->factor, 4.0);
}

TEST(Rope, DynamicFrequenciesChangeBeyondTheModelsPositions) {
  const Json keys = {{"rope_type", "dynamic"}, {"rope_theta", 1e4}, {"factor", 2.0}};
  const Json config =
      with(with(small_config("llama"), {{"rope_theta", nullptr}}),
           {{"hidden_size", 48}, {"max_position_embeddings", 64}, {"rope_parameters", keys}});
  const RopeSpec spec = *spec_of(config).rope;
  EXPECT_TRUE(spec.depends_on_length());
  const std::vector<double> within = {1,
                                      0.316227764,
                                      0.100000001,
                                      0.0316227786,
                                      0.00999999978,
                                      0.00316227786,
                                      0.00100000005,
                                      0.000316227786};
  expect_frequencies(spec, 40, within);
  expect_frequencies(spec, 64, within);
  expect_frequencies(spec, 100,
                     {1, 0.283945143, 0.0806248412, 0.0228930302, 0.00650036521, 0.001845747,
                      0.000524090894, 0.000148813066});
  EXPECT_EQ(spec_of(config).longest_sequence(), 128);
  EXPECT_EQ(spec_of(small_config("llama")).longest_sequence(), 2048);
}

TEST(Rope, YarnReachesFactorTimesItsOriginalLengthWhicheverTheConfigHas) {
  for (const int positions : {64, 128}) {
    const Json config = with(small_config("llama"), {{"max_position_embeddings", positions},
                                                     {"rope_parameters",
                                                      {{"rope_type", "yarn"},
                                                       {"rope_theta", 10000.0},
                                                       {"factor", 4.0},
                                                       {"original_max_position_embeddings", 64}}}});
    EXPECT_EQ(spec_of(config).longest_sequence(), 256);
  }
}

TEST(Rope, LongropeHasFactorsForShortAndLongSequences) {
  const Json config = with(
      small_config("phi3"),
      {{"hidden_size", 48},
       {"max_position_embeddings", 256},
       {"original_max_position_embeddings", 64},
       {"partial_rotary_factor", 0.5},
       {"rope_scaling",
        {{"type", "su"}, {"short_factor", {1, 1.1, 1.2, 1.3}}, {"long_factor", {2, 3, 4, 5}}}}});
  const RopeSpec spec = *spec_of(config).rope;
  expect_frequencies(spec, 64, {1, 0.0909090936, 0.00833333284, 0.00076923077});
  expect_frequencies(spec, 65, {0.5, 0.0333333351, 0.00249999994, 0.000199999995});
  EXPECT_DOUBLE_EQ(spec.attention_factor, 1.1547005383792517);
  // Phi-3 was trained for 4096 where the config does not say.
  const Json silent = with(config, {{"original_max_position_embeddings", nullptr}});
  EXPECT_EQ(spec_of(silent).rope->original_positions, 4096);
  EXPECT_EQ(spec_of(silent).rope->attention_factor, 1.0);
}

TEST(Rope, TablesOfLongropeFollowTheLengthOfTheSequence) {
  Memory memory;
  RopeSpec spec{.theta = 100.0,
                .dims = 4,
                .scaling = RopeSpec::Scaling::longrope,
                .original_positions = 8,
                .short_factors = {1, 1},
                .long_factors = {2, 2},
                .attention_factor = 1.5};
  const auto tables = make_rope_tables(spec, 16, DType::f32, memory);
  const auto angle = [&](std::int64_t length) {
    return std::acos(static_cast<double>(tables->of_length(length).cos_PR.host<float>()[2]) / 1.5);
  };
  EXPECT_NEAR(angle(16), 0.5, 1e-6);
  EXPECT_NEAR(angle(8), 1.0, 1e-6);
  EXPECT_NEAR(angle(9), 0.5, 1e-6);
  EXPECT_EQ(&tables->of_length(16), &tables->of_length(9)) << "one table for all long ones";
}

TEST(Rope, GlmRotatesNeighboursOfHalfAHead) {
  for (const char* family : {"glm", "glm4"}) {
    const RopeSpec spec = rope_of(family, {});
    EXPECT_TRUE(spec.pairs_neighbours);
    EXPECT_EQ(spec.dims, 4);
  }
  EXPECT_EQ(rope_of("glm4", {{"partial_rotary_factor", 1.0}}).dims, 8);
}

TEST(Rope, Gemma3HasOneForEachKindOfLayer) {
  const auto spec = [](const Json& changes) {
    return spec_of(with(with(small_config("gemma3_text"), {{"rope_theta", nullptr}}), changes));
  };
  EXPECT_EQ(spec({}).rope->theta, 1e6);
  EXPECT_EQ(spec({}).window_rope->theta, 1e4);
  const ModelSpec old = spec({{"rope_theta", 5e5},
                              {"rope_local_base_freq", 2e4},
                              {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  const Json full = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}},
             sliding = {{"rope_type", "default"}, {"rope_theta", 2e4}};
  const ModelSpec made =
      spec({{"rope_parameters", {{"full_attention", full}, {"sliding_attention", sliding}}}});
  expect_same(*old.rope, *made.rope);
  expect_same(*old.window_rope, *made.window_rope);
  EXPECT_EQ(made.rope->scaling, RopeSpec::Scaling::linear);
  EXPECT_EQ(made.window_rope->scaling, RopeSpec::Scaling::none);
  EXPECT_EQ(made.window_rope->theta, 2e4);
}

}  // namespace
}  // namespace heddle
