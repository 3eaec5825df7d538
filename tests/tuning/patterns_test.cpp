#include <gtest/gtest.h>

#include "base/error.h"
#include "model/registry.h"
#include "model/tuning.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

ModelSpec reference(const std::string& name) {
  return read_model_spec(reference_folder() / "models" / name / "config.json");
}

void expect_refusal(const ModelSpec& spec, const std::string& words) {
  try {
    check_tuning(spec);
    FAIL() << "no error about " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

ModelSpec with_targets(const std::string& name, std::vector<std::string> targets) {
  ModelSpec spec = reference(name);
  spec.tuning.lora = LoraSpec{.targets = std::move(targets)};
  return spec;
}

ModelSpec with_frozen(const std::string& name, std::vector<std::string> patterns) {
  ModelSpec spec = reference(name);
  spec.tuning.freeze = std::move(patterns);
  return spec;
}

TEST(Patterns, MatchAsShellsDo) {
  EXPECT_TRUE(matches_pattern("a.b", "a.b"));
  EXPECT_FALSE(matches_pattern("a.b", "a.bc"));
  EXPECT_TRUE(matches_pattern("*", ""));
  EXPECT_TRUE(matches_pattern("*.weight", "model.norm.weight"));
  EXPECT_FALSE(matches_pattern("*.weight", "model.norm.bias"));
  EXPECT_TRUE(matches_pattern("model.layers.?.*", "model.layers.3.mlp.up_proj.weight"));
  EXPECT_FALSE(matches_pattern("model.layers.?.*", "model.layers.13.mlp.up_proj.weight"));
  EXPECT_TRUE(matches_pattern("*a*b*", "xxaxxbxx"));
  EXPECT_FALSE(matches_pattern("*a*b", "xxaxxbxx"));
  EXPECT_TRUE(matches_pattern("*ab*ab", "abxabab"));
  EXPECT_FALSE(matches_pattern("", "a"));
  EXPECT_TRUE(matches_pattern("a**", "a"));
}

TEST(Targets, AreModulesOrTheirEndsBehindADot) {
  EXPECT_TRUE(is_target("q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(is_target("self_attn.q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(is_target("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(is_target("proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(is_target("x.model.layers.0", "model.layers.0"));
}

TEST(Adapters, HavePeftsNames) {
  const std::string name = adapter_name("model.layers.0.mlp.up_proj", AdapterPart::up);
  EXPECT_EQ(name, "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight");
  EXPECT_EQ(adapted_module(name), "model.layers.0.mlp.up_proj");
  EXPECT_EQ(adapted_module("model.layers.0.mlp.up_proj.lora_B.weight"), std::nullopt);
  EXPECT_EQ(adapted_module("base_model.model.lm_head.weight"), std::nullopt);
}

TEST(Adapters, AreOfAllLinearLayersOfBlocks) {
  const auto modules = adaptable_modules(reference("llama"));
  const auto layers = static_cast<std::size_t>(reference("llama").layers);
  EXPECT_EQ(modules.size(), 7 * layers);
  EXPECT_EQ(modules.front(), "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(adaptable_modules(reference("gpt2")).size(),
            4 * static_cast<std::size_t>(reference("gpt2").layers));
  // Of a model with experts, attention alone.
  EXPECT_EQ(adaptable_modules(reference("mixtral")).size(),
            4 * static_cast<std::size_t>(reference("mixtral").layers));
}

TEST(Adapters, ScaleByRankOrItsRoot) {
  EXPECT_EQ((LoraSpec{.rank = 4, .alpha = 8.0}).scale(), 2.0);
  EXPECT_EQ((LoraSpec{.rank = 4, .alpha = 8.0, .is_rank_stabilized = true}).scale(), 4.0);
}

TEST(Tuning, NamesATargetThatIsNotThere) {
  expect_refusal(with_targets("llama", {"q_proj", "query"}), "lora.targets: \"query\"");
  expect_refusal(with_targets("llama", {"lm_head"}), "q_proj, k_proj, v_proj, o_proj");
  check_tuning(with_targets("llama", {"q_proj", "mlp.down_proj"}));
}

TEST(Tuning, NamesAPatternThatMatchesNothingAndAModelThatIsAllFrozen) {
  expect_refusal(with_frozen("llama", {"model.layers.0.*", "*.wte.*"}), "\"*.wte.*\"");
  expect_refusal(with_frozen("llama", {"*"}), "leaves nothing to train");
  check_tuning(with_frozen("llama", {"model.embed_tokens.weight", "model.layers.0.*"}));
}

TEST(Tuning, RefusesAPartOfWhatIsOneMatrixHere) {
  expect_refusal(with_frozen("llama", {"*.q_proj.weight"}), "which are one matrix here");
}

}  // namespace
}  // namespace heddle
