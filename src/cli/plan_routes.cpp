#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/json_value.h"
#include "base/strings.h"
#include "cli/link_table.h"
#include "cli/measured_speeds.h"
#include "cli/progress_line.h"
#include "cli/times_option.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "planner/search_routes.h"

namespace heddle::cli {
namespace {

using planner::FoundRoutes;
using planner::RouteProblem;

struct PlanRoutesOptions {
  std::filesystem::path links, speeds;
  std::string stages, nodes, forward = "1";
  double skip = 0.33, backward = 2.0, loss = 0.25, first = 1.0, gap = 0.0, overhead = 0.0;
  double message_bytes = 0.0, gradient_bytes = 0.0;
  int memory = 3, microbatches = 6, blocks = 0;
  planner::RouteSearchOptions search;
  bool json = false;
};

/// "5,3,3": sizes; "6": so many stages, with equal numbers of nodes.
std::vector<int> parse_sizes(const std::string& text, int nodes) {
  std::vector<int> sizes;
  for (const double size : parse_numbers("--stages", text)) {
    if (size != std::floor(size) || size > nodes) {
      throw Error(ErrorCode::usage,
                  fmt::format("--stages {}: {:g} is no number of stages or nodes", text, size),
                  fmt::format("give whole numbers up to {}, as many as there are nodes", nodes));
    }
    sizes.push_back(static_cast<int>(size));
  }
  if (sizes.size() > 1) return sizes;
  const int stages = sizes.front();
  if (stages < 2 || nodes % stages != 0) {
    throw Error(ErrorCode::usage,
                fmt::format("{} nodes do not make {} equal stages", nodes, stages),
                "give the sizes of the stages, as --stages 5,3,3");
  }
  return std::vector<int>(static_cast<std::size_t>(stages), nodes / stages);
}

/// "0,3 1 2": nodes of the stages.
std::vector<std::vector<int>> parse_nodes(const std::string& text, int nodes) {
  std::vector<std::vector<int>> by_stage;
  std::vector<bool> is_placed(static_cast<std::size_t>(nodes), false);
  for (const std::string& stage : split(text, ' ')) {
    if (stage.empty()) continue;
    auto& own = by_stage.emplace_back();
    for (const double number : parse_numbers("--nodes", stage)) {
      const int node = static_cast<int>(number);
      if (node < 0 || node >= nodes || is_placed[static_cast<std::size_t>(node)]) {
        throw Error(ErrorCode::usage,
                    fmt::format("--nodes names node {}, which {}", node,
                                node < 0 || node >= nodes ? "there is not" : "has a stage already"),
                    fmt::format("nodes count from 0 to {}, each in one stage", nodes - 1));
      }
      is_placed[static_cast<std::size_t>(node)] = true;
      own.push_back(node);
    }
  }
  return by_stage;
}

std::vector<double> given_forwards(const PlanRoutesOptions& options, int nodes) {
  auto forward = parse_numbers("--forward", options.forward);
  if (forward.size() != 1 && std::ssize(forward) != nodes) {
    throw Error(ErrorCode::usage,
                fmt::format("--forward has {} times for {} nodes", forward.size(), nodes),
                "give one for all, or one for each");
  }
  forward.resize(static_cast<std::size_t>(nodes), forward.front());
  return forward;
}

/// Node n is the one that rank n of that run had.
std::vector<double> measured_forwards(const PlanRoutesOptions& options, int nodes) {
  const MeasuredSpeeds speeds = read_speeds(options.speeds);
  const int blocks =
      options.blocks > 0
          ? options.blocks
          : std::ranges::max(speeds.measured, {}, &MeasuredSpeeds::Rank::blocks).blocks;
  if (blocks < 1) {
    throw Error(ErrorCode::usage,
                fmt::format("{} does not say how many blocks a rank had", options.speeds.string()),
                "give --blocks, those of a node's stage");
  }
  std::vector<double> forward;
  for (int node = 0; node < nodes; ++node) {
    const MeasuredSpeeds::Rank* const rank = speeds.find(node);
    // The first has embedding and head, and perhaps no block: --first says what its work is.
    const bool is_known = rank != nullptr && rank->block_seconds > 0.0;
    if (!is_known && node > 0) {
      throw Error(ErrorCode::usage,
                  fmt::format("{} has no time of rank {}, and {} has {} nodes",
                              options.speeds.string(), node, options.links.string(), nodes),
                  "give the report of a run with a rank on each node, in the order of the links");
    }
    forward.push_back(is_known ? rank->block_seconds * blocks / (1.0 + options.backward) : 0.0);
  }
  if (forward.front() == 0.0) forward.front() = std::ranges::max(forward);
  return forward;
}

RouteProblem problem_of(const PlanRoutesOptions& options, const LinkTable& links) {
  RouteProblem problem{.microbatches = options.microbatches};
  if (!options.nodes.empty()) {
    problem.nodes_by_stage = parse_nodes(options.nodes, links.nodes());
    for (const auto& nodes : problem.nodes_by_stage) {
      problem.stage_sizes.push_back(static_cast<int>(nodes.size()));
    }
  } else {
    problem.stage_sizes = parse_sizes(options.stages, links.nodes());
  }
  problem.length = route_length(problem.stages(), options.skip);
  problem.times = {.forward = options.speeds.empty() ? given_forwards(options, links.nodes())
                                                     : measured_forwards(options, links.nodes()),
                   .hop = [&links, bytes = options.message_bytes, more = options.overhead](
                              int a, int b) { return more + links.seconds(a, b, bytes); },
                   .loss = options.loss,
                   .backward = options.backward,
                   .gap = options.gap,
                   .memory = options.memory};
  problem.first = options.first;
  problem.carried = [&links, bytes = options.message_bytes](int a, int b) {
    return bytes / links.at(a, b).bytes_per_s;
  };
  if (options.gradient_bytes > 0.0) {
    // Around a ring, as far as its slowest link goes.
    problem.sum = [&links, bytes = 2.0 * options.gradient_bytes](int a, int b) {
      return links.seconds(a, b, bytes);
    };
  }
  return problem;
}

struct RoutesReport {
  RouteProblem problem;
  FoundRoutes found;
  FoundRoutes full;  ///< the same without skips
};

JsonValue plan_json(const FoundRoutes& found) {
  JsonValue routes = JsonValue::array(), stages = JsonValue::array();
  for (const RouteSlot& slot : found.plan.slots) {
    routes.push_back({{"nodes", slot.route}, {"microbatches", slot.microbatches}});
  }
  for (const auto& nodes : found.plan.nodes_by_stage) stages.push_back(nodes);
  return {{"seconds", found.plan.seconds},
          {"stages", std::move(stages)},
          {"routes", std::move(routes)},
          {"plans_tried", found.tried},
          {"search_seconds", found.search_seconds}};
}

double gain(const RoutesReport& report) {
  return 1.0 - report.found.plan.seconds / report.full.plan.seconds;
}

void print_json(const PlanRoutesOptions& options, const RoutesReport& report) {
  JsonValue json = plan_json(report.found);
  json["nodes"] = report.problem.nodes();
  json["skip"] = options.skip;
  json["in_flight"] = options.memory;
  json["microbatches"] = options.microbatches;
  json["executable"] = report.problem.is_chain();
  if (report.problem.is_chain()) {
    json["parallel.routes"] = to_text(report.found.plan.routes_of_ranks());
  }
  json["full"] = plan_json(report.full);
  json["gain"] = gain(report);
  fmt::print("{}\n", json.dump(2));
}

void print_table(const PlanRoutesOptions& options, const RoutesReport& report) {
  const planner::RoutePlan& plan = report.found.plan;
  fmt::print("{} nodes, {} stages, routes of {} of them\n\n", report.problem.nodes(),
             report.problem.stages(), report.problem.length);
  for (std::size_t stage = 0; stage < plan.nodes_by_stage.size(); ++stage) {
    fmt::print("stage {:<3} nodes {}\n", stage, fmt::join(plan.nodes_by_stage[stage], " "));
  }
  fmt::print("\n");
  std::vector<RouteSlot> slots = plan.slots;
  std::ranges::stable_sort(slots, {}, [](const RouteSlot& slot) { return slot.route.front(); });
  for (const RouteSlot& slot : slots) {
    fmt::print("{:<24}{} micro-batch{}\n", fmt::format("{}", fmt::join(slot.route, "-")),
               slot.microbatches, slot.microbatches == 1 ? "" : "es");
  }
  const std::string cap =
      report.problem.is_chain()
          ? std::string("as many in flight as a rank is places from the end of its route")
          : fmt::format("at most {} micro-batches in flight on a node", options.memory);
  fmt::print("\nstep               {:.2f} s, {}\n", plan.seconds, cap);
  fmt::print("without skips      {:.2f} s under the same limit, so {:.0f} % less\n",
             report.full.plan.seconds, 100 * gain(report));
  fmt::print("search             {} plans in {:.1f} s; it began with {:.2f} s\n",
             report.found.tried, report.found.search_seconds, report.found.first_seconds);
  if (!report.problem.is_chain()) return;
  std::vector<int> order;
  for (const auto& nodes : plan.nodes_by_stage) order.push_back(nodes.front());
  fmt::print(
      "\nstart ranks on nodes {}, with\n\n[parallel]\nschedule = \"routes\"\n"
      "routes = \"{}\"\n",
      fmt::join(order, " "), to_text(plan.routes_of_ranks()));
}

void run(const PlanRoutesOptions& options) {
  if (options.stages.empty() == options.nodes.empty()) {
    throw Error(ErrorCode::usage, "--stages or --nodes is needed, and one of them only",
                "give --stages 6, or which nodes they have as --nodes \"0,3 1 2\"");
  }
  const LinkTable links = read_link_table(options.links);
  RoutesReport report{.problem = problem_of(options, links), .found = {}, .full = {}};
  planner::RouteSearchOptions search = options.search;
  search.progress = progress_line("routes", "plans");
  report.found = search_routes(report.problem, search);
  RouteProblem full = report.problem;
  full.length = full.stages();
  search.progress = progress_line("routes without skips", "plans");
  report.full = search_routes(full, search);
  options.json ? print_json(options, report) : print_table(options, report);
}

}  // namespace

void add_plan_routes(Verb plan) {
  const auto options = std::make_shared<PlanRoutesOptions>();
  Verb verb = plan.add_verb(
      "routes", "find stages and ways of micro-batches that skip stages, over measured links");
  verb.add_option("links", options->links,
                  "what heddle bench link --pairs --json printed: rate and latency of every pair")
      .required();
  verb.add_option("--stages", options->stages,
                  "how many, or the number of nodes of each, as 5,3,3; the first has the data");
  verb.add_option("--nodes", options->nodes, "of the stages, as \"0,3 1 2\": look for routes only");
  verb.add_option("--skip", options->skip, "share of the stages that each micro-batch leaves out")
      .range(0.0, 0.75)
      .show_default();
  verb.add_option("--microbatches", options->microbatches, "of each node of the first stage")
      .range(1, 4096)
      .show_default();
  verb.add_option("--memory", options->memory,
                  "micro-batches that a node has in flight, where stages have several nodes")
      .range(1, 4096)
      .show_default();
  verb.add_option("--message-bytes", options->message_bytes, "of a micro-batch between stages")
      .range(1.0, 1e15)
      .required();
  const Option forward =
      verb.add_option(
              "--forward", options->forward,
              "seconds of a micro-batch on a node's stage; one number, or one for each node")
          .show_default();
  verb.add_option("--speeds", options->speeds,
                  "report.json of a run with a rank on each node, or its folder: measured times in "
                  "place of --forward")
      .excludes(forward);
  verb.add_option("--blocks", options->blocks,
                  "of a node's stage, with --speeds; default: the most that a rank of that run had")
      .range(1, 1 << 20);
  verb.add_option("--backward", options->backward, "in forwards").range(0.0, 100.0).show_default();
  verb.add_option("--loss", options->loss, "head and loss, in forwards")
      .range(0.0, 100.0)
      .show_default();
  verb.add_option("--first", options->first,
                  "the first stage's work in forwards, where stages have one node each")
      .range(0.0, 100.0)
      .show_default();
  verb.add_option("--gap", options->gap, "seconds of a node behind every pass")
      .range(0.0, 1e6)
      .show_default();
  verb.add_option("--overhead", options->overhead, "seconds of a message beside its link")
      .range(0.0, 1e6)
      .show_default();
  verb.add_option("--gradient-bytes", options->gradient_bytes,
                  "of a stage, which its nodes sum; 0: not counted")
      .range(0.0, 1e15)
      .show_default();
  verb.add_option("--seconds", options->search.seconds, "that each of the two searches may take")
      .range(0.1, 86400.0)
      .show_default();
  verb.add_option("--starts", options->search.starts, "of a search, at most")
      .range(1, 1 << 20)
      .show_default();
  verb.add_option("--seed", options->search.seed, "of the search").show_default();
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
