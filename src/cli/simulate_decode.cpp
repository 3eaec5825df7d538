#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/json_value.h"
#include "base/strings.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "planner/decode_cost.h"

namespace heddle::cli {
namespace {

struct SimulateDecodeOptions {
  std::string method = "all", dtype = "bf16";
  DecodeShape shape{.ranks = 0, .context = 0, .heads = 0, .key_heads = 0, .head_dim = 0};
  std::filesystem::path system;
  double fixed_ms = 0.0;
  bool json = false;
};

struct PlayedDecode {
  DecodeMethod method;
  int rounds = 0;
  double seconds = 0.0, computing_seconds = 0.0;  ///< computing: of a rank, on average
  std::int64_t sent_bytes = 0;                    ///< by the rank that sends most
};

PlayedDecode play(DecodeMethod method, const DecodeShape& shape, const ContextTimes& times,
                  double fixed_seconds) {
  const ContextPlan plan = make_decode_plan(method, shape);
  const PlayedContext played = play_forward(plan, times);
  PlayedDecode result{.method = method,
                      .rounds = plan.forward.rounds(),
                      .seconds = fixed_seconds + played.makespan,
                      .computing_seconds = played.computing / shape.ranks};
  for (const RankCounts& counts : count_by_rank(plan.forward, plan.shape)) {
    result.sent_bytes = std::max(result.sent_bytes, bytes_of(counts.sent, times.sizes));
  }
  return result;
}

void print_json(const SimulateDecodeOptions& options, const std::vector<PlayedDecode>& played) {
  JsonValue report = {{"cp", options.shape.ranks},
                      {"context", options.shape.context},
                      {"fixed_seconds", 1e-3 * options.fixed_ms},
                      {"methods", JsonValue::array()}};
  for (const PlayedDecode& one : played) {
    report["methods"].push_back({{"method", name_of(one.method)},
                                 {"rounds", one.rounds},
                                 {"seconds", one.seconds},
                                 {"computing_seconds", one.computing_seconds},
                                 {"sent_bytes", one.sent_bytes}});
  }
  fmt::print("{}\n", report.dump(2));
}

void print_table(const SimulateDecodeOptions& options, const planner::Machine& machine,
                 const std::vector<PlayedDecode>& played) {
  const DecodeShape& shape = options.shape;
  fmt::print("attention of one new token behind {} on {} ranks: {} query and {} key heads of {}\n",
             format_thousands(shape.context), shape.ranks, shape.heads, shape.key_heads,
             shape.head_dim);
  fmt::print("{}\n\n", machine.name);
  fmt::print("{:<8} {:>7} {:>12} {:>12} {:>11} {:>9}\n", "method", "rounds", "time", "computing",
             "sends", "to first");
  for (const PlayedDecode& one : played) {
    fmt::print("{:<8} {:>7} {:>10.4g}ms {:>10.4g}ms {:>11} {:>9.4g}\n", name_of(one.method),
               one.rounds, 1e3 * one.seconds, 1e3 * one.computing_seconds,
               format_bytes(static_cast<double>(one.sent_bytes)),
               one.seconds / played.front().seconds);
  }
}

void run(const SimulateDecodeOptions& options) {
  const std::vector<std::string> problems = problems_of(options.shape);
  if (!problems.empty()) {
    throw Error(ErrorCode::usage, fmt::format("{}", fmt::join(problems, "\n  ")));
  }
  const planner::Machine machine = planner::read_machine(options.system);
  const DType dtype = options.dtype == "f32" ? DType::f32 : DType::bf16;
  const ContextTimes times = planner::decode_times(machine, options.shape, dtype);
  std::vector<PlayedDecode> played;
  for (const DecodeMethod method : {DecodeMethod::tree, DecodeMethod::ring, DecodeMethod::gather}) {
    if (options.method != "all" && options.method != name_of(method)) continue;
    played.push_back(play(method, options.shape, times, 1e-3 * options.fixed_ms));
  }
  if (options.json) {
    print_json(options, played);
  } else {
    print_table(options, machine, played);
  }
}

}  // namespace

void add_simulate_decode(Verb simulate) {
  const auto options = std::make_shared<SimulateDecodeOptions>();
  Verb verb = simulate.add_verb(
      "decode", "play the attention of one new token to a KV cache that ranks of axis cp divide");
  verb.add_option("--method", options->method,
                  "tree (what generate does: partial outputs travel), ring or gather (K and V "
                  "travel), or all")
      .one_of({"all", "tree", "ring", "gather"})
      .show_default();
  verb.add_option("--cp", options->shape.ranks, "ranks").required();
  verb.add_option("--context", options->shape.context, "tokens in the cache, of all ranks")
      .required();
  verb.add_option("--heads", options->shape.heads, "query heads").required();
  verb.add_option("--kv-heads", options->shape.key_heads, "key heads").required();
  verb.add_option("--head-dim", options->shape.head_dim, "elements of a head").required();
  verb.add_option("--system", options->system, "machine file: memory, kernels and links")
      .required();
  verb.add_option("--dtype", options->dtype, "of q, k and v; partial outputs travel in f32")
      .one_of({"f32", "bf16"})
      .show_default();
  verb.add_option("--fixed-ms", options->fixed_ms,
                  "what a call takes beside what is played, whatever the method: host and dispatch")
      .range(0.0, 1e9)
      .show_default();
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
