#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"
#include "config/presets.h"
#include "support/source_dir.h"

namespace heddle::config {
namespace {

/// Parameters of the model that a config.json describes, tied embeddings counted once.
std::int64_t parameter_count(const Json& c) {
  const auto n = [&](const char* key) { return c.at(key).get<std::int64_t>(); };
  if (c.at("model_type") == "gpt2") {
    const auto d = n("n_embd");
    const auto block = 12 * d * d + 13 * d;  // qkv, projection, MLP of width 4d; biases, two norms
    return (n("vocab_size") + n("n_positions")) * d + n("n_layer") * block + 2 * d;
  }
  const auto d = n("hidden_size"), head = n("head_dim");
  const auto attention = 2 * d * head * (n("num_attention_heads") + n("num_key_value_heads"));
  const auto block = attention + 3 * d * n("intermediate_size") + 2 * d;
  const auto embeddings = c.at("tie_word_embeddings").get<bool>() ? 1 : 2;
  return embeddings * n("vocab_size") * d + n("num_hidden_layers") * block + d;
}

TEST(Presets, HaveThePublishedParameterCounts) {
  const std::map<std::string, std::int64_t> published = {
      {"gpt2-124m", 124'439'808},     {"llama-15m", 15'191'712},
      {"llama-110m", 109'529'856},    {"tinyllama-1.1b", 1'100'048'384},
      {"llama3.2-1b", 1'235'814'400}, {"llama3-8b", 8'030'261'248},
      {"gpt3-175b", 174'615'846'912},
  };
  ASSERT_EQ(preset_names().size(), published.size());
  for (const auto& name : preset_names()) {
    EXPECT_EQ(parameter_count(parse_json(preset_config(name), name)), published.at(name)) << name;
  }
}

TEST(Presets, AreTheFilesOfTheFolder) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/configs/models")) {
    EXPECT_EQ(read_text_file(entry.path()), preset_config(entry.path().stem().string()));
    ++files;
  }
  EXPECT_EQ(files, preset_names().size());
}

TEST(Presets, AnUnknownNameGivesTheNearest) {
  try {
    preset_config("llama-111m");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "no model preset is named \"llama-111m\"; did you mean \"llama-110m\"?");
  }
}

}  // namespace
}  // namespace heddle::config
