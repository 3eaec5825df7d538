#include <fmt/format.h>

#include <iostream>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/strings.h"
#include "bench/context_bench.h"
#include "bench/context_shares.h"
#include "cli/compute_choice.h"
#include "cli/ranks.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"

namespace heddle::cli {
namespace {

struct BenchContextArguments {
  ContextBenchOptions bench;
  double emulated_gflops = 0.0;
  std::string device = "cpu", dtype = "f32";
  int ranks = 0, threads = 0;
  bool shares = false, json = false;
};

JsonValue to_json(const ContextBenchReport& report, int ranks, bool is_emulated) {
  JsonValue json = {{"ranks", ranks},
                    {"is_emulated", is_emulated},
                    {"pairs_per_second", report.pairs_per_second},
                    {"backward_factor", report.backward_factor},
                    {"link_bytes_per_second", report.link_bytes_per_second},
                    {"busy_seconds_per_byte", report.busy_seconds_per_byte},
                    {"methods", JsonValue::array()}};
  for (const ContextBenchResult& result : report.results) {
    json["methods"].push_back({{"method", name_of(result.shape.method)},
                               {"order", name_of(result.shape.order)},
                               {"forward_seconds", result.forward_seconds},
                               {"backward_seconds", result.backward_seconds},
                               {"seconds", result.seconds()},
                               {"predicted_seconds", result.predicted_seconds},
                               {"sent_bytes", result.sent_bytes}});
  }
  return json;
}

void print(const ContextBenchReport& report, bool is_emulated) {
  if (is_emulated) {
    log_info("blocks are emulated: a rank waits for {:.3g} pairs/s; messages are real, {}/s each",
             report.pairs_per_second, format_bytes(report.link_bytes_per_second));
  } else {
    log_info("{:.3g} pairs/s a rank, backward {:.2f} times forward", report.pairs_per_second,
             report.backward_factor);
    log_info("{}/s to the next rank, and {:.3f} ns of a computing rank for each byte it moves",
             format_bytes(report.link_bytes_per_second), 1e9 * report.busy_seconds_per_byte);
  }
  log_info("{:<10} {:<11} {:>11} {:>11} {:>11} {:>11} {:>9} {:>9} {:>11}", "method", "order",
           "forward", "backward", "both", "predicted", "to ring", "predicted", "sends");
  const ContextBenchResult& ring = report.results.front();
  for (const ContextBenchResult& result : report.results) {
    log_info("{:<10} {:<11} {:>9.2f}ms {:>9.2f}ms {:>9.2f}ms {:>9.2f}ms {:>9.3f} {:>9.3f} {:>11}",
             name_of(result.shape.method), name_of(result.shape.order),
             1e3 * result.forward_seconds, 1e3 * result.backward_seconds, 1e3 * result.seconds(),
             1e3 * result.predicted_seconds, result.seconds() / ring.seconds(),
             result.predicted_seconds / ring.predicted_seconds,
             format_bytes(static_cast<double>(result.sent_bytes)));
  }
}

JsonValue to_json(const ContextSharesReport& report, int ranks) {
  JsonValue json = {{"ranks", ranks},
                    {"whole_forward_seconds", report.whole_forward},
                    {"whole_backward_seconds", report.whole_backward},
                    {"methods", JsonValue::array()}};
  for (const ContextShares& shares : report.methods) {
    json["methods"].push_back({{"method", name_of(shares.shape.method)},
                               {"order", name_of(shares.shape.order)},
                               {"forward_seconds", shares.forward_seconds},
                               {"backward_seconds", shares.backward_seconds},
                               {"message_seconds", shares.message_seconds},
                               {"of_whole", shares.seconds() / report.whole()}});
  }
  return json;
}

void print(const ContextSharesReport& report) {
  const auto line = [&](std::string_view method, std::string_view order, double forward,
                        double backward, double messages) {
    log_info("{:<10} {:<11} {:>9.2f}ms {:>9.2f}ms {:>9.2f}ms {:>9.3f} {:>9.2f}ms", method, order,
             1e3 * forward, 1e3 * backward, 1e3 * (forward + backward),
             (forward + backward) / report.whole(), 1e3 * messages);
  };
  log_info("{:<10} {:<11} {:>11} {:>11} {:>11} {:>9} {:>11}", "method", "order", "forward",
           "backward", "both", "of whole", "messages");
  line("one rank", "", report.whole_forward, report.whole_backward, 0.0);
  for (const ContextShares& shares : report.methods) {
    line(name_of(shares.shape.method), name_of(shares.shape.order), shares.forward_seconds,
         shares.backward_seconds, shares.message_seconds);
  }
}

/// What no method can divide, all of it at once.
void check(const ContextBenchOptions& bench, int ranks) {
  std::vector<std::string> problems = problems_of({.method = ContextMethod::ring,
                                                   .ranks = ranks,
                                                   .tokens = bench.tokens,
                                                   .heads = bench.heads,
                                                   .key_heads = bench.key_heads,
                                                   .head_dim = bench.head_dim});
  if (ranks < 2) problems.push_back("one rank shares attention with nobody; use --ranks 2 or more");
  if (bench.tokens < ranks) {
    problems.push_back(
        fmt::format("--seq {} leaves some of {} ranks without tokens; use {} or more", bench.tokens,
                    ranks, ranks));
  }
  if (!problems.empty()) {
    throw Error(ErrorCode::usage, fmt::format("{}", fmt::join(problems, "\n  ")));
  }
}

void run_shares(const BenchContextArguments& arguments, const ComputeChoice& choice, int ranks) {
  Stream stream(thread_count(arguments.threads, 1), choice.device);
  stream.set_deterministic(false);  // as training is, unless it is asked for
  ContextBenchOptions options = arguments.bench;
  options.dtype = choice.dtype;
  const ContextSharesReport report = bench_context_shares(ranks, stream, options);
  print(report);
  if (arguments.json) std::cout << to_json(report, ranks).dump() << "\n";
}

void run(const BenchContextArguments& arguments) {
  ComputeChoice choice;
  int ranks = 0;
  prepare_on_ranks([&] {
    choice = compute_choice(arguments.device, arguments.dtype);
    ranks = several_ranks(arguments.ranks);
    check(arguments.bench, ranks);
    if (arguments.emulated_gflops > 0.0 && choice.device.kind != Device::Kind::cpu) {
      throw Error(ErrorCode::usage, "--emulate-gflops emulates a device on the host's memory",
                  "leave out --device, or time the device itself");
    }
    if (arguments.emulated_gflops > 0.0 && arguments.shares) {
      throw Error(ErrorCode::usage, "--shares computes blocks, and --emulate-gflops does not",
                  "leave out one of them");
    }
  });
  if (arguments.shares) return run_shares(arguments, choice, ranks);
  ContextBenchReport report;
  run_on_devices(choice.device.kind, ranks, [&](World& world, Device device) {
    Stream stream(thread_count(arguments.threads, ranks), device);
    ContextBenchOptions options = arguments.bench;
    options.dtype = choice.dtype;
    options.emulated_flops_per_second = 1e9 * arguments.emulated_gflops;
    const ContextBenchReport own = bench_context(world, stream, options);
    if (world.rank() == 0) report = own;
  });
  if (!is_first_process()) return;
  const bool is_emulated = arguments.emulated_gflops > 0.0;
  print(report, is_emulated);
  if (arguments.json) std::cout << to_json(report, ranks, is_emulated).dump() << "\n";
}

}  // namespace

void add_bench_context(Verb bench) {
  const auto arguments = std::make_shared<BenchContextArguments>();
  Verb verb = bench.add_verb(
      "context", "time each way to share the attention of a sequence among ranks (axis cp)");
  ContextBenchOptions& options = arguments->bench;
  verb.add_option("--ranks", arguments->ranks, "local ranks to start; two when left out")
      .positive();
  verb.add_option("--seq", options.tokens, "tokens of the sequence").positive().show_default();
  verb.add_option("--heads", options.heads, "query heads").positive().show_default();
  verb.add_option("--kv-heads", options.key_heads, "key heads").positive().show_default();
  verb.add_option("--head-dim", options.head_dim, "width of a head").positive().show_default();
  verb.add_option("--rounds", options.rounds, "turns, of which medians are taken")
      .positive()
      .show_default();
  verb.add_option("--emulate-gflops", arguments->emulated_gflops,
                  "compute nothing: wait in place of each block for as long as a device of so many "
                  "GFLOP/s takes; messages are real. 0: compute")
      .range(0.0, 1e9)
      .show_default();
  verb.add_option("--threads", arguments->threads, "of a rank; 0: its share of all cores")
      .range(0, 1024);
  verb.add_option("--device", arguments->device, "cpu or cuda").show_default();
  verb.add_option("--dtype", arguments->dtype, "f32, or bf16 on cuda").show_default();
  verb.add_flag("--shares", arguments->shares,
                "compute the ranks' shares one after the other, without messages, and compare "
                "their sum with the whole sequence on one rank");
  verb.add_flag("--json", arguments->json, "print one JSON object");
  verb.callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
