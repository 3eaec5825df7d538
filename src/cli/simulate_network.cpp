#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/json_value.h"
#include "base/rng.h"
#include "base/strings.h"
#include "cli/progress_line.h"
#include "cli/topology_options.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "simulator/network/collectives.h"
#include "simulator/network/link_load.h"
#include "simulator/network/placement.h"

namespace heddle::cli {
namespace {

using namespace network;

struct SimulateNetworkOptions {
  TopologyOptions topology = {.kind = "leaf-spine"};
  std::string pattern, placement = "packed";
  int ranks = 0, chunks = 8, seeds = 1;
  double bytes = 0, jitter_us = 0;
  double tolerance = PlayOptions{}.tolerance;
  std::uint64_t seed = 0;
  bool json = false;
};

/// One seed's outcome.
struct Result {
  PlayedProgram played;
  std::vector<double> link_bytes;
  BusiestLink busiest = {};
  double over_spray = 1.0;  ///< what the busiest link takes, over the same with spraying
};

std::vector<double> begins(const SimulateNetworkOptions& options, int ranks, std::uint64_t seed) {
  std::vector<double> seconds;
  for (int rank = 0; rank < ranks; ++rank) {
    seconds.push_back(options.jitter_us * 1e-6 * random_uniform(rng_key(seed, "jitter"), rank));
  }
  return seconds;
}

Result play_seed(const SimulateNetworkOptions& options, const Topology& topology,
                 const FlowProgram& program, std::uint64_t seed) {
  PlayOptions play_options{.begin_seconds = begins(options, program.ranks(), seed),
                           .tolerance = options.tolerance,
                           .on_progress = progress_line("simulating " + program.name)};
  if (options.placement == "random") {
    play_options.placement = random_placement(topology, program.ranks(), seed);
  }
  play_options.routing = {.routing = Routing::spray};
  const auto sprayed = busiest_link(topology, link_bytes(topology, program, play_options));
  play_options.routing = make_routing(options.topology, seed);
  Result result{.played = play(topology, program, play_options),
                .link_bytes = link_bytes(topology, program, play_options)};
  result.busiest = busiest_link(topology, result.link_bytes);
  if (sprayed.seconds > 0.0) result.over_spray = result.busiest.seconds / sprayed.seconds;
  return result;
}

/// Mean and worst over seeds.
struct Spread {
  double mean = 0.0, worst = 0.0;
};

Spread spread(const std::vector<Result>& results, double (*value)(const Result&)) {
  Spread spread;
  for (const Result& result : results) {
    spread.mean += value(result) / static_cast<double>(results.size());
    spread.worst = std::max(spread.worst, value(result));
  }
  return spread;
}

Spread spread_of_time(const std::vector<Result>& results) {
  return spread(results, [](const Result& result) { return result.played.seconds; });
}

Spread spread_of_congestion(const std::vector<Result>& results) {
  return spread(results, [](const Result& result) { return result.over_spray; });
}

JsonValue utilisation_json(const Utilisation& use) {
  return {{"mean", use.mean}, {"highest", use.highest}, {"histogram", use.histogram}};
}

void print_json(const SimulateNetworkOptions& options, const Topology& topology,
                const FlowProgram& program, const std::vector<Result>& results) {
  const auto& [played, bytes, busiest, over_spray] = results.front();
  const auto spread_json = [](const Spread& s) {
    return JsonValue{{"mean", s.mean}, {"worst", s.worst}};
  };
  const JsonValue report = {
      {"pattern", program.name},
      {"topology", topology.description()},
      {"hosts", topology.hosts()},
      {"ranks", program.ranks()},
      {"placement", options.placement},
      {"routing", options.topology.routing},
      {"ways", options.topology.ways},
      {"seed", options.seed},
      {"bytes", options.bytes},
      {"completion_seconds", played.seconds},
      {"busiest_link", {{"name", topology.link_name(busiest.link)}, {"seconds", busiest.seconds}}},
      {"congestion_over_spray", over_spray},
      {"link_utilisation",
       {{"host", utilisation_json(utilisation(topology, bytes, played.seconds, true))},
        {"fabric", utilisation_json(utilisation(topology, bytes, played.seconds, false))}}},
      {"slowest_flow",
       {{"source", played.slowest.source},
        {"destination", played.slowest.destination},
        {"bytes", played.slowest.bytes},
        {"begin_seconds", played.slowest.begin},
        {"end_seconds", played.slowest.end}}},
      {"messages", played.transfers},
      {"pieces", played.pieces},
      {"most_pieces_from_host", played.most_pieces_from_host},
      {"rate_solutions", played.solves},
      {"over_seeds",
       {{"seeds", options.seeds},
        {"completion_seconds", spread_json(spread_of_time(results))},
        {"congestion_over_spray", spread_json(spread_of_congestion(results))}}}};
  fmt::print("{}\n", report.dump(2));
}

void print_utilisation(const char* kind, const Utilisation& use) {
  fmt::print("{:<16} mean {:5.1f} %, highest {:5.1f} %; links by tenth: {}\n", kind, 100 * use.mean,
             100 * use.highest, fmt::join(use.histogram, " "));
}

void print_table(const SimulateNetworkOptions& options, const Topology& topology,
                 const FlowProgram& program, const std::vector<Result>& results) {
  const auto& [played, bytes, busiest, over_spray] = results.front();
  fmt::print("{} of {} ranks, {} each, on a {}, {} routing\n\n", program.name, program.ranks(),
             format_bytes(options.bytes), topology.description(), options.topology.routing);
  fmt::print("completion       {:.6g} ms\n", 1e3 * played.seconds);
  fmt::print("busiest link     {} needs {:.6g} ms for its bytes, {:.3f} of spraying's\n",
             topology.link_name(busiest.link), 1e3 * busiest.seconds, over_spray);
  print_utilisation("host links", utilisation(topology, bytes, played.seconds, true));
  print_utilisation("fabric links", utilisation(topology, bytes, played.seconds, false));
  const auto& slowest = played.slowest;
  fmt::print("slowest flow     rank {} to {}, {} in {:.6g} ms, from {:.6g} ms\n", slowest.source,
             slowest.destination, format_bytes(slowest.bytes), 1e3 * (slowest.end - slowest.begin),
             1e3 * slowest.begin);
  fmt::print("messages         {} in {} pieces, at most {} at once from a host\n",
             format_thousands(played.transfers), format_thousands(played.pieces),
             played.most_pieces_from_host);
  if (options.seeds == 1) return;
  const Spread time = spread_of_time(results), congestion = spread_of_congestion(results);
  fmt::print(
      "{:3} seeds        completion mean {:.6g} ms, worst {:.6g} ms; busiest link over "
      "spraying's mean {:.3f}, worst {:.3f}\n",
      options.seeds, 1e3 * time.mean, 1e3 * time.worst, congestion.mean, congestion.worst);
}

void run(const SimulateNetworkOptions& options) {
  const Topology topology = make_topology(options.topology);
  const FlowProgram program =
      make_pattern(options.pattern, {.ranks = options.ranks == 0 ? topology.hosts() : options.ranks,
                                     .bytes = options.bytes,
                                     .chunks = options.chunks});
  std::vector<Result> results;
  for (int i = 0; i < options.seeds; ++i) {
    results.push_back(
        play_seed(options, topology, program, options.seed + static_cast<std::uint64_t>(i)));
  }
  if (options.json) {
    print_json(options, topology, program, results);
  } else {
    print_table(options, topology, program, results);
  }
}

}  // namespace

void add_simulate_network(Verb simulate) {
  const auto options = std::make_shared<SimulateNetworkOptions>();
  Verb verb = simulate.add_verb("network", "play a collective as flows on a network");
  verb.add_option("--pattern", options->pattern,
                  fmt::format("one of {}", fmt::join(pattern_names(), ", ")))
      .required();
  verb.add_option("--bytes", options->bytes, "what each rank has").positive().required();
  verb.add_option("--ranks", options->ranks, "one per host; 0: on all hosts").not_negative();
  verb.add_option("--chunks", options->chunks, "that a tree sends one after the other")
      .show_default();
  verb.add_option("--placement", options->placement, "of ranks on hosts")
      .one_of({"packed", "random"})
      .show_default();
  verb.add_option("--jitter-us", options->jitter_us, "ranks begin at random within this")
      .range(0.0, 1e9)
      .show_default();
  verb.add_option("--seed", options->seed, "of hashes, random placement and jitter").show_default();
  verb.add_option("--seeds", options->seeds, "play this many and give mean and worst")
      .range(1, 10'000)
      .show_default();
  verb.add_option("--tolerance", options->tolerance,
                  "ends that are this near, relative to a flow's age, are taken together")
      .range(0.0, 0.1)
      .show_default();
  add_topology_options(verb, options->topology);
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
