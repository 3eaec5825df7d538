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

RunTokenizer run_tokenizer(const Tokenizer& tokenizer, bool is_models = false) {
  return {.path = "tokenizer.json",
          .json = tokenizer.json(),
          .tokenizer = tokenizer,
          .is_models = is_models};
}

config::RunConfig preset(const std::string& name) {
  config::RunConfig config;
  config.model.preset = name;
  config.data.seq_len = 64;
  return config;
}

TEST(ModelOfARun, TakesBosEosAndVocabularyOfAPresetFromTheTokenizer) {
  const auto config = preset("llama-15m");
  const ModelSpec own = configured_model(config, {});
  EXPECT_EQ(own.vocab, 32000);
  EXPECT_EQ((*own.config)["eos_token_id"], 2);
  const ModelSpec spec = configured_model(config, run_tokenizer(small_tokenizer()));
  EXPECT_EQ(spec.vocab, 258);
  EXPECT_EQ((*spec.config)["vocab_size"], 258);
  EXPECT_EQ((*spec.config)["bos_token_id"], 256);
  EXPECT_EQ((*spec.config)["eos_token_id"], 257);
  EXPECT_TRUE((*spec.config)["pad_token_id"].is_null());
}

TEST(ModelOfARun, SaysNullForTokensThatTheTokenizerDoesNotHave) {
  const ModelSpec spec =
      configured_model(preset("llama-15m"), run_tokenizer(TinyTokenizer{}.load()));
  EXPECT_TRUE((*spec.config)["bos_token_id"].is_null());
  EXPECT_TRUE((*spec.config)["eos_token_id"].is_null());
}

TEST(ModelOfARun, SaysNullForIdsBeyondItsVocabulary) {
  auto config = preset("gpt2-124m");
  config.model.vocab_size = 300;
  EXPECT_TRUE((*configured_model(config, {}).config)["eos_token_id"].is_null());
}

TEST(ModelOfARun, KeepsTheVocabularyThatTheRunFileOrItsConfigGives) {
  auto config = preset("llama-15m");
  config.model.vocab_size = 512;
  EXPECT_EQ(configured_model(config, run_tokenizer(small_tokenizer())).vocab, 512);
  EXPECT_EQ(vocabulary_remark(config, configured_model(config, run_tokenizer(small_tokenizer())),
                              small_tokenizer()),
            "512 tokens, of which the tokenizer uses the first 258");

  const TemporaryFolder folder;
  const auto with_vocabulary = [&](int size) {
    config::RunConfig own;
    own.model.config = folder.path() / "config.json";
    const Json json = {{"model_type", "llama"},  {"vocab_size", size},
                       {"hidden_size", 16},      {"num_hidden_layers", 1},
                       {"intermediate_size", 8}, {"num_attention_heads", 2}};
    write_file_atomically(real_file_system(), own.model.config, json.dump());
    return configured_model(own, run_tokenizer(small_tokenizer())).vocab;
  };
  EXPECT_EQ(with_vocabulary(320), 320) << "rows of padding";
  EXPECT_EQ(with_vocabulary(100), 258) << "at least the tokenizer's";
}

TEST(ModelOfARun, RemarksOnAnotherVocabularyThanThePresets) {
  auto config = preset("llama-15m");
  const auto remark = [&] {
    return vocabulary_remark(config, configured_model(config, run_tokenizer(small_tokenizer())),
                             small_tokenizer());
  };
  EXPECT_EQ(remark(), "258 tokens, the tokenizer's; llama-15m has 32,000");
  config.model.vocab_size = 258;
  EXPECT_EQ(remark(), "");
}

TEST(ModelOfARun, IsWarnedOfSequencesBeyondItsPositions) {
  const ModelSpec spec = configured_model(preset("llama-15m"), {});
  EXPECT_EQ(beyond_positions(spec, spec.max_positions), "");
  EXPECT_NE(beyond_positions(spec, spec.max_positions + 1), "");
}

TEST(ModelOfARun, RefusesToStartAllWeightsAtZero) {
  auto config = preset("llama-15m");
  config.model.init_std = 0.0;
  EXPECT_THROW(configured_model(config, {}), Error);
}

std::map<std::string, Json> files_of(const config::RunConfig& config, const RunTokenizer& of_run,
                                     DType stored) {
  std::map<std::string, Json> files;
  for (const TextFile& file :
       checkpoint_companions(config, configured_model(config, of_run), of_run, stored)) {
    files[file.name] =
        file.name.ends_with(".json") ? parse_json(file.content, file.name) : Json(file.content);
  }
  return files;
}

// AutoTokenizer and GenerationConfig of transformers 5.22 open what is asserted here, and give the
// same ids.
TEST(Companions, OfAnOwnTokenizerAreWhatTransformersOpens) {
  const auto files = files_of(preset("llama-15m"), run_tokenizer(small_tokenizer()), DType::bf16);
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
  const auto files = files_of(config_, run_tokenizer(small_tokenizer(), true), DType::f32);
  EXPECT_EQ(files.at("tokenizer_config.json"), (Json{{"chat_template", "hello"}}));
  EXPECT_EQ(files.at("generation_config.json"), (Json{{"temperature", 0.6}}));
  EXPECT_EQ(files.at("config.json")["eos_token_id"], (Json{7, 8}));
  EXPECT_EQ(files.at("config.json")["dtype"], "float32") << "a checkpoint of a bf16 start";
}

TEST_F(ModelCompanions, AreMadeWhereTheModelHasATokenizerAlone) {
  std::filesystem::remove(folder_.path() / "tokenizer_config.json");
  const auto files = files_of(config_, configured_tokenizer(config_), DType::f32);
  EXPECT_EQ(files.at("tokenizer_config.json")["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(files.at("tokenizer_config.json")["eos_token"], "<|end_of_text|>");
  EXPECT_EQ(files.at("config.json")["eos_token_id"], (Json{7, 8})) << "the model's own";
}

TEST_F(ModelCompanions, EndWhereDocumentsDidToo) {
  config_.data.eos = "<|begin_of_text|>";
  const auto files = files_of(config_, configured_tokenizer(config_), DType::f32);
  EXPECT_EQ(files.at("config.json")["eos_token_id"], (Json{7, 8, 256}));
  EXPECT_EQ(files.at("generation_config.json"),
            (Json{{"temperature", 0.6}, {"eos_token_id", {7, 8, 256}}}));
  EXPECT_EQ(files.at("tokenizer_config.json"),
            (Json{{"chat_template", "hello"}, {"eos_token", "<|begin_of_text|>"}}));
}

TEST_F(ModelCompanions, OfAModelWithAnotherTokenizerAreTheTokenizers) {
  TinyTokenizer other;
  other.added_tokens = {added_token(256, "</s>")};
  const auto files = files_of(config_, run_tokenizer(other.load()), DType::f32);
  EXPECT_EQ(files.at("tokenizer_config.json")["eos_token"], "</s>");
  EXPECT_FALSE(files.at("tokenizer_config.json").contains("chat_template"));
  EXPECT_EQ(files.at("generation_config.json"), (Json{{"eos_token_id", 256}}));
  EXPECT_EQ(files.at("config.json")["eos_token_id"], 256);
  EXPECT_EQ(files.at("config.json")["vocab_size"], 300) << "the weights have it";
}

/// A preset that is trained with the tokenizer of another model's folder.
class OtherModelsTokenizer : public ModelCompanions {
 protected:
  OtherModelsTokenizer() {
    config_ = preset("llama-15m");
    config_.data.tokenizer = folder_.path();
    write("tokenizer_config.json",
          R"({"tokenizer_class":"LlamaTokenizer","eos_token":{"content":"<|begin_of_text|>"}})");
    write("special_tokens_map.json", R"({"pad_token":"<|end_of_text|>"})");
    write("chat_template.jinja", "{{ messages }}");
    write("additional_chat_templates/tool_use.jinja", "{{ tools }}");
  }
  std::map<std::string, Json> files() {
    return files_of(config_, configured_tokenizer(config_), DType::f32);
  }
};

TEST_F(OtherModelsTokenizer, BringsWhatIsSaidOfItThere) {
  const auto found = files();
  EXPECT_EQ(found.at("config.json")["eos_token_id"], 256);
  EXPECT_EQ(found.at("config.json")["pad_token_id"], 257);
  EXPECT_EQ(found.at("generation_config.json")["eos_token_id"], 256);
  EXPECT_FALSE(found.at("generation_config.json").contains("temperature")) << "the model's";
  EXPECT_EQ(found.at("tokenizer_config.json")["tokenizer_class"], "LlamaTokenizer");
  EXPECT_EQ(found.at("chat_template.jinja"), "{{ messages }}");
  EXPECT_EQ(found.at("additional_chat_templates/tool_use.jinja"), "{{ tools }}");
  EXPECT_TRUE(found.contains("special_tokens_map.json"));
}

TEST_F(OtherModelsTokenizer, OfAnotherFormIsWrittenAsATokenizerJson) {
  std::filesystem::remove(folder_.path() / "tokenizer.json");
  write("vocab.json", R"({"a":0,"b":1,"ab":2,"<|endoftext|>":3})");
  write("merges.txt", "#version: 0.2\na b\n");
  write("tokenizer_config.json",
        R"({"tokenizer_class":"GPT2Tokenizer","eos_token":"<|endoftext|>"})");
  const auto found = files();
  EXPECT_EQ(found.at("tokenizer_config.json")["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(found.at("tokenizer.json")["model"]["vocab"]["ab"], 2);
  EXPECT_FALSE(found.contains("vocab.json") || found.contains("merges.txt"));
  EXPECT_EQ(found.at("config.json")["eos_token_id"], 3);
}

/// BertTokenizer of transformers 5.23 gives the same ids of both forms.
TEST_F(OtherModelsTokenizer, OfAVocabTxtKeepsItsClass) {
  std::filesystem::remove(folder_.path() / "tokenizer.json");
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n");
  write("tokenizer_config.json",
        R"({"tokenizer_class":"BertTokenizer","do_lower_case":false,"eos_token":"[SEP]"})");
  const auto found = files();
  EXPECT_EQ(found.at("tokenizer_config.json"), (Json{{"tokenizer_class", "BertTokenizer"},
                                                     {"do_lower_case", false},
                                                     {"eos_token", "[SEP]"}}));
  EXPECT_EQ(found.at("tokenizer.json")["model"]["vocab"]["##b"], 6);
  EXPECT_FALSE(found.contains("vocab.txt"));
  EXPECT_EQ(found.at("config.json")["eos_token_id"], 3);
  EXPECT_EQ(found.at("config.json")["pad_token_id"], 7) << "that of special_tokens_map.json";
  write("tokenizer_config.json", R"({"do_lower_case":false})");
  EXPECT_EQ(files().at("tokenizer_config.json")["tokenizer_class"], "PreTrainedTokenizerFast");
}

TEST_F(OtherModelsTokenizer, ThatCannotBeReadIsCarriedAsItIs) {
  std::filesystem::remove(folder_.path() / "tokenizer.json");
  write("vocab.json", R"({"a":0})");
  write("merges.txt", "");
  write("tokenizer_config.json", R"({"tokenizer_class":"SomeTokenizer"})");
  const RunTokenizer of_run = configured_tokenizer(config_);
  ASSERT_TRUE(of_run.fault);
  EXPECT_NE(of_run.fault->message().find("SomeTokenizer"), std::string::npos);
  const auto found = files();
  EXPECT_EQ(found.at("vocab.json"), (Json{{"a", 0}}));
  EXPECT_EQ(found.at("tokenizer_config.json"), (Json{{"tokenizer_class", "SomeTokenizer"}}));
  EXPECT_FALSE(found.contains("tokenizer.json"));
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
