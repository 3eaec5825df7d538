#include <fmt/format.h>

#include <limits>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json_value.h"
#include "base/strings.h"
#include "cli/times_option.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "observe/timeline.h"
#include "planner/compare_experts.h"
#include "planner/two_level_exchange.h"
#include "simulator/play_experts.h"

namespace heddle::cli {
namespace {

using planner::ChosenPass;
using planner::ExpertsBlock;
using planner::ExpertsMethod;
using planner::ExpertsStep;
using planner::ExpertsTimings;

constexpr int kUnset = std::numeric_limits<int>::min();
/// Whose gradients are divided in a few seconds.
constexpr int kMostExpertLayers = 200;
constexpr double kMilli = 1e-3;

struct SimulateExpertsOptions {
  int sequences = 1, length = kUnset, hidden = kUnset, width = kUnset;
  int products = 3, shards = 1, nodes = kUnset, layers = 1;
  double rows = 2.0, gradients = -1.0;
  std::filesystem::path system, svg;
  std::string dtype = "bf16", dense;
  std::string exchange, gather, scatter, sum, product;
  bool json = false;
};

/// A line that may be given: which part of the timings it is.
struct LineOption {
  const char* name;
  std::string SimulateExpertsOptions::*text;
  planner::LinearTime ExpertsTimings::*line;
  const char* what;
};
constexpr LineOption kLines[] = {
    {"--exchange", &SimulateExpertsOptions::exchange, &ExpertsTimings::exchange,
     "all-to-all between nodes"},
    {"--gather", &SimulateExpertsOptions::gather, &ExpertsTimings::gather,
     "all-gather within a node, of the gathered elements"},
    {"--scatter", &SimulateExpertsOptions::scatter, &ExpertsTimings::scatter,
     "reduce-scatter within a node"},
    {"--sum", &SimulateExpertsOptions::sum, &ExpertsTimings::sum,
     "all-reduce of gradients between nodes"},
    {"--product", &SimulateExpertsOptions::product, &ExpertsTimings::product,
     "a product, by multiplications"},
};

// ---- Reading options ----------------------------------------------------------------------------

DType dtype_of(const SimulateExpertsOptions& options) {
  return options.dtype == "f32" ? DType::f32 : DType::bf16;
}

std::optional<planner::Machine> machine_of(const SimulateExpertsOptions& options) {
  if (options.system.empty()) return std::nullopt;
  require_option(options.nodes != kUnset, "simulate experts --system", "--nodes");
  return planner::read_machine(options.system);
}

ExpertsTimings timings_of(const SimulateExpertsOptions& options,
                          const std::optional<planner::Machine>& machine) {
  ExpertsTimings timings;
  std::vector<std::string> missing;
  if (machine) {
    timings = planner::experts_timings(*machine, options.nodes, options.shards, dtype_of(options));
  }
  for (const auto& [name, text, line, what] : kLines) {
    if ((options.*text).empty()) {
      if (!machine) missing.emplace_back(name);
      continue;
    }
    const auto numbers = parse_times(name, options.*text, "FIXED,EACH");
    timings.*line = {.fixed = kMilli * numbers[0], .per_element = kMilli * numbers[1]};
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::usage,
                fmt::format("what {} takes is not given", fmt::join(missing, ", ")),
                "give --system FILE and --nodes, or each of them as FIXED,EACH in ms");
  }
  return timings;
}

ExpertsBlock block_of(const SimulateExpertsOptions& options, const ExpertsTimings& timings) {
  const planner::ExpertsLayerShape layer{.tokens = 1.0 * options.sequences * options.length,
                                         .rows_per_token = options.rows,
                                         .hidden = 1.0 * options.hidden,
                                         .width = 1.0 * options.width,
                                         .products = options.products,
                                         .shards = options.shards};
  ExpertsBlock block = planner::attention_and_experts(timings, layer, options.sequences);
  if (!options.dense.empty()) {
    const auto numbers = parse_times("--dense-ms", options.dense, "FORWARD,BACKWARD");
    block.dense_forward = kMilli * numbers[0];
    block.dense_backward = kMilli * numbers[1];
  }
  if (options.gradients >= 0.0) block.gradients = options.gradients;
  return block;
}

/// The all-to-all of the same rows if experts were whole and on all ranks, in both its forms.
struct WholeExchange {
  double linear = 0.0, two_level = 0.0;  ///< seconds
  double bytes = 0.0;                    ///< of a rank
  std::optional<double> crossover = {};  ///< bytes of a rank below which two levels are faster
};

std::optional<WholeExchange> whole_exchange(const SimulateExpertsOptions& options,
                                            const std::optional<planner::Machine>& machine,
                                            const ExpertsBlock& block) {
  if (!machine || options.nodes * options.shards == 1) return std::nullopt;
  const auto network = planner::exchange_network(*machine, options.nodes, options.shards);
  const double bytes = block.experts.exchanged() * static_cast<double>(size_of(dtype_of(options)));
  return WholeExchange{.linear = planner::linear_exchange_seconds(network, bytes),
                       .two_level = planner::two_level_exchange_seconds(network, bytes),
                       .bytes = bytes,
                       .crossover = planner::two_level_crossover(network)};
}

// ---- Results ------------------------------------------------------------------------------------

JsonValue pass_json(const ChosenPass& pass) {
  return {{"degree", pass.shape.degree},      {"seconds", pass.seconds},
          {"exchange", pass.chunk.exchange},  {"gather", pass.chunk.gather},
          {"expert", pass.chunk.expert},      {"scatter", pass.chunk.scatter},
          {"gradients", pass.chunk.gradients}};
}

JsonValue lines_json(const ExpertsTimings& timings) {
  JsonValue lines = JsonValue::object();
  for (const auto& [name, text, line, what] : kLines) {
    lines[name + 2] = {{"fixed", (timings.*line).fixed},
                       {"per_element", (timings.*line).per_element}};
  }
  return lines;
}

void print_json(const SimulateExpertsOptions& options, const ExpertsTimings& timings,
                const ExpertsBlock& block, const std::optional<WholeExchange>& whole,
                const std::vector<ExpertsStep>& steps) {
  JsonValue report = {{"layers", options.layers},
                      {"timings", lines_json(timings)},
                      {"dense_forward", block.dense_forward},
                      {"dense_backward", block.dense_backward},
                      {"gradients", block.gradients},
                      {"methods", JsonValue::array()}};
  for (const ExpertsStep& step : steps) {
    JsonValue one = {{"method", name_of(step.method)},
                     {"makespan", step.seconds},
                     {"speedup", steps.front().seconds / step.seconds},
                     {"forward", pass_json(step.forward)},
                     {"backward", JsonValue::array()},
                     {"gradients_behind", step.backward.behind}};
    for (const auto& layer : step.backward.layers) {
      JsonValue pass = pass_json(layer.experts);
      pass["gradients_with_experts"] = layer.with_experts;
      pass["gradients_with_dense"] = layer.with_dense;
      pass["dense_seconds"] = layer.dense_seconds;
      one["backward"].push_back(std::move(pass));
    }
    report["methods"].push_back(std::move(one));
  }
  if (whole) {
    report["all_to_all"] = {{"bytes", whole->bytes},
                            {"linear_seconds", whole->linear},
                            {"two_level_seconds", whole->two_level},
                            {"crossover_bytes", whole->crossover}};
  }
  fmt::print("{}\n", report.dump(2));
}

void print_table(const SimulateExpertsOptions& options, const std::optional<WholeExchange>& whole,
                 const std::vector<ExpertsStep>& steps) {
  fmt::print("{}: {} tokens of {} on {} ranks, experts of {}\n\n",
             options.layers == 1 ? "one layer of many" : fmt::format("{} layers", options.layers),
             options.sequences * options.length, options.hidden, options.shards, options.width);
  fmt::print("{:<11}{:>9}{:>10}{:>14}{:>12}{:>9}{:>10}{:>9}\n", "method", "forward", "backward",
             "with experts", "with dense", "behind", "step ms", "faster");
  for (const ExpertsStep& step : steps) {
    double with_experts = 0.0, with_dense = 0.0;
    for (const auto& layer : step.backward.layers) {
      with_experts += layer.with_experts;
      with_dense += layer.with_dense;
    }
    fmt::print("{:<11}{:>9}{:>10}{:>14}{:>12}{:>9}{:>10.4g}{:>9.3f}\n", name_of(step.method),
               step.forward.shape.degree, step.backward.layers.back().experts.shape.degree,
               format_count(with_experts), format_count(with_dense),
               format_count(step.backward.behind), step.seconds / kMilli,
               steps.front().seconds / step.seconds);
  }
  fmt::print(
      "\nforward, backward: chunks of a pass; with, behind: gradients that are summed meanwhile, "
      "and behind all layers\n");
  if (!whole) return;
  fmt::print(
      "whole experts on all {} ranks: an all-to-all of {} takes {:.4g} ms, in two levels "
      "{:.4g} ms{}\n",
      options.nodes * options.shards, format_bytes(whole->bytes), whole->linear / kMilli,
      whole->two_level / kMilli,
      whole->crossover ? fmt::format(", which is faster below {}", format_bytes(*whole->crossover))
                       : "");
}

void add_bars(observe::Timeline& timeline, int row, const ChosenPass& pass, double from,
              observe::TimelineKind computing) {
  const ExpertsPass tasks = make_experts_pass(pass.shape);
  const std::vector<PlayedTask> played = play_experts(tasks, pass.chunk);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (played[i].end <= played[i].begin) continue;
    const bool is_computing = tasks[i].lane == ExpertsLane::compute;
    const bool is_gradients = tasks[i].kind == ExpertsTask::Kind::gradients;
    timeline.bars.push_back({.rank = row,
                             .label = fmt::format("{} {}", name_of(tasks[i].kind), tasks[i].chunk),
                             .kind = is_computing   ? computing
                                     : is_gradients ? observe::TimelineKind::weights
                                                    : observe::TimelineKind::communication,
                             .begin = (from + played[i].begin) / kMilli,
                             .end = (from + played[i].end) / kMilli,
                             .line = is_computing ? 0 : 1 + static_cast<int>(tasks[i].lane)});
  }
}

/// Both passes over the experts of one layer, a row for each method.
std::string drawing(const std::vector<ExpertsStep>& steps) {
  observe::Timeline timeline{
      .description =
          "Forward and backward over the experts of one layer, a row for each method: "
          "computing, between nodes, within a node",
      .unit = "ms"};
  for (const ExpertsStep& step : steps) {
    const int row = static_cast<int>(step.method);
    add_bars(timeline, row, step.forward, 0.0, observe::TimelineKind::forward);
    add_bars(timeline, row, step.backward.layers.back().experts, step.forward.seconds,
             observe::TimelineKind::backward);
  }
  return observe::render_timeline(timeline);
}

void run(const SimulateExpertsOptions& options) {
  require_option(options.length != kUnset, "simulate experts", "--seq");
  require_option(options.hidden != kUnset, "simulate experts", "--hidden");
  require_option(options.width != kUnset, "simulate experts", "--width");
  const std::optional<planner::Machine> machine = machine_of(options);
  const ExpertsTimings timings = timings_of(options, machine);
  const ExpertsBlock block = block_of(options, timings);
  std::vector<ExpertsStep> steps;
  for (const ExpertsMethod method : planner::kExpertsMethods) {
    steps.push_back(planner::plan_experts(timings, block, options.layers, method));
  }
  if (!options.svg.empty()) {
    write_file_atomically(real_file_system(), options.svg, drawing(steps));
  }
  const auto whole = whole_exchange(options, machine, block);
  options.json ? print_json(options, timings, block, whole, steps)
               : print_table(options, whole, steps);
}

}  // namespace

void add_simulate_experts(Verb simulate) {
  const auto options = std::make_shared<SimulateExpertsOptions>();
  Verb verb = simulate.add_verb(
      "experts", "schedule the exchanges of layers of experts: chunks, networks, gradients");
  constexpr int kMost = 1 << 24;
  verb.add_option("--batch", options->sequences, "sequences of the ranks that share tokens")
      .range(1, kMost)
      .show_default();
  verb.add_option("--seq", options->length, "tokens of a sequence").range(1, kMost);
  verb.add_option("--hidden", options->hidden, "width of the model").range(1, kMost);
  verb.add_option("--width", options->width, "of an expert").range(1, kMost);
  verb.add_option("--rows", options->rows, "experts of a token times the capacity factor")
      .range(1e-3, 1e3)
      .show_default();
  verb.add_option("--products", options->products, "of an expert: 3 with a gate, else 2")
      .range(2, 3)
      .show_default();
  verb.add_option("--shards", options->shards,
                  "ranks of a node, which share tokens and the width of experts")
      .range(1, kMost)
      .show_default();
  verb.add_option("--layers", options->layers,
                  "of the model; 1 stands for one of very many, which sums the gradients of the "
                  "one above it")
      .range(1, kMostExpertLayers)
      .show_default();
  verb.add_option("--gradients", options->gradients,
                  "elements of a dense part that a rank sums; attention's when left out")
      .not_negative();
  verb.add_option("--dense-ms", options->dense,
                  "FORWARD,BACKWARD of a dense part; attention's products when left out");
  verb.add_option("--system", options->system,
                  "machine file, for what exchanges and products take");
  verb.add_option("--nodes", options->nodes, "that experts are divided over; with --system")
      .range(1, kMost);
  verb.add_option("--dtype", options->dtype, "with --system")
      .one_of({"bf16", "f32"})
      .show_default();
  for (const LineOption& line : kLines) {
    verb.add_option(line.name, (*options).*line.text,
                    fmt::format("FIXED,EACH: ms, and ms per element, of {}", line.what));
  }
  verb.add_option("--svg", options->svg, "draw both passes over one layer into this file");
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
