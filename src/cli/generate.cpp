#include <algorithm>
#include <iostream>
#include <sstream>

#include "base/clock.h"
#include "base/error.h"
#include "base/file_system.h"
#include "base/json_value.h"
#include "base/log.h"
#include "cli/compute_choice.h"
#include "cli/layers_option.h"
#include "cli/ranks.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "config/load.h"
#include "engine/adapters.h"
#include "infer/chat_prompt.h"
#include "infer/generate_all.h"
#include "infer/special_tokens.h"
#include "planner/generation_time.h"
#include "tokenizer/tokenizer.h"

namespace heddle::cli {
namespace {

struct GenerateArguments {
  std::string model, adapter, prompt, exchanges = "two", layers;
  std::filesystem::path prompts, messages;
  bool chat = false;  ///< prompts are messages of a user
  double latency_us = 10.0, gbytes = 25.0;
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
  StoredModel stored;
  Tokenizer tokenizer;
  std::vector<std::string> texts;  ///< of --prompts, or the one prompt; of a chat, its whole text
  bool is_chat = false;
  std::vector<std::vector<std::int32_t>> prompts;
  config::RunConfig settings;  ///< only [parallel] of it

  /// What is printed before a continuation: of a chat, nothing.
  std::string shown(std::size_t prompt) const { return is_chat ? "" : texts[prompt]; }

  std::size_t longest() const {
    std::size_t most = 0;
    for (const auto& prompt : prompts) most = std::max(most, prompt.size());
    return most;
  }
};

std::vector<std::string> prompts_of(const GenerateArguments& arguments) {
  if (arguments.prompts.empty()) return {arguments.prompt};
  std::vector<std::string> lines;
  std::istringstream text(read_text_file(arguments.prompts));
  for (std::string line; std::getline(text, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) lines.push_back(line);
  }
  if (lines.empty()) {
    throw Error(ErrorCode::usage, arguments.prompts.string() + " has no prompts",
                "write one on each line");
  }
  return lines;
}

/// The texts to continue: prompts, or the conversations that they are messages of.
std::vector<std::string> texts_of(const GenerateArguments& arguments,
                                  const std::filesystem::path& folder) {
  if (!arguments.messages.empty()) return {chat_prompt_of_file(folder, arguments.messages)};
  std::vector<std::string> texts = prompts_of(arguments);
  if (!arguments.chat) return texts;
  for (std::string& text : texts) text = chat_prompt(folder, text);
  return texts;
}

GenerateSubject subject_of(GenerateArguments& arguments) {
  for (const std::string& text : arguments.overrides) {
    if (text.starts_with("parallel.")) continue;
    throw Error(ErrorCode::usage, "--set " + text + " has no meaning here",
                "use keys of [parallel]");
  }
  StoredModel stored = open_stored_model(arguments.model, arguments.adapter);
  const std::filesystem::path folder = stored.texts();
  GenerateSubject subject{.stored = std::move(stored),
                          .tokenizer = Tokenizer::load(folder),
                          .texts = texts_of(arguments, folder),
                          .is_chat = arguments.chat || !arguments.messages.empty(),
                          .prompts = {},
                          .settings = config::parse_settings(arguments.overrides)};
  arguments.generate.end_tokens = end_tokens(folder, subject.tokenizer);
  for (const std::string& text : subject.texts) {
    // A template writes all marks itself.
    auto prompt = subject.tokenizer.encode(text, {.add_special = !subject.is_chat});
    if (prompt.empty()) {  // a new document
      const SpecialTokens tokens = special_tokens(subject.tokenizer);
      if (const auto begin = tokens.bos ? tokens.bos : tokens.eos) prompt.push_back(*begin);
    }
    subject.prompts.push_back(std::move(prompt));
  }
  return subject;
}

struct Continued {
  std::vector<std::int32_t> tokens;
  std::string text;
  bool is_stopped = false;
};

struct Generated {
  std::vector<Continued> of_prompts;
  ExpertExchanges exchanges = ExpertExchanges::two;
  double seconds = 0.0;
  std::vector<double> token_seconds = {};  ///< until all had a first token, a second, ...

  std::size_t tokens() const {
    std::size_t sum = 0;
    for (const Continued& one : of_prompts) sum += one.tokens.size();
    return sum;
  }
};

/// What --exchanges says, or the planner where it is left to it: without a trace, as if tokens took
/// any expert.
ExpertExchanges exchanges_of(const GenerateArguments& arguments, const GenerateSubject& subject,
                             const MeshShape& mesh, Device device) {
  if (arguments.exchanges != "auto") {
    return arguments.exchanges == "one" ? ExpertExchanges::one : ExpertExchanges::two;
  }
  const ModelSpec& spec = subject.stored.spec;
  if (!refuse_one_exchange(spec, mesh, device).empty() ||
      mesh.ranks() > planner::kMostGeneratingRanks) {
    return ExpertExchanges::two;
  }
  const int ranks = mesh.ranks();
  const double leaves = 1.0 - 1.0 / ranks;
  const planner::GenerationShape shape{
      .ranks = ranks,
      .layers = static_cast<int>(spec.expert_layers()),
      .attention_layers = static_cast<int>(spec.layers),
      .experts = static_cast<int>(spec.experts->count),
      .sequences = static_cast<double>(subject.prompts.size()) / ranks,
      .hidden = static_cast<double>(spec.hidden),
      .key_values = 2.0 * static_cast<double>(spec.kv_heads * spec.head_dim),
      .element_bytes = 4,
      .leaves = leaves,
      .leaves_placed = leaves};
  const auto rows =
      planner::rows_anywhere(ranks, shape.layers, static_cast<int>(subject.prompts.size()));
  const auto [two, one] =
      generation_time(shape, rows, {1e-6 * arguments.latency_us, 1e9 * arguments.gbytes});
  return one < two ? ExpertExchanges::one : ExpertExchanges::two;
}

/// Ranks make the same tokens of one prompt, and share several; the first one prints.
Generated generate_on(const GenerateArguments& arguments, const GenerateSubject& subject,
                      World& world, Device device, DType dtype) {
  Memory memory(device);
  Stream stream(thread_count(arguments.threads, world.size()), device);
  const std::int64_t positions = std::min<std::int64_t>(
      subject.stored.spec.longest_sequence(),
      static_cast<std::int64_t>(subject.longest()) + arguments.generate.max_tokens);
  const ParallelPlan plan =
      make_plan(subject.stored.spec, subject.settings.parallel, world.size(), positions);
  const Mesh mesh(plan.mesh, world.all());
  Model model(subject.stored.spec, {.dtype = dtype, .positions = positions}, plan, mesh,
              ParamStore::Purpose::inference, memory);
  if (!arguments.layers.empty()) model.go_through(parse_layers(arguments.layers));
  const bool is_first = world.rank() == 0;
  observe::Terminal terminal = observe::stderr_terminal(false);
  terminal.is_silent = terminal.is_silent || !is_first;
  load_stored_model(subject.stored, model.store(), stream, terminal);

  // The text of one prompt is printed as it comes, of several each when all are there.
  const bool is_quiet = arguments.json || !is_first || !arguments.prompts.empty();
  std::vector<StreamDecoder> decoders;
  std::vector<StoppingPrinter> printers;
  for (std::size_t i = 0; i < subject.texts.size(); ++i) {
    decoders.emplace_back(subject.tokenizer, true);
    printers.emplace_back(subject.shown(i), arguments.stop, is_quiet);
  }
  Generated made{.of_prompts = std::vector<Continued>(subject.prompts.size()),
                 .exchanges = exchanges_of(arguments, subject, plan.mesh, device)};
  const Stopwatch watch;
  std::vector<std::size_t> heard(subject.prompts.size(), 0);
  const auto hear = [&](std::size_t prompt, std::int32_t token) {
    made.token_seconds.resize(std::max(made.token_seconds.size(), ++heard[prompt]));
    made.token_seconds[heard[prompt] - 1] = watch.seconds();
    bool& is_stopped = made.of_prompts[prompt].is_stopped;
    is_stopped = !printers[prompt].add(decoders[prompt].push(token));
    return !is_stopped;
  };
  std::vector<std::vector<std::int32_t>> tokens;
  if (arguments.prompts.empty()) {
    tokens.push_back(generate(
        model, subject.prompts.front(), arguments.generate,
        [&](std::int32_t token) { return hear(0, token); }, stream, memory));
  } else {
    tokens = generate_all(model, subject.prompts, arguments.generate, made.exchanges, hear, stream,
                          memory);
  }
  made.seconds = watch.seconds();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    printers[i].add(decoders[i].finish());
    printers[i].finish();
    made.of_prompts[i].tokens = std::move(tokens[i]);
    made.of_prompts[i].text = printers[i].text();
  }
  return made;
}

JsonValue json_of(const std::string& prompt, const Continued& made,
                  const GenerateOptions& options) {
  return {{"prompt", prompt},
          {"text", made.text},
          {"tokens", made.tokens},
          {"stopped", made.is_stopped ? "stop" : why_ended(made.tokens, options)}};
}

void print_json(const GenerateArguments& arguments, const GenerateSubject& subject,
                const Generated& made) {
  JsonValue json = json_of(subject.texts.front(), made.of_prompts.front(), arguments.generate);
  if (!arguments.prompts.empty()) {
    JsonValue all = JsonValue::array();
    for (std::size_t i = 0; i < subject.texts.size(); ++i) {
      all.push_back(json_of(subject.texts[i], made.of_prompts[i], arguments.generate));
    }
    json = {{"texts", std::move(all)},
            {"exchanges", made.exchanges == ExpertExchanges::one ? "one" : "two"}};
  }
  json["seconds"] = made.seconds;
  json["token_seconds"] = made.token_seconds;
  json["tokens_per_second"] = static_cast<double>(made.tokens()) / made.seconds;
  std::cout << json.dump() << "\n";
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
  if (arguments.json) return print_json(arguments, *subject, made);
  if (arguments.prompts.empty()) {
    std::cout << std::endl;  // before what is said of it
  } else {
    for (std::size_t i = 0; i < subject->texts.size(); ++i) {
      std::cout << subject->shown(i) << made.of_prompts[i].text << std::endl;
    }
  }
  log_info("{} tokens, {:.0f} tokens/s", made.tokens(),
           static_cast<double>(made.tokens()) / made.seconds);
}

}  // namespace

void add_generate(Verb app) {
  Verb verb = app.add_verb("generate", "text from a model folder, checkpoint or run folder");
  auto arguments = std::make_shared<GenerateArguments>();
  auto& options = arguments->generate;
  verb.add_option("MODEL", arguments->model, "model folder, checkpoint or run folder").required();
  verb.add_option("--adapter", arguments->adapter, "folder with adapters to use on top of it");
  const Option prompt = verb.add_option("--prompt", arguments->prompt, "text to continue");
  const Option prompts =
      verb.add_option("--prompts", arguments->prompts,
                      "file with a prompt on each line; replicas (parallel.dp) share them")
          .excludes(prompt);
  verb.add_flag("--chat", arguments->chat,
                "prompts are messages of a user, written as the model's chat template says");
  verb.add_option("--messages", arguments->messages,
                  "JSON file with the messages of a conversation to answer by the chat template")
      .excludes(prompt)
      .excludes(prompts);
  verb.add_option("--exchanges", arguments->exchanges,
                  "of --prompts with parallel.ep: two a layer (to the experts and back), one "
                  "(tokens stay there; one expert a token), or auto: what sends for less time")
      .one_of({"two", "one", "auto"})
      .show_default();
  verb.add_option("--latency-us", arguments->latency_us, "of an exchange; for auto")
      .range(0.0, 1e9)
      .show_default();
  verb.add_option("--gbytes", arguments->gbytes, "per second that a rank sends; for auto")
      .range(1e-9, 1e9)
      .show_default();
  verb.add_option("--layers", arguments->layers,
                  "go through these only, in this order, as 0-3,6-11 (skipped, or early exit)");
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
  verb.callback([arguments, prompt] {
    if (!prompt.is_given() && arguments->prompts.empty() && arguments->messages.empty()) {
      throw Error(
          ErrorCode::usage, "there is nothing to continue: --prompt is required",
          "give --prompt TEXT, --prompts FILE with a prompt on each line, or --messages FILE");
    }
    if (arguments->exchanges == "one" && arguments->prompts.empty()) {
      throw Error(ErrorCode::usage,
                  "--exchanges one is for many prompts, which ranks share; here is one text",
                  "give --prompts FILE, or leave --exchanges out");
    }
    run(*arguments);
  });
}

}  // namespace heddle::cli
