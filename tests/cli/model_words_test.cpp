#include <algorithm>
#include <cmath>

#include "cli/refusals.h"
#include "tokenizer/tiny_tokenizer.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

/// The reference model `llama` (vocabulary 101) with a tokenizer whose ids are the bytes.
class SpeakingModel : public testing::Test {
 protected:
  SpeakingModel() {
    std::filesystem::copy(reference_model(), files_.path() / "model");
    files_.write("model/tokenizer.json", TinyTokenizer{}.json().dump());
    set({{"eos_token_id", nullptr}});
  }
  void set(const Json& changes) {
    Json config = parse_json(read_text_file(reference_model() + "/config.json"), "config.json");
    config.update(changes);
    files_.write("model/config.json", config.dump());
  }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"generate", files_.at("model"), "--prompt", "A"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Json generated(const char* max_tokens = "12") const {
    const Outcome outcome =
        run_heddle(command({"--temperature", "0", "--max-tokens", max_tokens, "--json"}));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return parse_json(outcome.out, "generate");
  }

  TestFiles files_;
};

TEST_F(SpeakingModel, StopsAtTheEndTokensOfItsConfigs) {
  const Json free = generated();
  ASSERT_EQ(free["tokens"].size(), 12u);
  EXPECT_EQ(free.value("stopped", ""), "max_tokens");
  const auto came = free["token_seconds"].get<std::vector<double>>();
  EXPECT_EQ(came.size(), 12u);
  EXPECT_TRUE(std::ranges::is_sorted(came) && came.back() <= free["seconds"].get<double>());
  // The first token that was not there before, so that there is something in front of it.
  std::size_t at = 1;
  while (free["tokens"][at] == free["tokens"][0]) ++at;
  const Json upto(std::vector<Json>(free["tokens"].begin(),
                                    free["tokens"].begin() + static_cast<std::ptrdiff_t>(at + 1)));
  set({{"eos_token_id", free["tokens"][at]}});
  Json stopped = generated();
  EXPECT_EQ(stopped["tokens"], upto);
  EXPECT_EQ(stopped.value("stopped", ""), "end_token");
  // Both files count, and all ends that they name.
  set({{"eos_token_id", 100}});
  files_.write("model/generation_config.json",
               Json{{"eos_token_id", {101, free["tokens"][at]}}}.dump());
  EXPECT_EQ(generated()["tokens"], upto);
  set({{"eos_token_id", free["tokens"][0]}});
  EXPECT_EQ(generated()["tokens"], Json::array({free["tokens"][0]}));
}

TEST_F(SpeakingModel, SaysThatItStoppedAtItsLastPosition) {
  EXPECT_EQ(generated("1000").value("stopped", ""), "positions");
}

TEST_F(SpeakingModel, RefusesNumbersThatAreNone) {
  for (const char* value : {"nan", "inf", "-inf", "-1"}) {
    expect_refusal(command({"--temperature", value}), 2, {"--temperature", value});
    expect_refusal(command({"--top-p", value}), 2, {"--top-p", value});
  }
  expect_refusal(command({"--max-tokens", std::string(300, '9')}), 2,
                 {"--max-tokens", "(300 characters)"});
}

TEST_F(SpeakingModel, RefusesInFewWords) {
  const std::string many(5000, 'x');
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{many},
                                             {"--temperature", "inf"},
                                             {"--top-k", many},
                                             {"--seed", std::string(300, '9')}}) {
    const Outcome outcome = run_heddle(command(more));
    EXPECT_EQ(outcome.status, 2);
    EXPECT_LT(outcome.err.size(), 500u) << outcome.err;
  }
  for (const char* key : {"vocab_size", "rms_norm_eps", "hidden_act", "rope_parameters"}) {
    set({{key, many}});
    const Outcome outcome = run_heddle(command({}));
    EXPECT_EQ(outcome.status, 5);
    EXPECT_LT(outcome.err.size(), 500u) << outcome.err;
    EXPECT_NE(outcome.err.find(key), std::string::npos) << outcome.err;
  }
}

TEST_F(SpeakingModel, ThatIsQuantizedIsRefusedByEveryVerbThatComputes) {
  set({{"quantization_config", {{"quant_method", "fp8"}}}});
  expect_refusal(command({}), 5, {"config.json", "quantization_config"});
  const TinyRun run;
  const std::string data = (run.path() / "data.tokens").string();
  expect_refusal({"eval", files_.at("model"), "--data", data}, 5, {"quantization_config"});
  expect_refusal(run.command({"model.config=\"\"", "model.path=" + files_.at("model")}), 5,
                 {"quantization_config"});
  expect_refusal({"convert", files_.at("model"), "--out", files_.at("out")}, 5,
                 {"config.json", "quantized (fp8)", "--keep-quantized"});
}

TEST_F(SpeakingModel, WithFp8WeightsIsRefusedByEveryVerbThatComputes) {
  std::filesystem::remove_all(files_.path() / "model");
  write_edited_model(files_.path() / "model", [](auto& tensors) {
    tensors[2].spec.dtype_name = "F8_E4M3";
    tensors[2].bytes.resize(tensors[2].bytes.size() / 4);
  });
  files_.write("model/tokenizer.json", TinyTokenizer{}.json().dump());
  expect_refusal(command({}), 5, {"model.safetensors", "F8_E4M3"});
  expect_refusal({"convert", files_.at("model"), "--out", files_.at("out")}, 5, {"F8_E4M3"});
  const Outcome kept =
      run_heddle({"convert", files_.at("model"), "--out", files_.at("out"), "--keep-quantized"});
  EXPECT_EQ(kept.status, 0) << kept.err;
  EXPECT_NE(kept.err.find("F8_E4M3"), std::string::npos) << kept.err;
  const Outcome inspect = run_heddle({"inspect", files_.at("model")});
  EXPECT_EQ(inspect.status, 0);
  EXPECT_NE(inspect.out.find("1 tensors are of types that heddle does not read"), std::string::npos)
      << inspect.out;
}

TEST_F(SpeakingModel, WithANegativeInitializerRangeIsRefused) {
  for (const double range : {-1.0, -1e-9, 7.0}) {
    set({{"initializer_range", range}});
    expect_refusal(command({}), 5, {"config.json", "initializer_range"});
  }
}

TEST_F(SpeakingModel, BeyondItsPositionsIsWarnedOf) {
  const TinyRun run;
  const std::string data = (run.path() / "data.tokens").string();
  const std::string model = files_.at("model");  // 256 positions
  const auto eval = [&](const char* seq) {
    return run_heddle({"eval", model, "--data", data, "--seq", seq, "--max-tokens", "300"});
  };
  EXPECT_EQ(eval("256").err.find("positions"), std::string::npos);
  const Outcome longer = eval("300");
  EXPECT_EQ(longer.status, 0) << longer.err;
  EXPECT_NE(longer.err.find("longer than the 256 positions"), std::string::npos) << longer.err;
  const Outcome train =
      run.train({"data.seq_len=128", "train.tokens_per_step=256"}, {"--dry-run"});  // 64 positions
  EXPECT_EQ(train.status, 0) << train.err;
  EXPECT_NE(train.err.find("longer than the 64 positions"), std::string::npos) << train.err;
}

TEST_F(SpeakingModel, WithLearnedPositionsIsNotEvaluatedBeyondThem) {
  const TinyRun run;
  expect_refusal({"eval", reference_model("gpt2"), "--data", (run.path() / "data.tokens").string(),
                  "--seq", "41"},
                 2, {"41", "40 positions"});
}

TEST_F(SpeakingModel, IsEvaluatedInsideItsWindow) {
  const TinyRun run;
  std::filesystem::remove_all(files_.path() / "model");
  std::filesystem::copy(reference_model("mistral"), files_.path() / "model");
  const auto loss = [&](const Json& window) {
    Json config =
        parse_json(read_text_file(reference_model("mistral") + "/config.json"), "config.json");
    config["sliding_window"] = window;
    files_.write("model/config.json", config.dump());
    const Outcome outcome =
        run_heddle({"eval", files_.at("model"), "--data", (run.path() / "data.tokens").string(),
                    "--seq", "24", "--max-tokens", "240", "--json"});
    return outcome.status == 0 ? parse_json(outcome.out, "eval")["loss"] : Json(outcome.err);
  };
  EXPECT_EQ(loss(24), loss(nullptr));
  EXPECT_TRUE(loss(24).is_number());
  EXPECT_TRUE(loss(5).is_number());
  EXPECT_NE(loss(5), loss(24));
}

}  // namespace
}  // namespace heddle
