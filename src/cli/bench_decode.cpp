#include <fmt/format.h>

#include <iostream>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/strings.h"
#include "bench/decode_bench.h"
#include "cli/compute_choice.h"
#include "cli/ranks.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"

namespace heddle::cli {
namespace {

struct BenchDecodeArguments {
  DecodeBenchOptions bench;
  std::string device = "cpu", dtype = "f32";
  int ranks = 0, threads = 0;
  bool json = false;
};

void check(const DecodeBenchOptions& bench, int ranks) {
  std::vector<std::string> problems = problems_of(DecodeShape{.ranks = ranks,
                                                              .context = bench.context,
                                                              .heads = bench.heads,
                                                              .key_heads = bench.key_heads,
                                                              .head_dim = bench.head_dim});
  if (ranks < 2)
    problems.push_back("one rank divides its cache with nobody; use --ranks 2 or more");
  if (bench.context < ranks) {
    problems.push_back(
        fmt::format("--context {} leaves some of {} ranks without keys; use {} or "
                    "more",
                    bench.context, ranks, ranks));
  }
  if (!problems.empty()) {
    throw Error(ErrorCode::usage, fmt::format("{}", fmt::join(problems, "\n  ")));
  }
}

void print(const std::vector<DecodeBenchResult>& results) {
  log_info("{:<8} {:>12} {:>9} {:>12} {:>12}", "method", "time", "to tree", "sends", "difference");
  for (const DecodeBenchResult& result : results) {
    log_info("{:<8} {:>10.3f}ms {:>9.2f} {:>12} {:>12.1e}", name_of(result.method),
             1e3 * result.seconds, result.seconds / results.front().seconds,
             format_bytes(static_cast<double>(result.sent_bytes)), result.difference);
  }
}

JsonValue to_json(const std::vector<DecodeBenchResult>& results, std::int64_t context, int ranks) {
  JsonValue json = {{"ranks", ranks}, {"context", context}, {"methods", JsonValue::array()}};
  for (const DecodeBenchResult& result : results) {
    json["methods"].push_back({{"method", name_of(result.method)},
                               {"seconds", result.seconds},
                               {"sent_bytes", result.sent_bytes},
                               {"difference", result.difference}});
  }
  return json;
}

void run(const BenchDecodeArguments& arguments) {
  ComputeChoice choice;
  int ranks = 0;
  prepare_on_ranks([&] {
    choice = compute_choice(arguments.device, arguments.dtype);
    ranks = several_ranks(arguments.ranks);
    check(arguments.bench, ranks);
  });
  std::vector<DecodeBenchResult> results;
  run_on_devices(choice.device.kind, ranks, [&](World& world, Device device) {
    Stream stream(thread_count(arguments.threads, ranks), device);
    DecodeBenchOptions options = arguments.bench;
    options.dtype = choice.dtype;
    const auto own = bench_decode(world, stream, options);
    if (world.rank() == 0) results = own;
  });
  if (!is_first_process()) return;
  print(results);
  if (arguments.json) {
    std::cout << to_json(results, arguments.bench.context, ranks).dump() << "\n";
  }
}

}  // namespace

void add_bench_decode(Verb bench) {
  const auto arguments = std::make_shared<BenchDecodeArguments>();
  Verb verb = bench.add_verb("decode",
                             "time one new token's attention to a KV cache that ranks divide "
                             "(axis cp), by tree and by moving keys");
  DecodeBenchOptions& options = arguments->bench;
  verb.add_option("--ranks", arguments->ranks, "local ranks to start; two when left out")
      .positive();
  verb.add_option("--context", options.context, "tokens in the cache, of all ranks")
      .positive()
      .show_default();
  verb.add_option("--heads", options.heads, "query heads").positive().show_default();
  verb.add_option("--kv-heads", options.key_heads, "key heads").positive().show_default();
  verb.add_option("--head-dim", options.head_dim, "width of a head").positive().show_default();
  verb.add_option("--rounds", options.rounds, "turns, of which medians are taken")
      .positive()
      .show_default();
  verb.add_option("--threads", arguments->threads, "of a rank; 0: its share of all cores")
      .range(0, 1024);
  verb.add_option("--device", arguments->device, "cpu or cuda").show_default();
  verb.add_option("--dtype", arguments->dtype, "f32, or bf16 on cuda").show_default();
  verb.add_flag("--json", arguments->json, "print one JSON object");
  verb.callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
