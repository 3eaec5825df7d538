#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/json_value.h"
#include "base/strings.h"
#include "bench/link_bench.h"
#include "cli/ranks.h"
#include "cli/verb.h"
#include "cli/verbs.h"

namespace heddle::cli {
namespace {

struct BenchLinkOptions {
  LinkBenchOptions bench;
  int ranks = 0;
  bool pairs = false, json = false;
};

struct BenchLinkReport {
  int ranks = 0;
  std::vector<LinkRate> links;
  std::optional<double> exchange;  ///< bytes a second that a rank sends to all; of more than two
};

void print_json(const BenchLinkOptions& options, const BenchLinkReport& measured) {
  const std::vector<LinkRate>& rates = measured.links;
  JsonValue report = {{"ranks", measured.ranks},
                      {"message_bytes", options.bench.bytes},
                      {"links", JsonValue::array()}};
  for (const LinkRate& rate : rates) {
    report["links"].push_back({{"from", rate.from},
                               {"to", rate.to},
                               {"bytes_per_second", rate.bytes_per_second},
                               {"latency_seconds", rate.latency_seconds},
                               {"messages", rate.messages}});
  }
  if (measured.exchange) report["exchange"] = {{"bytes_per_second", *measured.exchange}};
  fmt::print("{}\n", report.dump(2));
}

void print_table(const BenchLinkOptions& options, const BenchLinkReport& measured) {
  fmt::print("messages of {} from each rank to {}, all at once\n",
             format_bytes(static_cast<double>(options.bench.bytes)),
             options.pairs ? "every other in turn" : "the next");
  fmt::print("{:>6}{:>6}{:>12}{:>12}{:>14}\n", "from", "to", "Mbit/s", "messages", "latency, ms");
  for (const LinkRate& rate : measured.links) {
    fmt::print("{:>6}{:>6}{:>12.4g}{:>12}{:>14.4g}\n", rate.from, rate.to,
               8e-6 * rate.bytes_per_second, rate.messages, 1e3 * rate.latency_seconds);
  }
  if (!measured.exchange) return;
  fmt::print("from each rank to all others, all at once: {:.4g} Mbit/s of a rank\n",
             8e-6 * *measured.exchange);
}

void run(const BenchLinkOptions& options) {
  run_on_ranks(several_ranks(options.ranks), [&](World& world) {
    // First the exchange, as in a run: a connection that had a link to itself asks for all of it
    // later on.
    BenchLinkReport measured{.ranks = world.size(), .links = {}, .exchange = {}};
    if (world.size() > 2) measured.exchange = bench_exchange(world, options.bench);
    const int furthest = options.pairs ? world.size() - 1 : 1;
    for (int distance = 1; distance <= furthest; ++distance) {
      const auto links = bench_links(world, options.bench, distance);
      measured.links.insert(measured.links.end(), links.begin(), links.end());
    }
    if (world.rank() != 0) return;
    options.json ? print_json(options, measured) : print_table(options, measured);
  });
}

}  // namespace

void add_bench_link(Verb bench) {
  const auto options = std::make_shared<BenchLinkOptions>();
  Verb verb = bench.add_verb("link", "time messages from each rank to the next: what links carry");
  verb.add_option("--ranks", options->ranks,
                  "ranks as threads of this process; those of a launcher, or two, when left out")
      .range(0, 1024);
  verb.add_option("--bytes", options->bench.bytes, "of a message").positive().show_default();
  verb.add_option("--warm-up", options->bench.warm_up, "seconds before time counts")
      .range(0.0, 3600.0)
      .show_default();
  verb.add_option("--seconds", options->bench.seconds, "that count")
      .range(0.0, 3600.0)
      .show_default();
  verb.add_flag("--pairs", options->pairs,
                "between every two ranks, one ring behind the other (for heddle plan routes)");
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
