#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/strings.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "data/training_texts.h"
#include "observe/progress.h"
#include "tokenizer/bpe_train.h"

namespace heddle::cli {
namespace {

struct TokenizerOptions {
  std::vector<std::string> inputs;
  std::string out, pretokenizer = "gpt2";
  BpeTrainOptions train;
};

/// One progress line for each stage of training.
class StageProgress {
 public:
  void show(const BpeTrainProgress& now) {
    if (now.stage != stage_) {
      stage_ = now.stage;
      done_ = 0;
      line_.reset();  // the old line goes before the new one comes
      line_ = std::make_unique<observe::Progress>(
          observe::ProgressOptions{.label = std::string(now.stage),
                                   .total = static_cast<std::uint64_t>(now.total),
                                   .unit = stage_ == kCountingWords ? "B" : "tokens",
                                   .terminal = observe::stderr_terminal(true)});
    }
    line_->add(static_cast<std::uint64_t>(now.done - done_));
    done_ = now.done;
  }

 private:
  std::string_view stage_;
  std::int64_t done_ = 0;
  std::unique_ptr<observe::Progress> line_;
};

BpeTrainResult train(const TokenizerOptions& options) {
  const Inputs inputs = find_inputs({options.inputs.begin(), options.inputs.end()});
  if (!inputs.left_out.empty()) log_warn("{}", describe_left_out(inputs.left_out));
  TrainingTexts texts;
  for (const InputFile& input : inputs.files) {
    refuse_to_replace({input.path}, options.out);
    refuse_to_replace({input.path}, options.out + ".tmp");
    texts.add(input);
  }
  StageProgress progress;
  BpeTrainOptions training = options.train;
  training.pretokenizer =
      options.pretokenizer == "gpt2" ? PretokenizerStyle::gpt2 : PretokenizerStyle::llama3;
  if (training.threads == 0) {
    training.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  }
  training.progress = [&](const BpeTrainProgress& now) { progress.show(now); };
  return train_bpe(texts.texts(), training);
}

void run(const TokenizerOptions& options) {
  const Stopwatch watch;
  const auto result = train(options);
  write_file_atomically(real_file_system(), options.out, result.json);
  if (result.vocab_size < options.train.vocab_size) {
    log_warn("the text has pairs for {} tokens only; {} were asked for", result.vocab_size,
             options.train.vocab_size);
  }
  log_info("{}: {} tokens from {} distinct words in {}", options.out,
           format_thousands(result.vocab_size), format_thousands(result.words),
           format_duration(watch.seconds()));
}

}  // namespace

void add_tokenizer(Verb app) {
  auto options = std::make_shared<TokenizerOptions>();
  Verb tokenizer = app.add_verb("tokenizer", "make tokenizers");
  tokenizer.require_verb();
  Verb verb = tokenizer.add_verb("train", "learn a byte-level BPE from text");
  verb.add_option(
          "INPUT", options->inputs,
          "what heddle tokenize reads: files, folders, patterns, or - for standard input; of "
          "objects and tables the field text")
      .required();
  verb.add_option("--vocab", options->train.vocab_size, "tokens, with the 256 bytes and specials")
      .required();
  verb.add_option("--out", options->out, "the tokenizer.json to write").required();
  verb.add_option("--pretokenizer", options->pretokenizer, "how text is cut into words")
      .one_of({"gpt2", "llama3"})
      .show_default();
  verb.add_option("--special", options->train.special_tokens,
                  "special token, such as <|endoftext|> (repeatable)")
      .one_at_a_time();
  verb.add_option("--min-frequency", options->train.min_frequency,
                  "merge only pairs seen this often")
      .show_default();
  options->train.threads = 0;
  verb.add_option("--threads", options->train.threads, "threads; 0: all processors")
      .range(0, 1024)
      .show_default();
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
