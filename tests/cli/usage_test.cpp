#include <algorithm>

#include "cli/refusals.h"
#include "support/source_dir.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

using Words = std::vector<std::string>;

TEST(Usage, EveryVerbHasAHelpThatFitsAScreen) {
  for (const Words& verb : {Words{},
                            Words{"train"},
                            Words{"eval"},
                            Words{"generate"},
                            Words{"tokenize"},
                            Words{"tokenizer"},
                            Words{"tokenizer", "train"},
                            Words{"inspect"},
                            Words{"convert"},
                            Words{"verify"},
                            Words{"verify", "reference"},
                            Words{"verify", "tokenizer"},
                            Words{"simulate"},
                            Words{"bench"},
                            Words{"bench", "train"},
                            Words{"bench", "ops"},
                            Words{"bench", "codec"},
                            Words{"bench", "context"},
                            Words{"doctor"},
                            Words{"config"},
                            Words{"config", "print"},
                            Words{"config", "explain"},
                            Words{"demo-text"}}) {
    Words words = verb;
    words.push_back("--help");
    const Outcome outcome = run_heddle(words);
    SCOPED_TRACE(outcome.out);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.err, "");
    EXPECT_GE(std::ranges::count(outcome.out, '\n'), 5);
    EXPECT_LE(std::ranges::count(outcome.out, '\n'), 40);
  }
}

TEST(Usage, MistakesAreNamed) {
  expect_refusal({}, 2, {"--help"});
  expect_refusal({"trian"}, 2, {"trian", "did you mean train"});
  expect_refusal({"--nonsense"}, 2, {"--nonsense"});
  expect_refusal({"train"}, 2, {"RUN"});
  expect_refusal({"train", "--nonsense"}, 2, {"--nonsense"});
  expect_refusal({"train", "a.toml", "--nonsense"}, 2, {"--nonsense"});
  expect_refusal({"train", "no/such/run.toml"}, 2, {"no/such/run.toml"});
  expect_refusal({"eval", "model"}, 2, {"--data"});
  expect_refusal({"eval", "model", "--data", "x", "--batch", "0"}, 2, {"--batch"});
  expect_refusal({"generate", "model", "--prompt", "x", "--top-p", "2"}, 2, {"--top-p"});
  expect_refusal({"generate", "model", "--prompt", "x", "--exchanges", "one"}, 2,
                 {"--exchanges one", "--prompts"});
  expect_refusal({"generate", "model", "--prompt", "x", "--temperature", "-1"}, 2,
                 {"--temperature"});
  expect_refusal({"convert", "a", "--out", "b", "--dtype", "f8"}, 2, {"--dtype", "bf16"});
  expect_refusal({"verify", "nonsense"}, 2, {"nonsense"});
  expect_refusal({"verify", "reference", reference_model(), "--set", "optim.lr=1"}, 2,
                 {"optim.lr=1"});
  for (const char* threads : {"-1", "two", "", "99999999999"}) {
    expect_refusal({"eval", "model", "--data", "x", "--threads", threads}, 2, {"--threads"});
    expect_refusal({"generate", "model", "--prompt", "x", "--threads", threads}, 2, {"--threads"});
    expect_refusal({"bench", "train", "--model", "llama-15m", "--threads", threads}, 2,
                   {"--threads"});
    expect_refusal(
        {"verify", "reference", reference_model(), "--set", std::string("run.threads=") + threads},
        2, {"run.threads"});
  }
  expect_refusal({"bench", "train", "--model", "nonsense"}, 2, {"nonsense", "llama-110m"});
  for (const char* gpu : {"gpu", "GPU", "nvidia", "cuda:0"}) {
    expect_refusal({"bench", "train", "--model", "llama-15m", "--device", gpu}, 2,
                   {gpu, "did you mean cuda?"});
    expect_refusal({"doctor", "--calibrate", "--device", gpu}, 2, {gpu, "did you mean cuda?"});
  }
  expect_refusal({"bench", "train", "--model", "llama-15m", "--device", "tpu"}, 2, {"tpu", "cuda"});
  expect_refusal({"bench", "ops", "--filter", "nonsense"}, 2, {"nonsense"});
  expect_refusal({"bench", "codec", "--codec", "int9"}, 2, {"int9", "did you mean int8"});
  expect_refusal({"bench", "codec", "--codec", "zfp:64"}, 2, {"zfp:64", "1 to 32"});
  expect_refusal({"bench", "codec", "--values", "0"}, 2, {"--values"});
  expect_refusal({"bench", "codec", "--gradients", "no/such/file.safetensors"}, 5,
                 {"no/such/file.safetensors"});
  expect_refusal({"bench", "context", "--ranks", "1", "--heads", "8", "--kv-heads", "3"}, 2,
                 {"--kv-heads 3", "1, 2, 4 or 8", "--ranks 2"});
  expect_refusal({"bench", "context", "--ranks", "4", "--seq", "3"}, 2, {"--seq 3", "4 or more"});
  expect_refusal({"generate", "model", "--prompt", "x", "--set", "train.steps=3"}, 2,
                 {"train.steps=3", "[parallel]"});
  expect_refusal({"config", "explain", "optim.lrr"}, 2, {"optim.lrr", "optim.lr"});
}

TEST(Usage, MissingFilesAreNamed) {
  const std::string none = "no/such/thing";
  expect_refusal({"eval", none, "--data", "x"}, 5, {none});
  expect_refusal({"eval", reference_model(), "--data", none}, 5, {none});
  expect_refusal({"generate", none, "--prompt", "x"}, 5, {none});
  expect_refusal({"inspect", none}, 5, {none});
  expect_refusal({"inspect", reference_model(), "--compare", none}, 5, {none});
  expect_refusal({"convert", none, "--out", "x"}, 5, {none});
  expect_refusal({"verify", "reference", none}, 5, {none});
  expect_refusal({"verify", "tokenizer", none, none}, 5, {none});
  expect_refusal({"verify", "tokenizer", reference_tokenizer(), none}, 5, {none});
  expect_refusal({"tokenize", none, "--tokenizer", reference_tokenizer(), "--out", "x"}, 5, {none});
  expect_refusal({"tokenizer", "train", none, "--vocab", "300", "--out", "x"}, 5, {none});
}

/// The one JSON object that is all of standard output.
Json only_object(const Words& arguments, int status = 0) {
  const Outcome outcome = run_heddle(arguments);
  EXPECT_EQ(outcome.status, status) << arguments[0] << ": " << outcome.err;
  Json json;
  EXPECT_NO_THROW(json = parse_json(outcome.out, arguments[0])) << outcome.out;
  EXPECT_TRUE(json.is_object()) << outcome.out;
  return json;
}

void expect_keys(const Json& json, const Words& keys) {
  for (const auto& key : keys) EXPECT_TRUE(json.contains(key)) << key << " in " << json.dump();
}

TEST(JsonOutput, IsOneObjectForEveryVerbThatReports) {
  const TinyRun run;
  const auto at = [&](const char* name) { return (run.path() / name).string(); };
  const std::string model = run.run_folder().string();
  expect_keys(only_object(run.command({}, {"--json"})), {"step", "loss", "checkpoint", "finished"});
  expect_keys(only_object({"eval", model, "--data", at("data.tokens"), "--json"}),
              {"loss", "perplexity", "tokens"});
  expect_keys(only_object({"inspect", model, "--json"}), {"tensors"});
  only_object({"inspect", model, "--compare", model, "--json"});
  only_object({"convert", model, "--out", at("converted"), "--json"});
  only_object({"config", "print", at("run.toml"), "--json"});
  only_object({"config", "explain", "optim.lr", "--json"});
  only_object({"config", "explain", "all", "--json"});
  only_object({"doctor", "--json"});
  run.write("text.txt", "one two three");
  expect_keys(only_object({"tokenize", at("text.txt"), "--tokenizer", reference_tokenizer(),
                           "--out", at("text.tokens"), "--json"}),
              {"tokens", "documents"});
}

TEST(JsonOutput, OfVerifyHasTheKeysOfTheContract) {
  const TestFiles files;
  const Words keys = {"logits_rel",     "loss_abs",       "grad_rel",    "grad_worst",
                      "train_loss_abs", "train_norm_rel", "trained_rel", "greedy_equal",
                      "ranks",          "mesh",           "ok"};
  const Json good = only_object({"verify", "reference", reference_model(), "--json"});
  expect_keys(good, keys);
  EXPECT_EQ(good["ok"], true);
  const std::string folder = files.at("model");
  write_edited_model(folder, [](auto& tensors) { tensors[0].bytes[3] ^= '\x01'; });
  std::filesystem::copy(reference_model() + "/reference.safetensors", folder);
  const Json bad = only_object({"verify", "reference", folder, "--json"}, 5);
  expect_keys(bad, keys);
  EXPECT_EQ(bad["ok"], false);
  const std::string cases = source_dir() + "/tests/reference/tokenizer/cases.json";
  expect_keys(only_object({"verify", "tokenizer", reference_tokenizer(), cases, "--json"}),
              {"cases", "passed", "ok"});
}

TEST(JsonOutput, OfBenchHasTheKeysOfTheContract) {
  expect_keys(only_object({"bench", "train", "--model", reference_model() + "/config.json", "--seq",
                           "16", "--batch", "1", "--steps", "1", "--threads", "1", "--json"}),
              {"tokens_per_second", "step_seconds_median", "step_seconds_spread", "model_tflops",
               "mfu", "gemm_tflops_measured", "fraction_of_gemm", "peak_memory_bytes",
               "predicted_memory_bytes", "parameters"});
  expect_keys(only_object({"bench", "ops", "--filter", "rope", "--seconds", "0", "--threads", "1",
                           "--json"}),
              {"ops"});
  const Json codecs = only_object({"bench", "codec", "--codec", "int8", "--codec", "topk",
                                   "--gradients", reference_model() + "/reference.safetensors",
                                   "--values", "5000", "--seconds", "0", "--json"});
  expect_keys(codecs, {"device", "threads", "values", "codecs"});
  ASSERT_EQ(codecs["codecs"].size(), 2U);
  for (const Json& codec : codecs["codecs"]) {
    expect_keys(codec, {"codec", "gaussian", "gradients", "encode_seconds", "decode_seconds",
                        "copy_seconds", "encode_fraction", "decode_fraction"});
    for (const char* values : {"gaussian", "gradients"}) {
      expect_keys(codec[values], {"bytes_per_value", "relative_error"});
    }
  }
  const Json context = only_object({"bench", "context", "--ranks", "2", "--seq", "64", "--rounds",
                                    "1", "--threads", "1", "--json"});
  expect_keys(context, {"ranks", "pairs_per_second", "link_bytes_per_second", "methods"});
  for (const Json& method : context["methods"]) {
    expect_keys(method, {"method", "order", "seconds", "predicted_seconds", "sent_bytes"});
  }
  const Json shares = only_object({"bench", "context", "--shares", "--ranks", "3", "--seq", "64",
                                   "--rounds", "1", "--threads", "1", "--json"});
  expect_keys(shares, {"ranks", "whole_forward_seconds", "whole_backward_seconds", "methods"});
  for (const Json& method : shares["methods"]) {
    expect_keys(method, {"method", "order", "forward_seconds", "backward_seconds", "of_whole"});
    EXPECT_TRUE(method["of_whole"].is_number());  // of so small a shape it may be anything
  }
}

}  // namespace
}  // namespace heddle
