#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/catalog.h"
#include "cli/run_program.h"
#include "data/token_file.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"

namespace heddle {

/// A folder with all that a small run on text needs: text.jsonl, tokenizer.json (603 tokens),
/// config.json and run.toml, which names them by paths relative to the folder.
class TextRun {
 public:
  TextRun() { fill(); }
  /// In a folder of the caller's.
  explicit TextRun(std::filesystem::path folder) : path_(std::move(folder)) { fill(); }

  const std::filesystem::path& path() const { return path_; }
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  std::filesystem::path checkpoint(std::int64_t step) const {
    return path_ / "run" / "checkpoints" / checkpoint_name(step);
  }
  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    write_file_atomically(real_file_system(), path_ / name, content);
  }

  /// With `folder` before every path: "" gives relative ones.
  static std::string run_file(const std::string& folder) {
    return fmt::format(R"([model]
config = "{0}config.json"
[data]
train = "{0}text.jsonl"
tokenizer = "{0}tokenizer.json"
seq_len = 32
holdout = 0.1
[train]
steps = 8
tokens_per_step = 128
microbatch = 2
[optim]
lr = 3e-3
[checkpoint]
every = 4
[run]
dir = "{0}run"
threads = 1
)",
                       folder);
  }

  /// Any verb, started in the folder.
  Outcome run(const std::vector<std::string>& words, RunOptions options = {}) const {
    options.folder = path_;
    return run_heddle(words, options);
  }
  Outcome train(const std::vector<std::string>& settings = {}, RunOptions options = {}) const {
    std::vector<std::string> words = {"train", "run.toml"};
    for (const auto& setting : settings) words.insert(words.end(), {"--set", setting});
    return run(words, std::move(options));
  }

  /// The loss of every step, to the last digit.
  std::vector<double> losses() const {
    std::vector<double> losses;
    const std::string text = read_text_file(path_ / "run/metrics.jsonl");
    for (std::size_t at = 0; at < text.size();) {
      const auto end = text.find('\n', at);
      const Json line = parse_json(text.substr(at, end - at), "metrics.jsonl");
      if (line.contains("loss")) losses.push_back(line["loss"]);
      at = end + 1;
    }
    return losses;
  }

 private:
  void fill() const {
    std::filesystem::create_directories(path_);
    std::filesystem::copy_file(source_dir() + "/tests/reference/tokenizer/tokenizer.json",
                               path_ / "tokenizer.json");
    run({"demo-text", "--bytes", "60000", "--out", "text.jsonl"});
    write("config.json", Json{{"model_type", "llama"},
                              {"hidden_size", 32},
                              {"intermediate_size", 64},
                              {"num_hidden_layers", 2},
                              {"num_attention_heads", 2},
                              {"num_key_value_heads", 2},
                              {"max_position_embeddings", 64},
                              {"vocab_size", 640},
                              {"rms_norm_eps", 1e-5},
                              {"tie_word_embeddings", true}}
                             .dump());
    write("run.toml", run_file(""));
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path();
};

}  // namespace heddle
