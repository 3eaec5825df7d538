#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "config/presets.h"
#include "model/config_testing.h"
#include "model/decoder.h"
#include "parallel/param_store.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

/// Elements of all parameters of the layers as they are built; nothing is touched.
std::int64_t built_count(const ModelSpec& spec) {
  Memory memory(Memory::Mode::dry);
  const Decoder decoder = build_decoder(spec, {.positions = 8}, memory);
  return ParamStore(decoder.unit_pointers(), DType::f32, ParamStore::Purpose::inference, memory)
      .parameter_count();
}

TEST(ParameterCount, OfPresetsIsAsPublished) {
  const std::map<std::string, std::int64_t> published = {
      {"gpt2-124m", 124'439'808},     {"llama-15m", 15'191'712},
      {"llama-110m", 109'529'856},    {"tinyllama-1.1b", 1'100'048'384},
      {"llama3.2-1b", 1'235'814'400}, {"llama3-8b", 8'030'261'248},
      {"gpt3-175b", 174'615'846'912},
  };
  for (const auto& name : config::preset_names()) {
    const ModelSpec spec = model_spec(parse_json(config::preset_config(name), name), name);
    EXPECT_EQ(spec.parameter_count(), published.at(name)) << name;
    EXPECT_EQ(built_count(spec), published.at(name)) << name;
  }
}

TEST(ParameterCount, OfOtherPublishedShapesIsRight) {
  const Json neox_20b = {{"model_type", "gpt_neox"},  {"vocab_size", 50432},
                         {"hidden_size", 6144},       {"num_hidden_layers", 44},
                         {"num_attention_heads", 64}, {"intermediate_size", 24576},
                         {"rotary_pct", 0.25}};
  EXPECT_EQ(spec_of(neox_20b).parameter_count(), 20'554'567'680);
  const Json gpt2_xl = {{"model_type", "gpt2"},
                        {"vocab_size", 50257},
                        {"n_embd", 1600},
                        {"n_layer", 48},
                        {"n_head", 25}};
  EXPECT_EQ(spec_of(gpt2_xl).parameter_count(), 1'557'611'200);
  const Json llama2_70b = {{"model_type", "llama"},     {"vocab_size", 32000},
                           {"hidden_size", 8192},       {"num_hidden_layers", 80},
                           {"num_attention_heads", 64}, {"num_key_value_heads", 8},
                           {"intermediate_size", 28672}};
  EXPECT_EQ(spec_of(llama2_70b).parameter_count(), 68'976'648'192);
}

TEST(ParameterCount, OfExpertsCountsThoseThatATokenMeets) {
  const ModelSpec mixtral = spec_of({{"model_type", "mixtral"},
                                     {"vocab_size", 32000},
                                     {"hidden_size", 4096},
                                     {"num_hidden_layers", 32},
                                     {"num_attention_heads", 32},
                                     {"intermediate_size", 14336}});
  EXPECT_EQ(mixtral.parameter_count(), 46'702'792'704);
  // Of 12,879,925,248 that are active, all but the embedding and the norms.
  EXPECT_EQ(mixtral.matmul_parameter_count(), 12'748'587'008);
  const double attention = 3.0 * 32 * 2 * 4096;  // of a sequence of one
  EXPECT_EQ(training_flops_per_token(mixtral, 1), 6.0 * 12'748'587'008.0 + attention);
  const ModelSpec olmoe = spec_of({{"model_type", "olmoe"},
                                   {"vocab_size", 50304},
                                   {"hidden_size", 2048},
                                   {"num_hidden_layers", 16},
                                   {"num_attention_heads", 16},
                                   {"intermediate_size", 1024}});
  EXPECT_EQ(olmoe.parameter_count(), 6'919'161'856);
  EXPECT_EQ(built_count(olmoe), 6'919'161'856);
}

TEST(ParameterCount, OfTheSpecIsThatOfTheLayers) {
  int models = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(source_dir() + "/tests/reference/models")) {
    const ModelSpec spec = read_model_spec(entry.path() / "config.json");
    EXPECT_EQ(spec.parameter_count(), built_count(spec)) << entry.path();
    ++models;
  }
  EXPECT_GE(models, 8);
}

TEST(ParameterCount, OfMatrixProductsLeavesOutWhatIsOnlyLookedUp) {
  const ModelSpec tied = spec_of(small_config("gpt2"));
  EXPECT_EQ(tied.matmul_parameter_count(), 2 * (24 * 72 + 24 * 24 + 2 * 24 * 96) + 50 * 24);
  const ModelSpec untied = spec_of(small_config("llama"));
  EXPECT_EQ(untied.matmul_parameter_count(), 2 * (4 * 24 * 24 + 3 * 24 * 40) + 50 * 24);
}

TEST(TrainingFlops, AreSixPerMatrixParameterAndHalfOfAttention) {
  const ModelSpec spec = spec_of(small_config("llama"));
  const double products = 6.0 * static_cast<double>(spec.matmul_parameter_count());
  EXPECT_DOUBLE_EQ(training_flops_per_token(spec, 100), products + 6.0 * 2 * 100 * 24);
}

}  // namespace
}  // namespace heddle
