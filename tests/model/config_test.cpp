#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "model/config_testing.h"

namespace heddle {
namespace {

struct Refused {
  const char* name;
  const char* family;
  Json changes;
  std::vector<const char*> said;  ///< besides the file
};

void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.name; }

const Refused kRefused[] = {
    {"SlidingWindowOfLlama", "llama", {{"sliding_window", 4096}}, {"sliding_window", "mistral"}},
    {"SlidingWindowOfZero", "mistral", {{"sliding_window", 0}}, {"sliding_window = 0"}},
    {"SlidingLayersWithoutAWindow",
     "qwen3",
     {{"layer_types", {"full_attention", "sliding_attention"}}},
     {"sliding_attention", "use_sliding_window"}},
    {"LayerTypesThatAreNoList", "qwen3", {{"layer_types", 3}}, {"layer_types"}},
    {"LayerTypesOfOtherLayers", "qwen3", {{"layer_types", {"full_attention"}}}, {"layer_types"}},
    {"LayerTypesUnknown",
     "qwen3",
     {{"layer_types", {"full_attention", "chunked_attention"}}},
     {"chunked_attention"}},
    {"LayerTypesOfMistral",
     "mistral",
     {{"layer_types", {"full_attention", "full_attention"}}},
     {"layer_types", "ministral"}},
    {"UnknownRopeType",
     "llama",
     {{"rope_scaling", {{"rope_type", "mrope"}, {"factor", 4.0}}}},
     {"rope_type", "mrope", "linear, dynamic, yarn, longrope, llama3"}},
    {"UnknownRopeTypeOfNewFiles",
     "llama",
     {{"rope_parameters", {{"rope_type", "proportional"}}}},
     {"rope_parameters", "proportional"}},
    {"DynamicRopeWithoutAFactor",
     "llama",
     {{"rope_parameters", {{"rope_type", "dynamic"}}}},
     {"rope_parameters", "factor is missing"}},
    {"DynamicRopeOfOnePair",
     "gpt_neox",
     {{"rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2}}}},
     {"more than one rotated pair"}},
    {"YarnWithoutAFactor",
     "llama",
     {{"rope_parameters", {{"rope_type", "yarn"}}}},
     {"rope_parameters", "factor is missing"}},
    {"LongropeMadeForOnePosition",
     "phi3",
     {{"original_max_position_embeddings", 1},
      {"rope_scaling",
       {{"type", "longrope"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {1, 1, 1, 1}}}}},
     {"original_max_position_embeddings above 1"}},
    {"LongropeWithoutFactors",
     "llama",
     {{"rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1, 1, 1, 1}}}}},
     {"long_factor is missing"}},
    {"LongropeWithTooFewFactors",
     "phi3",
     {{"rope_scaling",
       {{"type", "longrope"}, {"short_factor", {1, 1}}, {"long_factor", {1, 1, 1, 1}}}}},
     {"short_factor", "4 positive numbers"}},
    {"LongropeWithFactorsOfText",
     "phi3",
     {{"rope_scaling",
       {{"type", "longrope"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {1, "x", 1, 1}}}}},
     {"long_factor"}},
    {"LinearRopeOfPhi3",
     "phi3",
     {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}},
     {"linear", "for this family", "default, longrope"}},
    {"SlidingWindowOfGranite", "granite", {{"sliding_window", 16}}, {"sliding-window", "granite"}},
    {"SlidingLayersOfSmollm3WithoutAWindow",
     "smollm3",
     {{"layer_types", {"full_attention", "sliding_attention"}}},
     {"sliding_attention", "use_sliding_window"}},
    {"LayersWithoutRopeThatAreNoList", "smollm3", {{"no_rope_layers", 3}}, {"no_rope_layers"}},
    {"LayersWithoutRopeThatAreTooFew", "smollm3", {{"no_rope_layers", {1}}}, {"at least 2 layers"}},
    {"LayersWithoutRopeThatAreNoFlags",
     "smollm3",
     {{"no_rope_layers", {1, 2}}},
     {"no_rope_layers has 2"}},
    {"FactorOfZero", "granite", {{"logits_scaling", 0.0}}, {"logits_scaling = 0"}},
    {"BiasOfPhi3", "phi3", {{"attention_bias", true}}, {"attention_bias = true"}},
    {"BiasOfTheMlpOfOlmo2", "olmo2", {{"mlp_bias", true}}, {"mlp_bias = true"}},
    {"BiasOfTheMlpOfGlm", "glm4", {{"mlp_bias", true}}, {"mlp_bias = true"}},
    {"ActivationOfStarcoder2", "starcoder2", {{"hidden_act", "silu"}}, {"hidden_act", "silu"}},
    {"ActivationOfGemma", "gemma2", {{"hidden_activation", "silu"}}, {"hidden_activation", "silu"}},
    {"NegativeCap", "gemma2", {{"attn_logit_softcapping", -1.0}}, {"attn_logit_softcapping"}},
    {"RopeTypeOfGemma3ByItsOldName",
     "gemma3_text",
     {{"rope_scaling", {{"type", "linear"}, {"factor", 8.0}}}},
     {"rope_scaling", "call it rope_type"}},
    {"CapOfZero",
     "gemma2",
     {{"final_logit_softcapping", 0.0}},
     {"final_logit_softcapping = 0", "null is no cap"}},
    {"ScoresOfNoScale",
     "gemma2",
     {{"query_pre_attn_scalar", -1}},
     {"query_pre_attn_scalar = -1 is not positive"}},
    {"CapOfScoresOfGemma3",
     "gemma3_text",
     {{"attn_logit_softcapping", 50.0}},
     {"attn_logit_softcapping = 50"}},
    {"AttentionToWhatComesLater",
     "gemma3_text",
     {{"use_bidirectional_attention", true}},
     {"use_bidirectional_attention = true"}},
    {"RopeThatIsNoObject", "llama", {{"rope_scaling", 7}}, {"rope"}},
    {"RopeThetaOfText", "llama", {{"rope_theta", "10000"}}, {"rope_theta", "\"10000\""}},
    {"LinearRopeWithoutAFactor",
     "llama",
     {{"rope_scaling", {{"type", "linear"}}}},
     {"rope_scaling", "factor is missing"}},
    {"Llama3RopeWithoutAFactor",
     "llama",
     {{"rope_scaling", {{"rope_type", "llama3"}, {"low_freq_factor", 1}, {"high_freq_factor", 4}}}},
     {"factor is missing"}},
    {"Llama3RopeWithoutItsLowFactor",
     "llama",
     {{"rope_parameters", {{"rope_type", "llama3"}, {"factor", 8}, {"high_freq_factor", 4}}}},
     {"rope_parameters", "low_freq_factor is missing"}},
    {"Llama3RopeWithoutItsHighFactor",
     "llama",
     {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}}}},
     {"high_freq_factor is missing"}},
    {"PartialRotationOfLlama",
     "llama",
     {{"partial_rotary_factor", 0.5}},
     {"partial_rotary_factor = 0.5", "whole heads"}},
    {"PartialRotationOfQwen",
     "qwen3",
     {{"rope_parameters", {{"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}}},
     {"partial_rotary_factor = 0.25", "whole heads"}},
    {"RopeThetaOfGptNeox", "gpt_neox", {{"rope_theta", 5e5}}, {"rope_theta", "rotary_emb_base"}},
    {"PartialRotationOfGptNeoxByAnotherName",
     "gpt_neox",
     {{"partial_rotary_factor", 0.5}},
     {"partial_rotary_factor", "rotary_pct"}},
    {"RopeByKindOfLayer",
     "qwen3",
     {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}}}}},
     {"rope_parameters", "full_attention"}},
    {"RopeFactorOfZero",
     "llama",
     {{"rope_scaling", {{"type", "linear"}, {"factor", 0.0}}}},
     {"factor"}},
    {"RopeFactorsInTheWrongOrder",
     "llama",
     {{"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 1}}}},
     {"high_freq_factor", "low_freq_factor"}},
    {"OddRotation", "gpt_neox", {{"rotary_pct", 0.13}}, {"rotated"}},
    {"Activation", "llama", {{"hidden_act", "gelu"}}, {"hidden_act", "gelu", "silu"}},
    {"ActivationOfGpt2",
     "gpt2",
     {{"activation_function", "relu"}},
     {"activation_function", "relu"}},
    {"ActivationOfGptNeox", "gpt_neox", {{"hidden_act", "relu"}}, {"hidden_act", "relu"}},
    {"HeadsThatDoNotDivideGpt2", "gpt2", {{"n_head", 5}}, {"n_head", "n_embd"}},
    {"HeadsThatDoNotDivideGptNeox",
     "gpt_neox",
     {{"num_attention_heads", 5}},
     {"num_attention_heads", "hidden_size"}},
    {"HeadsThatDoNotDivideLlama",
     "llama",
     {{"num_attention_heads", 5}},
     {"num_attention_heads", "hidden_size"}},
    {"KeyHeadsThatDoNotDivide",
     "llama",
     {{"num_key_value_heads", 2}},
     {"num_key_value_heads", "num_attention_heads"}},
    {"MoreHeadsThanDimensions", "llama", {{"num_attention_heads", 48}}, {"num_attention_heads"}},
    {"MissingVocabulary", "llama", {{"vocab_size", nullptr}}, {"vocab_size is missing"}},
    {"MissingLayers", "gpt2", {{"n_layer", nullptr}}, {"n_layer is missing"}},
    {"MissingWidth",
     "gpt_neox",
     {{"intermediate_size", nullptr}},
     {"intermediate_size is missing"}},
    {"SizeOfZero", "llama", {{"num_hidden_layers", 0}}, {"num_hidden_layers = 0"}},
    {"NegativeSize", "llama", {{"hidden_size", -24}}, {"hidden_size = -24"}},
    {"SizeOfText", "llama", {{"hidden_size", "24"}}, {"hidden_size = \"24\""}},
    {"FractionalSize", "llama", {{"vocab_size", 50.5}}, {"vocab_size = 50.5"}},
    {"SizeBeyondIntegers", "llama", {{"vocab_size", 18446744073709551615ULL}}, {"vocab_size"}},
    {"SizeOfAList", "gpt2", {{"n_embd", {1, 2}}}, {"n_embd"}},
    {"HugeVocabulary", "llama", {{"vocab_size", 2000000000}}, {"2000000000"}},
    {"HugePositions", "gpt2", {{"n_positions", 2000000000}}, {"2000000000"}},
    {"MillionsOfLayers", "llama", {{"num_hidden_layers", 5000000}}, {"5000000 layers"}},
    {"HugeHeads",
     "llama",
     {{"num_attention_heads", 60000}, {"head_dim", 60000}},
     {"60000 attention heads of 60000"}},
    {"HugeProduct",
     "llama",
     {{"hidden_size", 12582912}, {"intermediate_size", 16777216}, {"num_hidden_layers", 60000}},
     {"parameters"}},
    {"FlagOfText", "llama", {{"tie_word_embeddings", "yes"}}, {"tie_word_embeddings"}},
    {"EpsilonOfZero", "llama", {{"rms_norm_eps", 0.0}}, {"epsilon"}},
    {"EpsilonOfText", "llama", {{"rms_norm_eps", "tiny"}}, {"rms_norm_eps"}},
    {"DropoutAboveOne", "gpt2", {{"resid_pdrop", 1.5}}, {"resid_pdrop"}},
    {"ScalingByLayer",
     "gpt2",
     {{"scale_attn_by_inverse_layer_idx", true}},
     {"scale_attn_by_inverse_layer_idx"}},
    {"CrossAttention", "gpt2", {{"add_cross_attention", true}}, {"add_cross_attention"}},
    {"JitterOfARouter", "mixtral", {{"router_jitter_noise", 0.1}}, {"router_jitter_noise = 0.1"}},
    {"MoreExpertsOfATokenThanThereAre",
     "mixtral",
     {{"num_experts_per_tok", 7}},
     {"num_experts_per_tok = 7", "6 experts"}},
    {"NumbersOfExpertsThatDiffer",
     "qwen3_moe",
     {{"num_local_experts", 8}},
     {"num_experts = 6", "num_local_experts = 8"}},
    {"NegativeBalance", "olmoe", {{"router_aux_loss_coef", -0.1}}, {"router_aux_loss_coef"}},
    // Experts have no biases: one behind the last product would have to be weighted like it.
    {"BiasesOfExperts", "mixtral", {{"mlp_bias", true}}, {"mlp_bias = true"}},
    {"BiasesOfOwnExperts", "heddle_moe", {{"mlp_bias", true}}, {"mlp_bias = true"}},
    {"ClippedQkv", "olmoe", {{"clip_qkv", 8.0}}, {"clip_qkv = 8"}},
    {"DenseLayersThatAreNoList", "qwen3_moe", {{"mlp_only_layers", 1}}, {"mlp_only_layers"}},
    {"DenseLayersThatAreNoNumbers",
     "qwen3_moe",
     {{"mlp_only_layers", {0, "x"}}},
     {"mlp_only_layers", "\"x\""}},
    {"SparseStepOfZero", "qwen3_moe", {{"decoder_sparse_step", 0}}, {"decoder_sparse_step = 0"}},
    {"UnknownScoreOfARouter", "heddle_moe", {{"scoring_func", "tanh"}}, {"scoring_func", "tanh"}},
    {"UnknownChoiceOfARouter",
     "heddle_moe",
     {{"topk_method", "group_limited_greedy"}},
     {"topk_method", "group_limited_greedy", "noaux_tc"}},
    {"GroupsOfATransportPlan",
     "heddle_moe",
     {{"topk_method", "sinkhorn"}, {"n_group", 3}},
     {"n_group = 3"}},
    {"ExpertsThatChooseBySigmoid",
     "heddle_moe",
     {{"topk_method", "expert_choice"}},
     {"expert_choice", "scoring_func"}},
    {"RouterThatLearnsNothing",
     "heddle_moe",
     {{"num_experts_per_tok", 1}},
     {"num_experts_per_tok = 1", "norm_topk_prob"}},
    {"OwnNumberOfExpertsThatDiffers",
     "heddle_moe",
     {{"n_routed_experts", 8}},
     {"n_routed_experts = 8", "num_experts = 6", "remove one"}},
    {"SharedExpertsBelowZero", "heddle_moe", {{"n_shared_experts", -1}}, {"n_shared_experts = -1"}},
    {"ExpertsInEveryZerothLayer", "heddle_moe", {{"moe_layer_freq", 0}}, {"moe_layer_freq = 0"}},
    {"BalanceOfSequences",
     "heddle_moe",
     {{"aux_loss_alpha", 0.001}},
     {"aux_loss_alpha = 0.001", "model.router_aux_loss = 0.001",
      "model.router_balance = \"deepseek\""}},
    {"BalanceOfBatches",
     "heddle_moe",
     {{"aux_loss_alpha", 0.01}, {"seq_aux", false}},
     {"aux_loss_alpha = 0.01", "model.router_balance = \"megatron\""}},
    {"CosinesOfNothing", "heddle_moe", {{"cosine_router_dim", 0}}, {"cosine_router_dim"}},
    {"GroupsThatDoNotDivideExperts", "heddle_moe", {{"n_group", 4}}, {"n_group = 4"}},
    {"GroupsWithTooFewExperts",
     "heddle_moe",
     {{"n_group", 6}, {"topk_group", 1}},
     {"topk_group = 1", "n_group = 6"}},
    {"ExpertsWithoutAWidth",
     "heddle_moe",
     {{"moe_intermediate_size", nullptr}},
     {"moe_intermediate_size is missing"}},
    {"ExpertsOfTooManyParameters",
     "qwen3_moe",
     {{"num_experts", 10000000}, {"moe_intermediate_size", 10000000}},
     {"parameters"}},
    {"AttentionToLaterTokens", "llama", {{"is_causal", false}}, {"is_causal"}},
    {"LayersOfTheirOwnConfig",
     "mistral",
     {{"per_layer_config", {{"1", {{"sliding_window", 3}}}}}},
     {"per_layer_config"}},
    {"WeightsInAnotherFile",
     "qwen2",
     {{"transformers_weights", "other.safetensors"}},
     {"transformers_weights", "other.safetensors"}},
    {"WidthsOfGpt2ThatDiffer", "gpt2", {{"hidden_size", 48}}, {"n_embd = 24", "hidden_size = 48"}},
    {"LayersOfGpt2ThatDiffer", "gpt2", {{"num_hidden_layers", 1}}, {"num_hidden_layers = 1"}},
    {"Gpt2WithoutHeads", "gpt2", {{"n_head", nullptr}}, {"n_head is missing"}},
    {"BiasOfMistral", "mistral", {{"attention_bias", true}}, {"attention_bias = true"}},
    {"BiasOfMixtral", "mixtral", {{"attention_bias", true}}, {"attention_bias = true"}},
    {"BiasOfTheMlpOfMistral", "mistral", {{"mlp_bias", true}}, {"mlp_bias = true"}},
    {"BiasOfTheMlpOfQwen2", "qwen2", {{"mlp_bias", true}}, {"mlp_bias = true"}},
    {"BiasOfTheMlpOfQwen3", "qwen3", {{"mlp_bias", true}}, {"mlp_bias = true"}},
    {"HeadsOfGptNeoxOfAnotherSize", "gpt_neox", {{"head_dim", 4}}, {"head_dim = 4"}},
    {"UnknownFamily", "llama", {{"model_type", "bert"}}, {"model_type", "bert", "gpt_neox"}},
    {"NoFamily", "llama", {{"model_type", nullptr}}, {"model_type is missing"}},
    {"FamilyOfANumber", "llama", {{"model_type", 3}}, {"model_type"}},
};

class RefusedConfig : public testing::TestWithParam<Refused> {};

TEST_P(RefusedConfig, IsNamedWithFileAndKey) {
  const auto& [name, family, changes, said] = GetParam();
  try {
    spec_of(with(small_config(family), changes));
    FAIL() << "was accepted";
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_EQ(e.code(), ErrorCode::data);
    EXPECT_TRUE(what.starts_with("dir/config.json: ")) << what;
    for (const char* part : said) EXPECT_NE(what.find(part), std::string::npos) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, RefusedConfig, testing::ValuesIn(kRefused),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Config, ThatIsNoObjectIsRefused) {
  for (const Json& config : {Json(nullptr), Json(3), Json::array({1}), Json("llama")}) {
    EXPECT_THROW(spec_of(config), Error);
  }
}

TEST(Config, SmallOnesOfAllFamiliesAreAccepted) {
  for (const auto& family : known_families()) {
    const ModelSpec spec = spec_of(small_config(family));
    EXPECT_EQ(spec.family, family);
    EXPECT_EQ(spec.head_dim, 8);
    EXPECT_EQ(spec.kv_heads, 3);
  }
}

// The windows, key heads, head sizes and positions below are those of AutoConfig of transformers
// 5.22.

TEST(Config, WindowsAreThoseOfTransformers) {
  const auto window = [](const char* family, const Json& changes) {
    Json config = small_config(family);
    config.update(changes);
    const std::vector<std::int64_t> windows = spec_of(config).windows();
    EXPECT_LE(windows.size(), 1u);
    return windows.empty() ? std::nullopt : std::optional(windows.front());
  };
  EXPECT_EQ(window("mistral", Json::object()), 4096);
  EXPECT_EQ(window("mistral", {{"sliding_window", 64}}), 64);
  EXPECT_EQ(window("mistral", {{"sliding_window", nullptr}}), std::nullopt);
  // The flag is qwen's own.
  EXPECT_EQ(window("mistral", {{"use_sliding_window", false}}), 4096);
  EXPECT_EQ(window("qwen2", Json::object()), std::nullopt);
  EXPECT_EQ(window("qwen2", {{"use_sliding_window", false}, {"sliding_window", 64}}), std::nullopt);
  EXPECT_EQ(window("qwen2", {{"use_sliding_window", true}}), std::nullopt) << "28 layers have none";
  EXPECT_EQ(window("qwen2", {{"use_sliding_window", true}, {"max_window_layers", 1}}), 4096);
  EXPECT_EQ(
      window("qwen3",
             {{"use_sliding_window", true}, {"max_window_layers", 0}, {"sliding_window", nullptr}}),
      std::nullopt);
  EXPECT_EQ(window("qwen3", {{"use_sliding_window", true},
                             {"sliding_window", 32},
                             {"layer_types", {"full_attention", "sliding_attention"}}}),
            32);
  EXPECT_EQ(window("llama", {{"sliding_window", nullptr}}), std::nullopt);
  EXPECT_EQ(window("mixtral", Json::object()), std::nullopt);
  EXPECT_EQ(window("mixtral", {{"sliding_window", 64}}), 64);
  EXPECT_EQ(window("qwen3_moe", {{"sliding_window", 64}}), std::nullopt);
  EXPECT_EQ(window("qwen3_moe", {{"use_sliding_window", true}, {"sliding_window", 64}}), 64);
  EXPECT_EQ(window("phi3", Json::object()), std::nullopt);
  EXPECT_EQ(window("phi3", {{"sliding_window", 2047}}), 2047);
  EXPECT_EQ(window("starcoder2", Json::object()), std::nullopt);
  EXPECT_EQ(window("starcoder2", {{"sliding_window", 4096}}), 4096);
  EXPECT_EQ(window("gemma2", Json::object()), 4096);
  EXPECT_EQ(window("gemma3_text", {{"sliding_window", 512}}), 512);
}

TEST(Config, LayersOfTheOlderNameAttendToAll) {
  for (const char* family : {"qwen2", "qwen3", "gemma2", "gemma3_text", "smollm3"}) {
    const auto windows = [&](const char* first) {
      Json config = small_config(family);
      config.update({{"use_sliding_window", true},
                     {"sliding_window", 32},
                     {"layer_types", {first, "sliding_attention"}}});
      std::vector<std::optional<std::int64_t>> found;
      const ModelSpec spec = spec_of(config);
      for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
        found.push_back(spec.block(layer).window);
      }
      return found;
    };
    EXPECT_EQ(windows("attention"), (std::vector<std::optional<std::int64_t>>{{}, 32})) << family;
    EXPECT_EQ(windows("attention"), windows("full_attention")) << family;
  }
}

/// As ACT2FN of transformers 5.23 has them.
TEST(Config, ActivationsHaveTheNamesOfTransformers) {
  for (const char* family : {"llama", "mistral", "mixtral", "qwen3_moe", "glm4", "phi3"}) {
    const ModelSpec spec = spec_of(with(small_config(family), {{"hidden_act", "swish"}}));
    EXPECT_EQ(spec.mlp, spec_of(small_config(family)).mlp) << family;
  }
  const auto gelu = [](const char* name) {
    return spec_of(with(small_config("gpt2"), {{"activation_function", name}})).gelu;
  };
  for (const char* name : {"gelu", "gelu_python"}) EXPECT_EQ(gelu(name), ops::Gelu::exact) << name;
  for (const char* name :
       {"gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"}) {
    EXPECT_EQ(gelu(name), ops::Gelu::tanh) << name;
  }
}

TEST(Config, MissingSizesAreThoseOfTransformers) {
  const auto bare = [](const char* family, int heads) {
    return spec_of(with(small_config(family), {{"num_key_value_heads", nullptr},
                                               {"head_dim", nullptr},
                                               {"hidden_size", 64},
                                               {"num_attention_heads", heads}}));
  };
  EXPECT_EQ(bare("llama", 8).kv_heads, 8);
  EXPECT_EQ(bare("llama", 8).max_positions, 2048);
  EXPECT_EQ(bare("mistral", 16).kv_heads, 8);
  EXPECT_EQ(bare("mistral", 16).max_positions, 131072);
  EXPECT_EQ(bare("qwen2", 32).kv_heads, 32);
  EXPECT_EQ(bare("qwen2", 32).head_dim, 2);
  EXPECT_EQ(bare("qwen3", 32).head_dim, 128);
  EXPECT_EQ(bare("qwen3", 32).max_positions, 32768);
  Json null_kv = small_config("mistral");
  null_kv["num_key_value_heads"] = nullptr;
  EXPECT_EQ(spec_of(null_kv).kv_heads, 3);
}

TEST(Config, PaddingIsThatOfTransformers) {
  const auto padding = [](const char* family, const Json& id, std::int64_t vocab = 200'000) {
    Json config = with(small_config(family), {{"vocab_size", vocab}});
    if (id != "absent") config["pad_token_id"] = id;
    return spec_of(config).padding;
  };
  const std::pair<const char*, std::optional<std::int64_t>> by_default[] = {
      {"llama", {}},    {"mistral", {}},    {"mixtral", {}},  {"qwen2", {}},
      {"qwen3", {}},    {"qwen3_moe", {}},  {"granite", {}},  {"starcoder2", {}},
      {"gpt2", {}},     {"gpt_neox", {}},   {"olmo2", 1},     {"olmoe", 1},
      {"gemma2", 0},    {"gemma3_text", 0}, {"phi3", 32'000}, {"smollm3", 128'004},
      {"glm", 151'329}, {"glm4", 151'329}};
  for (const auto& [family, id] : by_default) {
    EXPECT_EQ(padding(family, "absent"), id) << family;
    EXPECT_EQ(padding(family, nullptr), std::nullopt) << family;
    const bool knows = !std::string(family).starts_with("gp");
    EXPECT_EQ(padding(family, 7), knows ? std::optional(7) : std::nullopt) << family;
  }
  EXPECT_EQ(padding("phi3", "absent", 50), std::nullopt);
  EXPECT_EQ(padding("llama", -1, 50), 49) << "counted from the end";
  EXPECT_EQ(padding("llama", 50, 50), std::nullopt);
  EXPECT_EQ(padding("llama", -51, 50), std::nullopt);
  EXPECT_THROW(padding("llama", 1.5), Error);
  EXPECT_THROW(padding("llama", "<pad>"), Error);
}

TEST(Config, Gpt2IsReadByTheKeysOfOtherFamiliesToo) {
  const Json config = {{"model_type", "gpt2"},
                       {"vocab_size", 50},
                       {"hidden_size", 24},
                       {"n_layer", 2},
                       {"num_hidden_layers", 2},
                       {"num_attention_heads", 3},
                       {"max_position_embeddings", 77}};
  const ModelSpec spec = spec_of(config);
  EXPECT_EQ(spec.hidden, 24);
  EXPECT_EQ(spec.layers, 2);
  EXPECT_EQ(spec.heads, 3);
  EXPECT_EQ(spec.max_positions, 77);
}

TEST(Config, ExpertsAreReadInBothSpellings) {
  for (const char* key : {"num_experts", "num_local_experts"}) {
    const Json bare = with(small_config("mixtral"), {{"num_experts", nullptr}});
    EXPECT_EQ(spec_of(with(bare, {{key, 5}})).experts->count, 5) << key;
  }
  const auto missing = [](const char* family) {
    return spec_of(with(small_config(family), {{"num_experts", nullptr},
                                               {"num_experts_per_tok", nullptr},
                                               {"moe_intermediate_size", nullptr}}));
  };
  EXPECT_EQ(missing("mixtral").experts->count, 8);
  EXPECT_EQ(missing("mixtral").experts->per_token, 2);
  EXPECT_EQ(missing("mixtral").experts->width, 40);
  EXPECT_EQ(missing("mixtral").norm_eps, 1e-5);
  EXPECT_EQ(missing("olmoe").experts->count, 64);
  EXPECT_EQ(missing("olmoe").experts->per_token, 8);
  EXPECT_EQ(missing("qwen3_moe").experts->count, 128);
  EXPECT_EQ(missing("qwen3_moe").experts->width, 768);
}

TEST(Config, RoutersDifferAsPublished) {
  EXPECT_TRUE(spec_of(small_config("mixtral")).experts->rule.renormalize);
  for (const char* family : {"olmoe", "qwen3_moe"}) {
    EXPECT_FALSE(spec_of(small_config(family)).experts->rule.renormalize);
    const Json asks = with(small_config(family), {{"norm_topk_prob", true}});
    EXPECT_TRUE(spec_of(asks).experts->rule.renormalize);
  }
  EXPECT_TRUE(spec_of(small_config("olmoe")).qk_norm_joins_heads);
  EXPECT_TRUE(spec_of(small_config("qwen3_moe")).qk_norm);
  EXPECT_FALSE(spec_of(small_config("qwen3_moe")).qk_norm_joins_heads);
}

TEST(Config, OwnExpertsAreReadByTheKeysOfDeepSeek) {
  const ModelSpec spec = spec_of(with(small_config("heddle_moe"), {{"num_experts", nullptr},
                                                                   {"n_routed_experts", 12},
                                                                   {"num_experts_per_tok", 3},
                                                                   {"n_shared_experts", 2},
                                                                   {"routed_scaling_factor", 2.5},
                                                                   {"n_group", 4},
                                                                   {"topk_group", 2},
                                                                   {"first_k_dense_replace", 1}}));
  EXPECT_EQ(spec.experts->count, 12);
  EXPECT_EQ(spec.experts->per_token, 3);
  EXPECT_EQ(spec.experts->shared_width, 20);
  EXPECT_EQ(spec.experts->rule.score, ops::RouterRule::Score::sigmoid);
  EXPECT_TRUE(spec.experts->rule.renormalize);
  EXPECT_EQ(spec.experts->rule.scale, 2.5);
  EXPECT_EQ(spec.experts->rule.groups, 4);
  EXPECT_EQ(spec.experts->rule.kept_groups, 2);
  EXPECT_EQ(spec.block(0).branches[1], "dense");
  EXPECT_EQ(spec.block(1).branches[1], "experts");
}

TEST(Config, OwnExpertsNeedNotBeSharedOrBalanced) {
  const ModelSpec spec = spec_of(with(small_config("heddle_moe"), {{"n_shared_experts", 0},
                                                                   {"n_routed_experts", 6},
                                                                   {"aux_loss_alpha", 0.0},
                                                                   {"seq_aux", true}}));
  EXPECT_EQ(spec.experts->count, 6);
  EXPECT_EQ(spec.experts->shared_width, 0);
}

TEST(Config, LayersWithoutOwnExpertsAreThoseOfDeepSeek) {
  const auto dense = [](const Json& changes) {
    const ModelSpec spec =
        spec_of(with(small_config("heddle_moe"), with({{"num_hidden_layers", 6}}, changes)));
    std::string text;
    for (std::int64_t layer = 0; layer < 6; ++layer) {
      text += spec.block(layer).branches[1] == "dense" ? 'd' : 'e';
    }
    return text;
  };
  EXPECT_EQ(dense({{"moe_layer_freq", 1}}), "eeeeee");
  EXPECT_EQ(dense({{"moe_layer_freq", 2}}), "ededed");
  EXPECT_EQ(dense({{"moe_layer_freq", 2}, {"first_k_dense_replace", 1}}), "ddeded");
  EXPECT_EQ(dense({{"moe_layer_freq", 9}, {"first_k_dense_replace", 0}}), "eddddd");
}

TEST(Config, BalanceOfExpertsCountsWhereRouterLogitsAreAsked) {
  const auto balance = [](const Json& changes) {
    return spec_of(with(small_config("mixtral"), changes)).experts->loss.balance;
  };
  EXPECT_EQ(balance({{"router_aux_loss_coef", 0.02}}), 0.0);
  EXPECT_EQ(balance({{"router_aux_loss_coef", 0.02}, {"output_router_logits", true}}), 0.02);
  EXPECT_EQ(balance({{"output_router_logits", true}}), 0.001);
}

TEST(Config, LayersWithoutExpertsAreThoseOfTransformers) {
  const auto dense = [](const Json& changes) {
    const ModelSpec spec =
        spec_of(with(small_config("qwen3_moe"), with({{"num_hidden_layers", 5}}, changes)));
    std::string text;
    for (std::int64_t layer = 0; layer < 5; ++layer) {
      text += spec.block(layer).branches[1] == "dense" ? 'd' : 'e';
    }
    EXPECT_EQ(spec.expert_layers(), std::ranges::count(text, 'e'));
    return text;
  };
  EXPECT_EQ(dense(Json::object()), "eeeee");
  EXPECT_EQ(dense({{"decoder_sparse_step", 2}}), "deded");
  EXPECT_EQ(dense({{"decoder_sparse_step", 9}}), "ddddd");
  EXPECT_EQ(dense({{"mlp_only_layers", {0, 3, 40}}}), "deede");
  EXPECT_EQ(dense({{"decoder_sparse_step", 2}, {"mlp_only_layers", {1}}}), "ddded");
}

TEST(Config, HeadsNeedNotDivideWhenTheirSizeIsGiven) {
  const Json config = with(small_config("llama"), {{"num_attention_heads", 5}, {"head_dim", 6}});
  EXPECT_EQ(spec_of(config).head_dim, 6);
}

TEST(Config, DropoutIsNotedByKey) {
  EXPECT_EQ(spec_of(small_config("gpt2")).dropout, "");
  EXPECT_EQ(
      spec_of(with(small_config("gpt2"), {{"resid_pdrop", 0.1}, {"attn_pdrop", 0.25}})).dropout,
      "attn_pdrop = 0.25, resid_pdrop = 0.1");
  EXPECT_EQ(spec_of(with(small_config("llama"), {{"attention_dropout", 0.5}})).dropout,
            "attention_dropout = 0.5");
}

TEST(Config, IsKeptWithItsUnknownKeys) {
  const Json config = with(small_config("llama"), {{"torch_dtype", "bfloat16"}});
  EXPECT_EQ(*spec_of(config).config, config);
}

TEST(Config, FamiliesDifferAsPublished) {
  const ModelSpec gpt2 = spec_of(small_config("gpt2")), neox = spec_of(small_config("gpt_neox"));
  const ModelSpec qwen2 = spec_of(small_config("qwen2")), qwen3 = spec_of(small_config("qwen3"));
  EXPECT_TRUE(gpt2.tied_embeddings && gpt2.linears_are_in_out && !gpt2.rope);
  EXPECT_EQ(gpt2.ffn, 96);
  EXPECT_EQ(gpt2.gelu, ops::Gelu::tanh);
  EXPECT_TRUE(neox.blocks[0].is_parallel && neox.qkv_interleaved && !neox.tied_embeddings);
  EXPECT_EQ(neox.gelu, ops::Gelu::exact);
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.attention_out_bias && !qwen2.qk_norm);
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
}

}  // namespace
}  // namespace heddle
