#include "infer/generate.h"

#include <algorithm>
#include <iostream>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "checkpoint/model_source.h"
#include "cli/compute_choice.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "engine/weights.h"
#include "infer/special_tokens.h"
#include "model/registry.h"
#include "tokenizer/tokenizer.h"

namespace heddle::cli {
namespace {

struct GenerateArguments {
  std::string model, prompt;
  GenerateOptions generate{.max_tokens = 128, .sampling = {.temperature = 0.8}};
  std::vector<std::string> stop;
  int threads = 0;
  std::string device = "cpu", dtype = "f32";
  bool json = false;
};

/// Prints the prompt and then text as it comes, but holds back what could become the beginning of a
/// stop string. Nothing is printed before the first text is there.
class StoppingPrinter {
 public:
  StoppingPrinter(std::string prompt, std::vector<std::string> stops, bool quiet)
      : prompt_(std::move(prompt)), stops_(std::move(stops)), quiet_(quiet) {}

  /// False when a stop string is complete; what stands before it has been printed then.
  bool add(const std::string& text) {
    pending_ += text;
    std::size_t cut = std::string::npos;
    for (const auto& stop : stops_) cut = std::min(cut, pending_.find(stop));
    if (cut != std::string::npos) {
      print(pending_.substr(0, cut));
      pending_.clear();
      return false;
    }
    std::size_t held = 0;
    for (const auto& stop : stops_) {
      for (std::size_t n = std::min(stop.size() - 1, pending_.size()); n > held; --n) {
        if (pending_.ends_with(stop.substr(0, n))) held = n;
      }
    }
    print(pending_.substr(0, pending_.size() - held));
    pending_.erase(0, pending_.size() - held);
    return true;
  }
  void finish() { print(std::exchange(pending_, {})); }
  const std::string& text() const { return text_; }

 private:
  void print(const std::string& text) {
    text_ += text;
    if (!quiet_) std::cout << std::exchange(prompt_, {}) << text << std::flush;
  }
  std::string prompt_;  // empty once it is printed
  std::vector<std::string> stops_;
  bool quiet_;
  std::string pending_, text_;
};

/// Why there are no more tokens, where no stop string came.
const char* why_ended(const std::vector<std::int32_t>& tokens, const GenerateOptions& options) {
  if (!tokens.empty() && std::ranges::count(options.end_tokens, tokens.back()) > 0) {
    return "end_token";
  }
  const bool is_all = static_cast<std::int64_t>(tokens.size()) == options.max_tokens;
  return is_all ? "max_tokens" : "positions";
}

void run(GenerateArguments arguments) {
  const ModelSource source(arguments.model);
  const auto folder = source.path();
  const ComputeChoice choice = compute_choice(arguments.device, arguments.dtype);
  Memory memory(choice.device);
  Stream stream(thread_count(arguments.threads), choice.device);
  const ModelSpec spec = read_model_spec(folder / "config.json");
  const Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
  auto prompt = tokenizer.encode(arguments.prompt, {.add_special = true});
  arguments.generate.end_tokens = end_tokens(folder, tokenizer);
  if (prompt.empty()) {  // a new document
    const SpecialTokens tokens = special_tokens(tokenizer);
    if (const auto begin = tokens.bos ? tokens.bos : tokens.eos) prompt.push_back(*begin);
  }
  const std::int64_t positions =
      std::min<std::int64_t>(spec.longest_sequence(), static_cast<std::int64_t>(prompt.size()) +
                                                          arguments.generate.max_tokens);
  Model model(spec, {.dtype = choice.dtype, .positions = positions}, ParamStore::Purpose::inference,
              memory);
  load_weights(HfFolder(folder), spec, model.store(), stream, observe::stderr_terminal(false));

  StreamDecoder decoder(tokenizer, true);
  StoppingPrinter printer(arguments.prompt, arguments.stop, arguments.json);
  const Stopwatch watch;
  bool is_stopped = false;
  const auto tokens = generate(
      model, prompt, arguments.generate,
      [&](std::int32_t token) {
        is_stopped = !printer.add(decoder.push(token));
        return !is_stopped;
      },
      stream, memory);
  printer.add(decoder.finish());
  printer.finish();
  const double seconds = watch.seconds();
  if (arguments.json) {
    std::cout << JsonValue{{"prompt", arguments.prompt},
                           {"text", printer.text()},
                           {"tokens", tokens},
                           {"stopped", is_stopped ? "stop" : why_ended(tokens, arguments.generate)},
                           {"seconds", seconds},
                           {"tokens_per_second", static_cast<double>(tokens.size()) / seconds}}
                     .dump()
              << "\n";
  } else {
    std::cout << "\n";
    log_info("{} tokens, {:.0f} tokens/s", tokens.size(),
             static_cast<double>(tokens.size()) / seconds);
  }
}

}  // namespace

void add_generate(Verb app) {
  Verb verb = app.add_verb("generate", "text from a model folder, checkpoint or run folder");
  auto arguments = std::make_shared<GenerateArguments>();
  auto& options = arguments->generate;
  verb.add_option("MODEL", arguments->model, "model folder, checkpoint or run folder").required();
  verb.add_option("--prompt", arguments->prompt, "text to continue").required();
  verb.add_option("--max-tokens", options.max_tokens, "at most so many")
      .show_default()
      .not_negative();
  verb.add_option("--temperature", options.sampling.temperature, "0 takes the most likely token")
      .show_default()
      .not_negative();
  verb.add_option("--top-k", options.sampling.top_k, "keep the k most likely; 0 keeps all")
      .not_negative();
  verb.add_option("--top-p", options.sampling.top_p, "keep the most likely up to this probability")
      .show_default()
      .range(0.0, 1.0);
  verb.add_option("--seed", options.sampling.seed, "same seed, same text").show_default();
  verb.add_option("--stop", arguments->stop, "end before this text (repeatable)").one_at_a_time();
  verb.add_option("--threads", arguments->threads, "0: all cores").range(0, 1024);
  verb.add_option("--device", arguments->device, "cpu or cuda").show_default();
  verb.add_option("--dtype", arguments->dtype, "f32, or bf16 on cuda").show_default();
  verb.add_flag("--json", arguments->json, "print one JSON object");
  verb.callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
