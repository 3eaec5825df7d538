#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/routing_trace.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "model/registry.h"
#include "planner/generation_time.h"
#include "planner/place_experts.h"

namespace heddle::cli {
namespace {

struct PlanExpertsOptions {
  std::filesystem::path trace, out, model;
  int ranks = 1, nodes = 1;
  double latency_us = 10.0, gbytes = 25.0;
  int sequences = 1;  ///< of each rank
  std::string dtype = "bf16";
  bool json = false;
};

struct PlacementReport {
  const RoutingTrace& trace;
  planner::PlacedOnNodes found = {};
  double plain_hops = 0.0;  ///< of contiguous experts
  double pairs = 0.0;       ///< tokens times pairs of layers
  double worst_load = 0.0;  ///< of a rank in a layer, over the mean
  /// What generation sends, and how long that takes.
  std::optional<planner::GenerationShape> generation = {};
  planner::GenerationTime time = {};
};

/// Hops of a token on its way through the layers.
double per_token(const PlacementReport& report, double hops) {
  return report.pairs > 0.0 ? hops / report.pairs * (report.trace.layers - 1) : 0.0;
}

/// Where tokens of one expert are many, the rank that has it works for longer.
double worst_load(const RoutingTrace& trace, const ExpertPlacement& placement) {
  double worst = 0.0;
  for (int layer = 0; layer < trace.layers; ++layer) {
    std::vector<double> load(static_cast<std::size_t>(placement.ranks));
    double all = 0.0;
    for (std::int64_t token = 0; token < trace.tokens(); ++token) {
      const std::int32_t* taken =
          trace.taken.data() + (token * trace.layers + layer) * trace.choices;
      for (int choice = 0; choice < trace.choices; ++choice) {
        if (taken[choice] < 0) continue;
        load[static_cast<std::size_t>(placement.rank_of[static_cast<std::size_t>(
            layer)][static_cast<std::size_t>(taken[choice])])] += 1.0;
        all += 1.0;
      }
    }
    if (all > 0.0) worst = std::max(worst, std::ranges::max(load) / all * placement.ranks);
  }
  return worst;
}

planner::GenerationShape generation_of(const PlanExpertsOptions& options,
                                       const PlacementReport& report) {
  const ModelSpec spec = read_model_spec(options.model);
  if (!spec.experts || spec.expert_layers() != report.trace.layers ||
      spec.experts->count != report.trace.experts) {
    throw Error(ErrorCode::usage,
                fmt::format("{} is not the model of the trace, which has {} layers with {} experts",
                            options.model.string(), report.trace.layers, report.trace.experts));
  }
  return {.ranks = options.ranks,
          .layers = report.trace.layers,
          .attention_layers = static_cast<int>(spec.layers),
          .experts = report.trace.experts,
          .choices = report.trace.choices,
          .sequences = static_cast<double>(options.sequences),
          .hidden = static_cast<double>(spec.hidden),
          .key_values = 2.0 * static_cast<double>(spec.kv_heads * spec.head_dim),
          .element_bytes = options.dtype == "f32" ? 4.0 : 2.0,
          .leaves = 1.0 - 1.0 / options.ranks,
          .leaves_placed = report.pairs > 0.0 ? report.found.placed.hops / report.pairs : 0.0};
}

JsonValue traffic_json(const planner::GenerationTraffic& traffic, double seconds) {
  return {{"bytes", traffic.bytes}, {"calls", traffic.calls}, {"seconds", seconds}};
}

void print_json(const PlanExpertsOptions& options, const PlacementReport& report) {
  const auto& [placed, between_nodes] = report.found;
  JsonValue rank_of = JsonValue::array();
  for (const auto& layer : placed.placement.rank_of) rank_of.push_back(layer);
  JsonValue json = {{"tokens", report.trace.tokens()},
                    {"layers", report.trace.layers},
                    {"experts", report.trace.experts},
                    {"choices", report.trace.choices},
                    {"ranks", options.ranks},
                    {"nodes", options.nodes},
                    {"hops", per_token(report, placed.hops)},
                    {"hops_between_nodes", per_token(report, between_nodes)},
                    {"hops_contiguous", per_token(report, report.plain_hops)},
                    {"hops_at_least", per_token(report, placed.least_hops)},
                    {"exact", placed.is_exact},
                    {"gap_percent", 100 * placed.gap()},
                    {"worst_load", report.worst_load},
                    {"rank_of", std::move(rank_of)}};
  if (report.generation) {
    JsonValue& generation = json["generation"] = JsonValue::object();
    generation["two_exchanges"] =
        traffic_json(two_exchanges(*report.generation), report.time.two_exchanges);
    if (report.generation->choices == 1) {
      generation["one_exchange"] =
          traffic_json(one_exchange(*report.generation), report.time.one_exchange);
    }
  }
  fmt::print("{}\n", json.dump(2));
}

void print_generation(const PlanExpertsOptions& options, const PlacementReport& report) {
  fmt::print("\na new token of each of {} sequences in {}, {:.4g} us and {:.4g} GB/s\n",
             options.ranks * options.sequences, options.dtype, options.latency_us, options.gbytes);
  const auto line = [](const char* name, const planner::GenerationTraffic& traffic,
                       double seconds) {
    fmt::print("{:<36}{:>6} calls {:>12} {:>10.4g} us\n", name, traffic.calls,
               format_bytes(traffic.bytes), 1e6 * seconds);
  };
  line("two exchanges a layer", two_exchanges(*report.generation), report.time.two_exchanges);
  if (report.generation->choices > 1) {
    fmt::print("one exchange is for one expert a token; here tokens have {}, whose results meet\n",
               report.generation->choices);
    return;
  }
  line("one exchange, all contexts everywhere", one_exchange(*report.generation),
       report.time.one_exchange);
  const bool one_is_less = report.time.one_exchange < report.time.two_exchanges;
  fmt::print("{} would be faster\n", one_is_less ? "one exchange" : "two exchanges");
}

void print_table(const PlanExpertsOptions& options, const PlacementReport& report) {
  const auto& [placed, between_nodes] = report.found;
  fmt::print("{} tokens through {} layers of {} experts, on {} ranks\n\n", report.trace.tokens(),
             report.trace.layers, report.trace.experts, options.ranks);
  fmt::print("hops of a token    {:.4f}  ({})\n", per_token(report, placed.hops),
             placed.is_exact
                 ? "no placement has fewer"
                 : fmt::format("at most {:.2f} % above the fewest", 100 * placed.gap()));
  if (options.nodes > 1) {
    fmt::print("  between nodes    {:.4f}\n", per_token(report, between_nodes));
  }
  fmt::print("contiguous experts {:.4f}\n", per_token(report, report.plain_hops));
  fmt::print("busiest rank       {:.2f}    of the mean of its layer\n", report.worst_load);
  if (report.generation) print_generation(options, report);
}

void check(const PlanExpertsOptions& options, const RoutingTrace& trace) {
  std::vector<std::string> problems;
  if (trace.experts % options.ranks != 0) {
    problems.push_back(
        fmt::format("--ranks {} does not divide {} experts", options.ranks, trace.experts));
  }
  if (options.ranks % options.nodes != 0) {
    problems.push_back(
        fmt::format("--nodes {} does not divide --ranks {}", options.nodes, options.ranks));
  }
  if (trace.tokens() == 0) problems.push_back("the trace has no tokens");
  if (!options.model.empty() && options.ranks > planner::kMostGeneratingRanks) {
    problems.push_back(fmt::format("--ranks {} is more than the {} whose messages --model follows",
                                   options.ranks, planner::kMostGeneratingRanks));
  }
  if (!problems.empty()) {
    throw Error(ErrorCode::usage, fmt::format("{}", fmt::join(problems, "\n  ")));
  }
}

void run(const PlanExpertsOptions& options) {
  const RoutingTrace trace = read_routing_trace(options.trace);
  check(options, trace);
  const ExpertAffinity affinity = affinity_of(trace);
  PlacementReport report{
      .trace = trace,
      .found =
          planner::place_experts_on_nodes(affinity, options.nodes, options.ranks / options.nodes),
      .plain_hops =
          hops(affinity, contiguous_placement(trace.layers, trace.experts, options.ranks)),
      .pairs = affinity.total()};
  if (!options.model.empty()) {
    report.generation = generation_of(options, report);
    report.time = generation_time(*report.generation,
                                  planner::rows_of_trace(trace, report.found.placed.placement,
                                                         options.ranks * options.sequences),
                                  {1e-6 * options.latency_us, 1e9 * options.gbytes});
  }
  report.worst_load = worst_load(trace, report.found.placed.placement);
  if (!options.out.empty()) {
    write_expert_placement(real_file_system(), options.out, report.found.placed.placement);
    log_info("wrote {}; heddle convert MODEL --placement {} --out FOLDER numbers experts by it",
             options.out.string(), options.out.string());
  }
  options.json ? print_json(options, report) : print_table(options, report);
}

}  // namespace

void add_plan_experts(Verb plan) {
  const auto options = std::make_shared<PlanExpertsOptions>();
  Verb verb =
      plan.add_verb("experts", "lay experts that tokens take one after the other on the same rank");
  constexpr int kMostRanks = 1 << 16;
  verb.add_option("trace", options->trace,
                  "which experts tokens took (docs/formats/routing-trace.md)")
      .required();
  verb.add_option("--ranks", options->ranks, "that divide the experts")
      .range(1, kMostRanks)
      .required();
  verb.add_option("--nodes", options->nodes,
                  "of equally many ranks; experts are laid on them first")
      .range(1, kMostRanks)
      .show_default();
  verb.add_option("--out", options->out,
                  "write the placement here, for heddle convert --placement");
  verb.add_option("--model", options->model,
                  "config.json: also count what generation sends with two exchanges a layer, and "
                  "with one");
  verb.add_option("--latency-us", options->latency_us, "of a message; with --model")
      .range(0.0, 1e9)
      .show_default();
  verb.add_option("--gbytes", options->gbytes,
                  "per second that a rank sends and receives, each; with --model")
      .range(1e-9, 1e9)
      .show_default();
  verb.add_option("--sequences", options->sequences,
                  "that each rank continues at a time; with --model")
      .range(1, 1 << 20)
      .show_default();
  verb.add_option("--dtype", options->dtype, "of rows, keys and values; with --model")
      .one_of({"bf16", "f32"})
      .show_default();
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
