#include "train/model_setup.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"
#include "support/temporary_folder.h"
#include "tokenizer/tiny_tokenizer.h"
#include "train/companions.h"
#include "train/evaluate.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

/// 256 bytes, <|begin_of_text|> (256) and <|end_of_text|> (257).
Tokenizer small_tokenizer() {
  TinyTokenizer tiny;
  tiny.added_tokens = {added_token(256, "<|begin_of_text|>"), added_token(257, "<|end_of_text|>")};
  return tiny.load();
}

config::RunConfig preset(const std::string& name) {
  config::RunConfig config;
  config.model.preset = name;
  config.data.seq_len = 64;
  return config;
}

TEST(ModelOfARun, TakesBosEosAndVocabularyOfAPresetFromTheTokenizer) {
  const auto config = preset("llama-15m");
  const ModelSpec own = configured_model(config, std::nullopt);
  EXPECT_EQ(own.vocab, 32000);
  EXPECT_EQ((*own.config)["eos_token_id"], 2);
  const ModelSpec spec = configured_model(config, small_tokenizer());
  EXPECT_EQ(spec.vocab, 258);
  EXPECT_EQ((*spec.config)["vocab_size"], 258);
  EXPECT_EQ((*spec.config)["bos_token_id"], 256);
  EXPECT_EQ((*spec.config)["eos_token_id"], 257);
  EXPECT_TRUE((*spec.config)["pad_token_id"].is_null());
}

TEST(ModelOfARun, SaysNullForTokensThatTheTokenizerDoesNotHave) {
  const ModelSpec spec = configured_model(preset("llama-15m"), TinyTokenizer{}.load());
  EXPECT_TRUE((*spec.config)["bos_token_id"].is_null());
  EXPECT_TRUE((*spec.config)["eos_token_id"].is_null());
}

TEST(ModelOfARun, SaysNullForIdsBeyondItsVocabulary) {
  auto config = preset("gpt2-124m");
  config.model.vocab_size = 300;
  EXPECT_TRUE((*configured_model(config, std::nullopt).config)["eos_token_id"].is_null());
}

TEST(ModelOfARun, KeepsTheVocabularyThatTheRunFileOrItsConfigGives) {
  auto config = preset("llama-15m");
  config.model.vocab_size = 512;
  EXPECT_EQ(configured_model(config, small_tokenizer()).vocab, 512);
  EXPECT_EQ(
      vocabulary_remark(config, configured_model(config, small_tokenizer()), small_tokenizer()),
      "512 tokens, of which the tokenizer uses the first 258");

  const TemporaryFolder folder;
  const auto with_vocabulary = [&](int size) {
    config::RunConfig own;
    own.model.config = folder.path() / "config.json";
    const Json json = {{"model_type", "llama"},  {"vocab_size", size},
                       {"hidden_size", 16},      {"num_hidden_layers", 1},
                       {"intermediate_size", 8}, {"num_attention_heads", 2}};
    write_file_atomically(real_file_system(), own.model.config, json.dump());
    return configured_model(own, small_tokenizer()).vocab;
  };
  EXPECT_EQ(with_vocabulary(320), 320) << "rows of padding";
  EXPECT_EQ(with_vocabulary(100), 258) << "at least the tokenizer's";
}

TEST(ModelOfARun, RemarksOnAnotherVocabularyThanThePresets) {
  auto config = preset("llama-15m");
  const auto remark = [&] {
    return vocabulary_remark(config, configured_model(config, small_tokenizer()),
                             small_tokenizer());
  };
  EXPECT_EQ(remark(), "258 tokens, the tokenizer's; llama-15m has 32,000");
  config.model.vocab_size = 258;
  EXPECT_EQ(remark(), "");
}

TEST(ModelOfARun, IsWarnedOfSequencesBeyondItsPositions) {
  const ModelSpec spec = configured_model(preset("llama-15m"), std::nullopt);
  EXPECT_EQ(beyond_positions(spec, spec.max_positions), "");
  EXPECT_NE(beyond_positions(spec, spec.max_positions + 1), "");
}

TEST(ModelOfARun, RefusesToStartAllWeightsAtZero) {
  auto config = preset("llama-15m");
  config.model.init_std = 0.0;
  EXPECT_THROW(configured_model(config, std::nullopt), Error);
}

std::map<std::string, Json> files_of(const config::RunConfig& config, const Tokenizer& tokenizer,
                                     DType stored) {
  std::map<std::string, Json> files;
  const RunTokenizer of_run{
      .path = "tokenizer.json", .json = tokenizer.json(), .tokenizer = tokenizer};
  for (const TextFile& file :
       checkpoint_companions(config, configured_model(config, tokenizer), of_run, stored)) {
    files[file.name] = parse_json(file.content, file.name);
  }
  return files;
}

// AutoTokenizer and GenerationConfig of transformers 5.22 open what is asserted here, and give the
// same ids.
TEST(Companions, OfAnOwnTokenizerAreWhatTransformersOpens) {
  const auto files = files_of(preset("llama-15m"), small_tokenizer(), DType::bf16);
  ASSERT_EQ(files.size(), 4u);
  EXPECT_EQ(files.at("config.json")["torch_dtype"], "bfloat16");
  EXPECT_EQ(files.at("tokenizer_config.json"), (Json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                                     {"model_max_length", 1024},
                                                     {"clean_up_tokenization_spaces", false},
                                                     {"bos_token", "<|begin_of_text|>"},
                                                     {"eos_token", "<|end_of_text|>"}}));
  EXPECT_EQ(files.at("generation_config.json"),
            (Json{{"bos_token_id", 256}, {"eos_token_id", 257}}));
  EXPECT_TRUE(files.contains("tokenizer.json"));
}

/// A model folder as it may come, without its weights.
class ModelCompanions : public testing::Test {
 protected:
  ModelCompanions() {
    config_.model.path = folder_.path();
    write("config.json", R"({"model_type":"llama","vocab_size":300,"hidden_size":16,
      "num_hidden_layers":1,"intermediate_size":8,"num_attention_heads":2,
      "dtype":"bfloat16","eos_token_id":[7,8]})");
    write("tokenizer.json", small_tokenizer().json());
    write("tokenizer_config.json", R"({"chat_template":"hello"})");
    write("generation_config.json", R"({"temperature":0.6})");
  }
  void write(const char* name, const std::string& content) {
    write_file_atomically(real_file_system(), folder_.path() / name, content);
  }
  TemporaryFolder folder_;
  config::RunConfig config_;
};

TEST_F(ModelCompanions, OfAModelAndItsTokenizerStayAsTheyCame) {
  const auto files = files_of(config_, small_tokenizer(), DType::f32);
  EXPECT_EQ(files.at("tokenizer_config.json"), (Json{{"chat_template", "hello"}}));
  EXPECT_EQ(files.at("generation_config.json"), (Json{{"temperature", 0.6}}));
  EXPECT_EQ(files.at("config.json")["eos_token_id"], (Json{7, 8}));
  EXPECT_EQ(files.at("config.json")["dtype"], "float32") << "a checkpoint of a bf16 start";
}

TEST_F(ModelCompanions, OfAModelWithAnotherTokenizerAreTheTokenizers) {
  TinyTokenizer other;
  other.added_tokens = {added_token(256, "</s>")};
  const auto files = files_of(config_, other.load(), DType::f32);
  EXPECT_EQ(files.at("tokenizer_config.json")["eos_token"], "</s>");
  EXPECT_FALSE(files.at("tokenizer_config.json").contains("chat_template"));
  EXPECT_EQ(files.at("generation_config.json"), (Json{{"eos_token_id", 256}}));
  EXPECT_EQ(files.at("config.json")["eos_token_id"], 256);
  EXPECT_EQ(files.at("config.json")["vocab_size"], 300) << "the weights have it";
}

TEST(Evaluate, CountsTheWindowsThatWillBeDone) {
  const TinyRun run;  // 6000 tokens
  const Dataset dataset({.sources = {{run.path() / "data.tokens"}}, .seq_len = 32, .holdout = 1.0});
  const std::int64_t all = dataset.eval_windows();
  EXPECT_GT(all, 100);
  EXPECT_EQ(windows_to_evaluate(dataset, 0), all);
  EXPECT_EQ(windows_to_evaluate(dataset, 1), 1);
  EXPECT_EQ(windows_to_evaluate(dataset, 32), 1);
  EXPECT_EQ(windows_to_evaluate(dataset, 33), 2);
  EXPECT_EQ(windows_to_evaluate(dataset, std::numeric_limits<std::int64_t>::max()), all);
}

}  // namespace
}  // namespace heddle
