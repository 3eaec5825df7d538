#include "model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "model/config_testing.h"
#include "parallel/param_store.h"

namespace heddle {
namespace {

/// Every parameter of a small model of the family, by the names of its parts.
std::map<std::string, const Parameter*> parameters(const ModelSpec& spec, const Decoder& decoder) {
  std::map<std::string, const Parameter*> named;
  for (Layer* unit : decoder.unit_pointers()) {
    unit->visit([&](Parameter& p) {
      std::int64_t covered = 0;
      for (const auto& part : p.parts) {
        named[part.name] = &p;
        EXPECT_EQ(part.extent, part.whole) << part.name << " is not here as a whole";
        covered += part.extent.count();
      }
      EXPECT_EQ(covered, p.shape.count()) << spec.family << " " << p.parts.front().name;
    });
  }
  return named;
}

TEST(Decoder, HasEmbeddingBlocksNormAndHead) {
  Memory memory(Memory::Mode::dry);
  const Decoder decoder = build_decoder(spec_of(small_config("llama")), {.positions = 4}, memory);
  ASSERT_EQ(decoder.stages.size(), 1u);
  EXPECT_EQ(decoder.stages[0].size(), 2u + 3u);
  EXPECT_EQ(decoder.stages[0].back().get(), decoder.head);
  EXPECT_EQ(decoder.head_entry, nullptr);
}

TEST(Decoder, NamesItsTensorsAsTheFamilyDoes) {
  Memory memory(Memory::Mode::dry);
  const std::map<std::string, std::vector<const char*>> some = {
      {"gpt2",
       {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.1.attn.c_attn.bias",
        "transformer.h.0.mlp.c_proj.weight", "transformer.ln_f.bias"}},
      {"gpt_neox",
       {"gpt_neox.embed_in.weight", "gpt_neox.layers.1.attention.query_key_value.bias",
        "gpt_neox.layers.0.mlp.dense_4h_to_h.bias", "embed_out.weight"}},
      {"llama",
       {"model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"}},
      {"qwen2", {"model.layers.1.self_attn.k_proj.bias"}},
      {"qwen3", {"model.layers.1.self_attn.k_norm.weight"}},
  };
  for (const auto& [family, names] : some) {
    const ModelSpec spec = spec_of(small_config(family));
    const Decoder decoder = build_decoder(spec, {.positions = 4}, memory);
    const auto named = parameters(spec, decoder);
    for (const char* name : names) EXPECT_TRUE(named.contains(name)) << name;
  }
}

TEST(Decoder, StartsOutputProjectionsSmallerWhereAsked) {
  Memory memory(Memory::Mode::dry);
  const ModelSpec spec = spec_of(small_config("gpt2"));
  const Decoder plain = build_decoder(spec, {.positions = 4}, memory);
  const Decoder scaled = build_decoder(spec, {.positions = 4, .scale_residual_init = true}, memory);
  const auto before = parameters(spec, plain), after = parameters(spec, scaled);
  for (const auto& [name, parameter] : before) {
    const bool is_output = name.ends_with("c_proj.weight");
    EXPECT_DOUBLE_EQ(after.at(name)->init.stddev, parameter->init.stddev * (is_output ? 0.5 : 1.0))
        << name;
  }
}

TEST(Decoder, CountsAttentionInsideTheWindow) {
  const ModelSpec plain = spec_of(small_config("llama"));
  const auto attention = [&](std::int64_t window, std::int64_t seq_len) {
    const ModelSpec spec = spec_of(with(small_config("mistral"), {{"sliding_window", window}}));
    return training_flops_per_token(spec, seq_len) -
           6.0 * static_cast<double>(spec.matmul_parameter_count());
  };
  const double whole = training_flops_per_token(plain, 64) -
                       6.0 * static_cast<double>(plain.matmul_parameter_count());
  EXPECT_DOUBLE_EQ(attention(64, 64), whole);
  EXPECT_DOUBLE_EQ(attention(4096, 64), whole);
  // Of 64 x 64 / 2 pairs, 48 x 48 / 2 lie before a window of 16.
  EXPECT_DOUBLE_EQ(attention(16, 64), whole * (1.0 - 48.0 * 48.0 / (64.0 * 64.0)));
}

TEST(Decoder, RefusesSequencesLongerThanLearnedPositions) {
  Memory memory(Memory::Mode::dry);
  const ModelSpec spec = spec_of(with(small_config("gpt2"), {{"n_positions", 16}}));
  EXPECT_NO_THROW(build_decoder(spec, {.positions = 16}, memory));
  try {
    build_decoder(spec, {.positions = 17}, memory);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_STREQ(e.what(),
                 "sequences of 17 tokens do not fit the model's table of 16 positions; use at "
                 "most 16");
  }
}

}  // namespace
}  // namespace heddle
