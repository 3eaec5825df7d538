#include <algorithm>
#include <limits>

#include "cli/refusals.h"
#include "data/token_file.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

TEST(BadSafetensors, AreRefusedByNameWhateverIsWrong) {
  const std::string four(4, '\0'), eight(8, '\0');
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& at) {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + at + "}";
  };
  const std::string good = tensor("F32", "[1]", "[0,4]");
  const std::vector<std::pair<std::string, std::string>> files = {
      {"empty", ""},
      {"short", "abc"},
      {"length-beyond-the-file", std::string("\xff\xff\0\0\0\0\0\0{}", 10)},
      {"length-of-exabytes", std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10)},
      {"length-of-all-ones", std::string(8, '\xff') + "{}"},
      {"not-json", safetensors_text("{\"a\":", four)},
      {"not-an-object", safetensors_text("[]", four)},
      {"deep", safetensors_text(std::string(100'000, '['), four)},
      {"not-utf8", safetensors_text("{\"\xff\":" + good + "}", four)},
      {"no-offsets", safetensors_text(R"({"a":{"dtype":"F32","shape":[1]}})", four)},
      {"overlap", safetensors_text("{\"a\":" + good + ",\"b\":" + good + "}", four)},
      {"gap", safetensors_text("{\"a\":" + tensor("F32", "[1]", "[4,8]") + "}", eight)},
      {"beyond", safetensors_text("{\"a\":" + tensor("F32", "[2]", "[0,8]") + "}", four)},
      {"backwards", safetensors_text("{\"a\":" + tensor("F32", "[1]", "[4,0]") + "}", four)},
      {"other-size", safetensors_text("{\"a\":" + tensor("F32", "[2]", "[0,4]") + "}", four)},
      {"negative", safetensors_text("{\"a\":" + tensor("F32", "[-1]", "[0,4]") + "}", four)},
      {"huge",
       safetensors_text("{\"a\":" + tensor("F32", "[1099511627776,1099511627776]", "[0,4]") + "}",
                        four)},
      {"huge-offsets",
       safetensors_text(
           "{\"a\":" + tensor("F32", "[4611686018427387904]", "[0,18446744073709551615]") + "}",
           four)},
      {"trailing", safetensors_text("{\"a\":" + good + "}", eight)},
  };
  const TestFiles folder;
  for (const auto& [name, content] : files) {
    const std::string path = folder.write(name + ".safetensors", content);
    expect_refusal({"inspect", path}, 5, {path});
    expect_refusal({"convert", path, "--out", folder.at("out")}, 5, {path});
  }
  EXPECT_FALSE(std::filesystem::exists(folder.at("out")));
}

/// A model folder that is asked to evaluate a few tokens.
class BadModel : public testing::Test {
 protected:
  BadModel() {
    const std::vector<std::int32_t> tokens(200, 1);
    write_token_file(real_file_system(), files_.at("data.tokens"), {.vocab_size = 101}, tokens,
                     std::vector<std::int64_t>{0});
  }
  void edit(const std::function<void(std::vector<LooseTensor>&)>& change) {
    write_edited_model(files_.path() / "model", change);
  }
  void expect_eval_refused(int status, const std::vector<std::string>& mentions) const {
    expect_refusal({"eval", files_.at("model"), "--data", files_.at("data.tokens")}, status,
                   mentions);
  }
  std::string config() const { return read_text_file(reference_model() + "/config.json"); }
  void use_config(const std::string& text) {
    edit([](auto&) {});
    files_.write("model/config.json", text);
  }

  TestFiles files_;
};

TEST_F(BadModel, UnchangedIsAccepted) {
  edit([](auto&) {});
  EXPECT_EQ(run_heddle({"eval", files_.at("model"), "--data", files_.at("data.tokens")}).status, 0);
}

/// Some files of tied models have the head too. Another one than the embedding is another model.
TEST_F(BadModel, WithAnotherHeadThanTheTiedEmbeddingIsRefused) {
  std::string tied = config();
  const std::string apart = "\"tie_word_embeddings\": false";
  tied.replace(tied.find(apart), apart.size(), "\"tie_word_embeddings\": true");
  use_config(tied);
  expect_eval_refused(5, {"lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"});
  std::filesystem::remove_all(files_.path() / "model");
  edit([](auto& tensors) {
    const auto named = [&](const std::string& name) {
      return std::ranges::find_if(tensors, [&](const auto& t) { return t.spec.name == name; });
    };
    named("lm_head.weight")->bytes = named("model.embed_tokens.weight")->bytes;
  });
  files_.write("model/config.json", tied);
  EXPECT_EQ(run_heddle({"eval", files_.at("model"), "--data", files_.at("data.tokens")}).status, 0);
}

TEST_F(BadModel, WithANotANumberIsRefused) {
  edit([](auto& tensors) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(&tensors[3].bytes[4], &nan, sizeof nan);
  });
  const SafetensorsFile file(files_.at("model/model.safetensors"));
  expect_eval_refused(5, {"model.safetensors", file.entries()[3].name, "NaN", "element 1"});
}

TEST_F(BadModel, WithAnotherShapeIsRefused) {
  edit([](auto& tensors) {
    for (auto& tensor : tensors) {
      if (tensor.spec.name == "lm_head.weight") tensor.spec.sizes = {32, 101};
    }
  });
  expect_eval_refused(5, {"model.safetensors", "lm_head.weight", "shape"});
}

TEST_F(BadModel, WithoutATensorIsRefused) {
  edit([](auto& tensors) {
    std::erase_if(tensors, [](auto& tensor) { return tensor.spec.name == "model.norm.weight"; });
  });
  expect_eval_refused(5, {files_.at("model"), "model.norm.weight"});
}

TEST_F(BadModel, WithATensorTooManyIsRefused) {
  edit([](auto& tensors) {
    tensors.push_back(tensors.front());
    tensors.back().spec.name = "model.layers.9.mlp.up_proj.weight";
  });
  expect_eval_refused(5, {"model.safetensors", "model.layers.9.mlp.up_proj.weight"});
}

TEST_F(BadModel, WithIntegersForWeightsIsRefused) {
  edit([](auto& tensors) { tensors.front().spec.dtype_name = "I32"; });
  const SafetensorsFile file(files_.at("model/model.safetensors"));
  expect_eval_refused(5, {"model.safetensors", file.entries()[0].name});
}

TEST_F(BadModel, WithAMalformedConfigIsRefused) {
  for (const auto& [text, what] : std::vector<std::pair<std::string, std::string>>{
           {"", "JSON"},
           {"{", "JSON"},
           {"[]", "object"},
           {"{}", "model_type"},
           {R"({"model_type": 3})", "model_type"},
           {R"({"model_type": "bert"})", "bert"},
           {R"({"model_type": "llama"})", "vocab_size"},
           {R"({"model_type": "llama\xff"})", "JSON"}}) {
    use_config(text);
    expect_eval_refused(5, {"config.json", what});
    std::filesystem::remove_all(files_.at("model"));
  }
}

TEST_F(BadModel, WithSenselessNumbersIsRefused) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, Json>>{{"hidden_size", 0},
                                                 {"hidden_size", -32},
                                                 {"hidden_size", "many"},
                                                 {"hidden_size", 1.5},
                                                 {"hidden_size", 1'000'000'000'000},
                                                 {"num_attention_heads", 0},
                                                 {"num_key_value_heads", 3},
                                                 {"vocab_size", 0},
                                                 {"vocab_size", 9'000'000'000'000'000'000},
                                                 {"num_hidden_layers", -1},
                                                 {"num_hidden_layers", 1'000'000'000},
                                                 {"max_position_embeddings", 0},
                                                 {"rms_norm_eps", "small"},
                                                 {"hidden_act", "nonsense"}}) {
    Json changed = parse_json(config(), "config.json");
    changed[key] = value;
    use_config(changed.dump());
    expect_eval_refused(5, {"config.json", key});
    std::filesystem::remove_all(files_.at("model"));
  }
}

TEST_F(BadModel, WithMillionsOfLayersIsRefusedAtOnce) {
  Json changed = parse_json(config(), "config.json");
  changed["num_hidden_layers"] = 10'000'000;
  use_config(changed.dump());
  expect_eval_refused(5, {"config.json", "10000000 layers"});
}

/// Compared with the file before anything is taken for it: these would be 100 terabytes, and this
/// many layers take a while to make.
TEST_F(BadModel, WithSizesThatNoMemoryHoldsIsRefusedByTheFile) {
  const std::vector<std::pair<Json, std::string>> lies = {
      {{{"hidden_size", 1 << 20}, {"intermediate_size", 1 << 22}}, "but config.json makes it"},
      {{{"vocab_size", 1 << 24}}, "has shape [101, 32], but config.json makes it [16777216, 32]"},
      {{{"num_hidden_layers", 65'000}}, "config.json asks for 65000 layers"}};
  for (const auto& [lie, said] : lies) {
    Json changed = parse_json(config(), "config.json");
    changed.update(lie);
    use_config(changed.dump());
    expect_eval_refused(5, {files_.at("model"), said});
    expect_refusal({"generate", files_.at("model"), "--prompt", "a"}, 5, {said});
    const std::vector<std::string> fine_tuning = {"model.config=\"\"",
                                                  "model.path=" + files_.at("model")};
    expect_refusal(TinyRun().command(fine_tuning), 5, {said});
    std::filesystem::remove_all(files_.at("model"));
  }
}

/// A run that was begun with weights has those of its checkpoint.
TEST_F(BadModel, WhoseWeightsAreGoneGoesOnFromACheckpoint) {
  const TinyRun first, run;
  ASSERT_EQ(first.train().status, 0);
  const std::string model = files_.at("tuned");
  ASSERT_EQ(run_heddle({"convert", first.checkpoint(10).string(), "--out", model}).status, 0);
  const std::vector<std::string> settings = {"model.config=\"\"", "model.path=" + model};
  ASSERT_EQ(run.train(settings).status, 0);
  std::filesystem::remove(model + "/model.safetensors");
  std::vector<std::string> longer = settings;
  longer.emplace_back("train.steps=12");
  const Outcome resumed = run.train(longer, {"--accept-changes"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_TRUE(std::filesystem::exists(run.checkpoint(12)));
}

TEST_F(BadModel, WithoutATokenizerCannotSpeak) {
  edit([](auto&) {});
  expect_refusal({"generate", files_.at("model"), "--prompt", "a"}, 5, {"tokenizer.json"});
  files_.write("model/tokenizer.json", "{\"model\": {");
  expect_refusal({"generate", files_.at("model"), "--prompt", "a"}, 5, {"tokenizer.json"});
}

TEST_F(BadModel, WithASmallerVocabularyThanItsTokenizerIsRefused) {
  edit([](auto&) {});
  files_.write("model/tokenizer.json", read_text_file(reference_tokenizer()));
  expect_refusal({"generate", files_.at("model"), "--prompt", "A longer text with many words."}, 5,
                 {"vocabulary", "101"});
  files_.write("text.txt", "A longer text with many words.");
  expect_refusal({"eval", files_.at("model"), "--data", files_.at("text.txt")}, 2,
                 {"text.txt", "vocabulary", "101"});
}

TEST_F(BadModel, WithDamagedShardsIsRefused) {
  const std::string shards = reference_model("llama-linear-bias");
  std::filesystem::copy(shards, files_.path() / "model");
  std::filesystem::remove(files_.path() / "model" / "model-00002-of-00003.safetensors");
  expect_eval_refused(5, {"model-00002-of-00003.safetensors"});
  files_.write("model/model.safetensors.index.json", "{\"weight_map\": 3}");
  expect_eval_refused(5, {"model.safetensors.index.json"});
}

}  // namespace
}  // namespace heddle
