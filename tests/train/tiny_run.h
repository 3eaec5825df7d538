#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/catalog.h"
#include "cli/run_program.h"
#include "data/token_file.h"
#include "support/temporary_folder.h"

namespace heddle {

/// A folder with all that a small training run needs: config.json (48 thousand parameters),
/// data.tokens (a noisy cycle of 61 ids, soon learnt) and run.toml, whose run folder is run/.
class TinyRun {
 public:
  /// `changes`: what of config.json is otherwise.
  explicit TinyRun(const Json& changes = Json::object()) {
    Json config = {{"model_type", "llama"},         {"hidden_size", 48},
                   {"intermediate_size", 96},       {"num_hidden_layers", 2},
                   {"num_attention_heads", 4},      {"num_key_value_heads", 2},
                   {"max_position_embeddings", 64}, {"vocab_size", 61},
                   {"rms_norm_eps", 1e-5},          {"tie_word_embeddings", false}};
    config.update(changes);
    write("config.json", config.dump());
    write_tokens("data.tokens", 1);
    write("run.toml", fmt::format(R"([model]
config = "{0}/config.json"
[data]
train = "{0}/data.tokens"
seq_len = 32
holdout = 0.1
[train]
steps = 10
tokens_per_step = 128
microbatch = 2
[optim]
lr = 3e-3
warmup_steps = 2
[checkpoint]
every = 4
[run]
dir = "{0}/run"
threads = 1
)",
                                  path().string()));
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path run_folder() const { return path() / "run"; }
  std::filesystem::path checkpoints() const { return run_folder() / "checkpoints"; }
  std::filesystem::path checkpoint(std::int64_t step) const {
    return checkpoints() / checkpoint_name(step);
  }

  void write(const std::string& name, const std::string& content) const {
    write_file_atomically(real_file_system(), path() / name, content);
  }

  /// 6000 tokens in documents of 100.
  void write_tokens(const std::string& name, std::uint64_t seed) const {
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> starts;
    for (std::uint64_t i = 0; i < 6000; ++i) {
      const std::uint64_t noise = mix(seed * 10'000 + i);
      if (i % 100 == 0) starts.push_back(static_cast<std::int64_t>(i));
      tokens.push_back(noise % 10 == 0 ? static_cast<std::int32_t>(noise / 10 % 61)
                                       : (tokens.empty() ? 0 : (tokens.back() * 7 + 3) % 61));
    }
    write_token_file(real_file_system(), path() / name, {.vocab_size = 61}, tokens, starts);
  }

  /// demo.jsonl, and tokenizer.json (300 tokens) made of it.
  void write_text() const {
    const std::string text = (path() / "demo.jsonl").string();
    ASSERT_EQ(run_heddle({"demo-text", "--out", text, "--bytes", "20000"}).status, 0);
    ASSERT_EQ(
        run_heddle({"tokenizer", "train", text, "--vocab", "300", "--special", "<|endoftext|>",
                    "--out", (path() / "tokenizer.json").string(), "--threads", "1"})
            .status,
        0);
  }

  /// Makes data.tokens one of two sources, with three quarters of the samples.
  void use_two_sources() const {
    write_tokens("other.tokens", 2);
    std::string text = read_text_file(path() / "run.toml");
    const std::string train = fmt::format("train = \"{}/data.tokens\"\n", path().string());
    text.erase(text.find(train), train.size());
    for (const auto& [name, weight] : {std::pair("data", 3), std::pair("other", 1)}) {
      text += fmt::format("[[data.sources]]\npath = \"{}/{}.tokens\"\nweight = {}\nname = \"{}\"\n",
                          path().string(), name, weight, name);
    }
    write("run.toml", text);
  }

  std::vector<std::string> command(const std::vector<std::string>& settings,
                                   const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> words = {"train", (path() / "run.toml").string()};
    for (const auto& setting : settings) words.insert(words.end(), {"--set", setting});
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }
  Outcome train(const std::vector<std::string>& settings = {},
                const std::vector<std::string>& flags = {}, const RunOptions& options = {}) const {
    return run_heddle(command(settings, flags), options);
  }

  /// The objects of metrics.jsonl.
  std::vector<Json> metrics() const {
    std::vector<Json> lines;
    const std::string text = read_text_file(run_folder() / "metrics.jsonl");
    for (std::size_t at = 0; at < text.size();) {
      const auto end = text.find('\n', at);
      lines.push_back(parse_json(text.substr(at, end - at), "metrics.jsonl"));
      at = end + 1;
    }
    return lines;
  }
  /// What must not depend on when a run was interrupted: step, tokens, loss, norm and lr of every
  /// step, and all evaluations, to the last digit.
  std::string numbers() const {
    std::string text;
    for (Json line : metrics()) {
      for (const char* timing : {"step_seconds", "tokens_per_second", "mfu", "data_wait_seconds",
                                 "block_seconds", "sites_waited"}) {
        line.erase(timing);
      }
      text += line.dump() + "\n";
    }
    return text;
  }

 private:
  static std::uint64_t mix(std::uint64_t value) {
    value = (value + 1) * 0x9E3779B97F4A7C15;
    value = (value ^ (value >> 31)) * 0xBF58476D1CE4E5B9;
    return value ^ (value >> 29);
  }

  TemporaryFolder folder_;
};

/// The content of every tensor file of a checkpoint, by name: weights and optimizer, all bits.
inline std::map<std::string, std::string> tensors_of(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint)) {
    if (entry.path().extension() != ".safetensors") continue;
    files[entry.path().lexically_relative(checkpoint).string()] = read_text_file(entry.path());
  }
  return files;
}

/// EXPECTs the same training state, bit for bit.
inline void expect_same_state(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto left = tensors_of(a), right = tensors_of(b);
  EXPECT_GE(left.size(), 3u) << a;  // weights and two moments
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [name, bytes] : left) {
    ASSERT_TRUE(right.contains(name)) << name;
    EXPECT_TRUE(bytes == right.at(name)) << name << " differs";
  }
}

}  // namespace heddle
