#include <cmath>
#include <iostream>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json_value.h"
#include "base/log.h"
#include "checkpoint/routing_trace.h"
#include "cli/compute_choice.h"
#include "cli/layers_option.h"
#include "cli/temporary_folder.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "engine/adapters.h"
#include "observe/progress.h"
#include "train/data_setup.h"
#include "train/evaluate.h"
#include "train/model_setup.h"

namespace heddle::cli {
namespace {

struct EvalArguments {
  std::string model, adapter, tokenizer, routing_trace, layers;
  std::vector<std::string> data;
  std::int64_t seq_len = 0, batch = 1, max_tokens = 0;
  int threads = 0;
  std::string device = "cpu", dtype = "f32";
  bool is_chat = false, json = false;
};

void require_experts(const ModelSpec& spec) {
  if (spec.expert_layers() >= 2) return;
  throw Error(
      ErrorCode::usage,
      fmt::format("--routing-trace tells which experts follow each other, and this {} model "
                  "has {} layers with experts",
                  spec.family, spec.expert_layers()),
      "leave it out, or use a model with two or more");
}

std::vector<int> all_layers(const ModelSpec& spec) {
  std::vector<int> layers(static_cast<std::size_t>(spec.layers));
  std::iota(layers.begin(), layers.end(), 0);
  return layers;
}

/// Of leaving layers out: by what share perplexity is higher.
double cost_of(const EvalResult& with_some, const EvalResult& with_all) {
  return with_some.perplexity() / with_all.perplexity() - 1.0;
}

void require_targets(const EvalResult& result, const EvalArguments& arguments,
                     std::int64_t seq_len) {
  if (result.targets > 0) return;
  throw Error(ErrorCode::data,
              fmt::format("{} has nothing to evaluate: in the windows of {} tokens that were "
                          "looked at {}",
                          arguments.data.front(), seq_len,
                          arguments.is_chat ? "no token belongs to an answer"
                                            : "no token has one before it in its document"),
              "take a larger --seq, which cuts fewer documents, or a larger --max-tokens");
}

void run(const EvalArguments& arguments) {
  const StoredModel stored = open_stored_model(arguments.model, arguments.adapter);
  const ModelSpec& spec = stored.spec;
  if (!arguments.routing_trace.empty()) require_experts(spec);
  const std::int64_t seq_len = arguments.seq_len > 0
                                   ? arguments.seq_len
                                   : std::min<std::int64_t>(spec.longest_sequence(), 1024);
  if (const auto beyond = beyond_positions(spec, seq_len); !beyond.empty()) {
    log_warn("{}", beyond);
  }
  config::RunConfig config;
  if (arguments.is_chat) config.data.kind = config::DataKind::chat;
  config.data.seq_len = seq_len;
  config.data.tokenizer = arguments.tokenizer;
  if (arguments.tokenizer.empty()) config.model.path = stored.texts();
  const ComputeChoice choice = compute_choice(arguments.device, arguments.dtype);
  Memory memory(choice.device);
  Stream stream(thread_count(arguments.threads), choice.device);
  const auto terminal = observe::stderr_terminal(false);
  const TemporaryFolder tokens;
  const auto dataset = open_eval_data(
      {arguments.data.begin(), arguments.data.end()}, config, configured_tokenizer(config),
      {.threads = stream.threads(), .folder = tokens.path(), .terminal = terminal});
  if (dataset->vocab_size() > spec.vocab) {
    throw Error(ErrorCode::usage,
                fmt::format("{} has token ids below {}, but the model's vocabulary is {}",
                            dataset->name(0), dataset->vocab_size(), spec.vocab),
                "tokenize it with the model's own tokenizer");
  }
  Model model(spec, {.dtype = choice.dtype, .positions = seq_len}, ParamStore::Purpose::inference,
              memory);
  load_stored_model(stored, model.store(), stream, terminal);
  RoutingTrace trace;
  const auto evaluated = [&] {
    observe::Progress progress(
        {.label = "evaluating",
         .total = static_cast<std::uint64_t>(windows_to_evaluate(*dataset, arguments.max_tokens)),
         .unit = "windows",
         .terminal = terminal});
    std::int64_t seen = 0;
    const auto result = evaluate(model, *dataset,
                                 {.rows = arguments.batch,
                                  .max_tokens = arguments.max_tokens,
                                  .on_progress =
                                      [&](std::int64_t done, std::int64_t) {
                                        progress.add(static_cast<std::uint64_t>(done - seen));
                                        seen = done;
                                        return true;
                                      },
                                  .routing = arguments.routing_trace.empty() ? nullptr : &trace},
                                 stream, memory);
    progress.finish();
    return result;
  };
  if (!arguments.layers.empty()) model.go_through(parse_layers(arguments.layers));
  const EvalResult result = evaluated();
  require_targets(result, arguments, seq_len);
  std::optional<EvalResult> whole;
  if (!arguments.layers.empty()) {
    model.go_through(all_layers(spec));
    const RoutingTrace of_some = std::exchange(trace, {});
    whole = evaluated();
    trace = of_some;
  }
  log_info("loss {:.4f}, perplexity {:.2f} over {} tokens", result.loss, result.perplexity(),
           result.targets);
  for (const EvalResult::Source& source : result.sources) {
    log_info("{}: loss {:.4f}, perplexity {:.2f} over {} tokens", source.name, source.loss,
             std::exp(source.loss), source.targets);
  }
  if (whole) {
    log_info("all {} layers: loss {:.4f}, perplexity {:.2f}; layers {} cost {:.2f} % perplexity",
             spec.layers, whole->loss, whole->perplexity(), arguments.layers,
             100 * cost_of(result, *whole));
  }
  if (!arguments.routing_trace.empty()) {
    write_routing_trace(real_file_system(), arguments.routing_trace, trace);
    log_info("wrote {}; heddle plan experts {} --ranks N lays experts on ranks by it",
             arguments.routing_trace, arguments.routing_trace);
  }
  if (arguments.json) {
    JsonValue report = {{"loss", result.loss},
                        {"perplexity", result.perplexity()},
                        {"tokens", result.targets},
                        {"seq_len", seq_len}};
    JsonValue sources = JsonValue::array();
    for (const EvalResult::Source& source : result.sources) {
      sources.push_back({{"name", source.name},
                         {"loss", source.loss},
                         {"perplexity", std::exp(source.loss)},
                         {"tokens", source.targets}});
    }
    if (!result.sources.empty()) report["sources"] = std::move(sources);
    if (whole) {
      report["layers"] = parse_layers(arguments.layers);
      report["all_layers"] = {{"loss", whole->loss}, {"perplexity", whole->perplexity()}};
      report["perplexity_cost"] = cost_of(result, *whole);
    }
    std::cout << report.dump() << "\n";
  }
}

}  // namespace

void add_eval(Verb app) {
  Verb verb = app.add_verb("eval", "loss and perplexity of a model on a file");
  auto arguments = std::make_shared<EvalArguments>();
  verb.add_option("MODEL", arguments->model, "model folder, checkpoint or run folder").required();
  verb.add_option("--adapter", arguments->adapter, "folder with adapters to use on top of it");
  verb.add_option("--data", arguments->data,
                  "text, records or token file, as data.train; given several times, the loss of "
                  "each is said too")
      .required()
      .one_at_a_time();
  verb.add_flag("--chat", arguments->is_chat,
                "the data is conversations; only answers count, as with data.kind = \"chat\"");
  verb.add_option("--tokenizer", arguments->tokenizer, "as data.tokenizer; default: the model's");
  verb.add_option("--seq", arguments->seq_len,
                  "tokens a window; default: the model's positions, at most 1024")
      .positive();
  verb.add_option("--batch", arguments->batch, "windows at a time").show_default().positive();
  verb.add_option("--max-tokens", arguments->max_tokens, "stop after so many; 0: all")
      .not_negative();
  verb.add_option("--routing-trace", arguments->routing_trace,
                  "write which experts the tokens took, for heddle plan experts");
  verb.add_option("--layers", arguments->layers,
                  "go through these only, in this order, as 0-3,6-11 (skipped, or early exit), and "
                  "say what it costs");
  verb.add_option("--threads", arguments->threads, "0: all cores").range(0, 1024);
  verb.add_option("--device", arguments->device, "cpu or cuda").show_default();
  verb.add_option("--dtype", arguments->dtype, "f32, or bf16 on cuda").show_default();
  verb.add_flag("--json", arguments->json, "print one JSON object");
  verb.callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
