#include <gtest/gtest.h>

#include <cmath>

#include "model/config_testing.h"

// What the smallest config of a family means: the defaults of its class in transformers 5.23.

namespace heddle {
namespace {

/// By layer: r where q and k are rotated, n where not, and the window behind it.
std::string layers_of(const Json& config) {
  const ModelSpec spec = spec_of(config);
  std::string text;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const BlockSpec& block = spec.block(layer);
    text += block.rotates ? 'r' : 'n';
    if (block.window) text += std::to_string(*block.window);
  }
  return text;
}

TEST(Olmo2, HasNormsBehindItsBranchesAndOfAllHeads) {
  const ModelSpec spec = spec_of(small_config("olmo2"));
  EXPECT_TRUE(spec.names.attention_norm.empty() && spec.names.mlp_norm.empty());
  EXPECT_FALSE(spec.names.attention_post_norm.empty() || spec.names.mlp_post_norm.empty());
  EXPECT_TRUE(spec.qk_norm && spec.qk_norm_joins_heads);
  EXPECT_EQ(spec.norm_eps, 1e-5);
  EXPECT_EQ(spec.max_positions, 2048);
}

TEST(Smollm3, HasLayersWithoutRope) {
  const Json six = with(small_config("smollm3"), {{"num_hidden_layers", 6}});
  EXPECT_EQ(layers_of(six), "rrrnrr");
  EXPECT_EQ(layers_of(with(six, {{"no_rope_layer_interval", 2}})), "rnrnrn");
  EXPECT_EQ(layers_of(with(six, {{"no_rope_layers", {0, 1, 1, 0, 1, 1, 0}}})), "nrrnrr");
  EXPECT_EQ(spec_of(with(six, {{"no_rope_layers", {0, 1, 1, 0, 1, 1}}})).blocks.size(), 3u);
  EXPECT_TRUE(spec_of(six).tied_embeddings);
  EXPECT_EQ(spec_of(with(six, {{"rope_theta", nullptr}})).rope->theta, 2e6);
}

TEST(Smollm3, HasItsWindowInLayersWithoutRopeUnlessTypesSayMore) {
  const Json four =
      with(small_config("smollm3"),
           {{"num_hidden_layers", 4}, {"no_rope_layer_interval", 2}, {"sliding_window", 9}});
  EXPECT_EQ(layers_of(four), "rnrn");
  EXPECT_EQ(layers_of(with(four, {{"use_sliding_window", true}})), "rn9rn9");
  EXPECT_EQ(
      layers_of(with(
          four, {{"use_sliding_window", true},
                 {"layer_types",
                  {"sliding_attention", "full_attention", "full_attention", "full_attention"}}})),
      "r9nrn");
}

TEST(Granite, HasFactorsOfOneWhereTheConfigIsSilent) {
  const ModelSpec silent = spec_of(small_config("granite"));
  EXPECT_EQ(silent.attention_scale, 1.0) << "and not that of the head's size";
  EXPECT_EQ(silent.embedding_scale, 1.0);
  const ModelSpec spec = spec_of(with(small_config("granite"), {{"embedding_multiplier", 12.0},
                                                                {"attention_multiplier", 0.0625},
                                                                {"residual_multiplier", 0.22},
                                                                {"logits_scaling", 8.0}}));
  EXPECT_EQ(spec.embedding_scale, 12.0);
  EXPECT_EQ(spec.attention_scale, 0.0625);
  EXPECT_EQ(spec.residual_scale, 0.22);
  EXPECT_EQ(spec.logits_scale, 0.125);
}

TEST(Glm, HasBiasesOfQkvAloneAndAFusedGate) {
  for (const char* family : {"glm", "glm4"}) {
    const ModelSpec spec = spec_of(small_config(family));
    EXPECT_TRUE(spec.qkv_bias && !spec.attention_out_bias && !spec.mlp_bias);
    EXPECT_FALSE(spec.names.fused_gate_up.empty());
    EXPECT_EQ(spec.norm_eps, 1.5625e-7);
    EXPECT_EQ(spec.names.mlp_post_norm.empty(), family == std::string("glm"));
  }
  const Json bare =
      with(small_config("glm4"),
           {{"head_dim", nullptr}, {"num_key_value_heads", nullptr}, {"num_attention_heads", 4}});
  EXPECT_EQ(spec_of(bare).head_dim, 128);
  EXPECT_EQ(spec_of(bare).kv_heads, 2);
}

TEST(Phi3, HasFusedProjections) {
  const ModelSpec spec = spec_of(small_config("phi3"));
  EXPECT_FALSE(spec.names.fused_qkv.empty() || spec.names.fused_gate_up.empty());
  EXPECT_EQ(spec.norm_eps, 1e-5);
  EXPECT_EQ(spec.max_positions, 4096);
  EXPECT_EQ(spec.rope->dims, 8);
}

TEST(Starcoder2, HasBiasesAndNormsWithMeans) {
  const ModelSpec spec = spec_of(small_config("starcoder2"));
  EXPECT_EQ(spec.norm, ModelSpec::Norm::layer);
  EXPECT_EQ(spec.mlp, ModelSpec::Mlp::gelu);
  EXPECT_EQ(spec.gelu, ops::Gelu::tanh);
  EXPECT_TRUE(spec.qkv_bias && spec.attention_out_bias && spec.mlp_bias && spec.tied_embeddings);
  EXPECT_EQ(spec.init_stddev, 0.018042);
  const ModelSpec without = spec_of(with(small_config("starcoder2"), {{"use_bias", false}}));
  EXPECT_FALSE(without.qkv_bias || without.attention_out_bias || without.mlp_bias);
  for (const char* of_others : {"mlp_bias", "attention_bias"}) {
    const ModelSpec same = spec_of(with(small_config("starcoder2"), {{of_others, false}}));
    EXPECT_TRUE(same.qkv_bias && same.attention_out_bias && same.mlp_bias) << of_others;
  }
}

TEST(Gemma, ScalesEmbeddingsAndAddsOneToNorms) {
  for (const char* family : {"gemma2", "gemma3_text"}) {
    const ModelSpec spec = spec_of(small_config(family));
    EXPECT_DOUBLE_EQ(spec.embedding_scale, std::sqrt(24.0));
    EXPECT_TRUE(spec.norm_adds_one && spec.tied_embeddings);
    EXPECT_EQ(spec.mlp, ModelSpec::Mlp::geglu);
    EXPECT_EQ(spec.attention_scale, 1.0 / 16.0);
  }
  EXPECT_EQ(spec_of(small_config("gemma2")).max_positions, 8192);
  EXPECT_EQ(spec_of(small_config("gemma3_text")).max_positions, 131072);
  EXPECT_TRUE(spec_of(small_config("gemma3_text")).qk_norm);
}

TEST(Gemma, CapsByDefaultInItsSecondAloneAndNeverWhereItIsNull) {
  EXPECT_EQ(spec_of(small_config("gemma2")).attention_cap, 50.0);
  EXPECT_EQ(spec_of(small_config("gemma2")).logits_cap, 30.0);
  EXPECT_EQ(spec_of(small_config("gemma3_text")).attention_cap, 0.0);
  EXPECT_EQ(spec_of(small_config("gemma3_text")).logits_cap, 0.0);
  Json config = small_config("gemma2");
  config["attn_logit_softcapping"] = nullptr;
  EXPECT_EQ(spec_of(config).attention_cap, 0.0);
}

TEST(Gemma, AlternatesWindows) {
  const Json second =
      with(small_config("gemma2"), {{"num_hidden_layers", 3}, {"sliding_window", 5}});
  EXPECT_EQ(layers_of(second), "r5rr5");
  const Json third =
      with(small_config("gemma3_text"), {{"num_hidden_layers", 7}, {"sliding_window", 5}});
  EXPECT_EQ(layers_of(third), "r5r5r5r5r5rr5");
  EXPECT_EQ(layers_of(with(third, {{"sliding_window_pattern", 3}})), "r5r5rr5r5rr5");
  EXPECT_EQ(spec_of(with(second, {{"num_hidden_layers", 40}})).blocks.size(), 2u);
}

}  // namespace
}  // namespace heddle
