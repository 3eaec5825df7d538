#include "infer/generate.h"

#include <algorithm>
#include <iostream>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "checkpoint/model_source.h"
#include "cli/compute_choice.h"
#include "cli/ranks.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "config/load.h"
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
  int threads = 0, ranks = 1;
  std::vector<std::string> overrides;
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

/// What all ranks know before they meet.
struct GenerateSubject {
  std::filesystem::path folder;
  ModelSpec spec;
  Tokenizer tokenizer;
  std::vector<std::int32_t> prompt;
  config::RunConfig settings;  ///< only [parallel] of it
};

GenerateSubject subject_of(GenerateArguments& arguments) {
  for (const std::string& text : arguments.overrides) {
    if (text.starts_with("parallel.")) continue;
    throw Error(ErrorCode::usage, "--set " + text + " has no meaning here",
                "use keys of [parallel]");
  }
  const ModelSource source(arguments.model);
  GenerateSubject subject{.folder = source.path(),
                          .spec = read_model_spec(source.path() / "config.json"),
                          .tokenizer = Tokenizer::load(source.path() / "tokenizer.json"),
                          .prompt = {},
                          .settings = config::parse_settings(arguments.overrides)};
  subject.prompt = subject.tokenizer.encode(arguments.prompt, {.add_special = true});
  arguments.generate.end_tokens = end_tokens(subject.folder, subject.tokenizer);
  if (subject.prompt.empty()) {  // a new document
    const SpecialTokens tokens = special_tokens(subject.tokenizer);
    if (const auto begin = tokens.bos ? tokens.bos : tokens.eos) subject.prompt.push_back(*begin);
  }
  return subject;
}

struct Generated {
  std::vector<std::int32_t> tokens;
  std::string text;
  bool is_stopped = false;
  double seconds = 0.0;
};

/// Every rank makes the same tokens; the first one prints them.
Generated generate_on(const GenerateArguments& arguments, const GenerateSubject& subject,
                      World& world, Device device, DType dtype) {
  Memory memory(device);
  Stream stream(thread_count(arguments.threads, world.size()), device);
  const std::int64_t positions = std::min<std::int64_t>(
      subject.spec.longest_sequence(),
      static_cast<std::int64_t>(subject.prompt.size()) + arguments.generate.max_tokens);
  const ParallelPlan plan =
      make_plan(subject.spec, subject.settings.parallel, world.size(), positions);
  const Mesh mesh(plan.mesh, world.all());
  Model model(subject.spec, {.dtype = dtype, .positions = positions}, plan, mesh,
              ParamStore::Purpose::inference, memory);
  const bool is_first = world.rank() == 0;
  observe::Terminal terminal = observe::stderr_terminal(false);
  terminal.is_silent = terminal.is_silent || !is_first;
  load_weights(HfFolder(subject.folder), subject.spec, model.store(), stream, terminal);

  StreamDecoder decoder(subject.tokenizer, true);
  StoppingPrinter printer(arguments.prompt, arguments.stop, arguments.json || !is_first);
  const Stopwatch watch;
  Generated made;
  made.tokens = generate(
      model, subject.prompt, arguments.generate,
      [&](std::int32_t token) {
        made.is_stopped = !printer.add(decoder.push(token));
        return !made.is_stopped;
      },
      stream, memory);
  printer.add(decoder.finish());
  printer.finish();
  made.text = printer.text();
  made.seconds = watch.seconds();
  return made;
}

void run(GenerateArguments arguments) {
  std::optional<GenerateSubject> subject;
  std::optional<ComputeChoice> choice;
  prepare_on_ranks([&] {
    choice = compute_choice(arguments.device, arguments.dtype);
    subject = subject_of(arguments);
  });
  Generated made;
  run_on_devices(choice->device.kind, rank_count(arguments.ranks),
                 [&](World& world, Device device) {
                   Generated own = generate_on(arguments, *subject, world, device, choice->dtype);
                   if (world.rank() == 0) made = std::move(own);
                 });
  if (!is_first_process()) return;
  if (arguments.json) {
    const char* const stopped =
        made.is_stopped ? "stop" : why_ended(made.tokens, arguments.generate);
    std::cout << JsonValue{{"prompt", arguments.prompt},
                           {"text", made.text},
                           {"tokens", made.tokens},
                           {"stopped", stopped},
                           {"seconds", made.seconds},
                           {"tokens_per_second",
                            static_cast<double>(made.tokens.size()) / made.seconds}}
                     .dump()
              << "\n";
  } else {
    std::cout << "\n";
    log_info("{} tokens, {:.0f} tokens/s", made.tokens.size(),
             static_cast<double>(made.tokens.size()) / made.seconds);
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
  verb.add_option("--ranks", arguments->ranks, "local ranks to start").positive();
  verb.add_option("--set", arguments->overrides,
                  "parallel.key=value: how the ranks share the model and its cache (repeatable)")
      .one_at_a_time();
  verb.add_option("--device", arguments->device, "cpu or cuda").show_default();
  verb.add_option("--dtype", arguments->dtype, "f32, or bf16 on cuda").show_default();
  verb.add_flag("--json", arguments->json, "print one JSON object");
  verb.callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
