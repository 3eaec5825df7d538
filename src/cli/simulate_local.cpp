#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json_value.h"
#include "base/strings.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "codec/registry.h"
#include "observe/line_plot.h"
#include "simulator/play_local.h"

namespace heddle::cli {
namespace {

constexpr int kLeftOut = std::numeric_limits<int>::min();
constexpr double kLevels[] = {0.5, 0.8, 0.9, 0.95, 0.99};
constexpr int kLayersPerFragment = 3;

struct SimulateLocalOptions {
  std::string method = "all", codec;
  int layers = kLeftOut, every = 100, fragments = kLeftOut, delay = kLeftOut, sites = 2;
  double parameters = 0.0, step_ms = 0.0, bits = 16.0, latency_ms = 0.0;
  double from = 0.1, to = 1000.0, gbit = 0.0;
  int points = 50;
  std::filesystem::path svg;
  bool json = false;
};

struct PlayedMethod {
  std::string name;
  LocalMethod method;
  std::vector<PlayedLocal> by_point = {};
};

// ---- Reading options ----------------------------------------------------------------------------

double bits_of(const SimulateLocalOptions& options) {
  if (options.codec.empty()) return options.bits;
  const auto values = static_cast<std::int64_t>(options.parameters / options.layers);
  return 8.0 * static_cast<double>(codec::make_codec(options.codec)->encoded_bytes(values)) /
         static_cast<double>(values);
}

LocalMethod method_named(const std::string& name, const SimulateLocalOptions& options) {
  LocalMethod method{.layers = options.layers,
                     .parameters = options.parameters,
                     .step_seconds = 1e-3 * options.step_ms,
                     .sites = options.sites};
  if (method.layers >= 1 && method.parameters >= method.layers) method.bits = bits_of(options);
  if (name != "data-parallel") method.every = options.every;
  if (name != "streaming") return method;
  method.fragments = options.fragments != kLeftOut ? options.fragments
                                                   : std::clamp(options.layers / kLayersPerFragment,
                                                                1, std::max(1, options.every));
  method.delay = options.delay != kLeftOut ? options.delay : std::min(1, options.every - 1);
  return method;
}

std::vector<PlayedMethod> methods_of(const SimulateLocalOptions& options) {
  std::vector<std::string> problems;
  if (options.method == "data-parallel" || options.method == "diloco") {
    for (const auto& [name, value] :
         {std::pair{"--fragments", options.fragments}, std::pair{"--delay", options.delay}}) {
      if (value == kLeftOut) continue;
      problems.push_back(
          fmt::format("{} is for --method streaming (with one fragment and a delay "
                      "that is DiLoCo whose exchange is overlapped)",
                      name));
    }
  }
  if (options.from >= options.to) {
    problems.push_back(fmt::format("--from {} is not below --to {}", options.from, options.to));
  }
  if (options.parameters < options.layers) {
    problems.push_back(fmt::format("--parameters {} are fewer than --layers {}", options.parameters,
                                   options.layers));
  }
  std::vector<PlayedMethod> methods;
  for (const char* name : {"data-parallel", "diloco", "streaming"}) {
    if (options.method != "all" && options.method != name) continue;
    methods.push_back({.name = name, .method = method_named(name, options)});
    for (const std::string& problem : problems_of(methods.back().method)) {
      if (std::ranges::find(problems, problem) == problems.end()) problems.push_back(problem);
    }
  }
  if (!problems.empty()) {
    throw Error(ErrorCode::usage, fmt::format("{}", fmt::join(problems, "\n  ")));
  }
  return methods;
}

/// In Gbit/s, ascending, evenly spaced in their logarithm.
std::vector<double> grid_of(const SimulateLocalOptions& options) {
  std::vector<double> grid;
  for (int i = 0; i < options.points; ++i) {
    const double part = static_cast<double>(i) / (options.points - 1);
    grid.push_back(options.from * std::pow(options.to / options.from, part));
  }
  return grid;
}

// ---- Results ------------------------------------------------------------------------------------

PlayedLocal play(const LocalMethod& method, double gbit, const SimulateLocalOptions& options) {
  return play_local(method, {.bits_per_second = 1e9 * gbit, .latency = 1e-3 * options.latency_ms});
}

/// The least of the grid's rates that is enough.
std::optional<double> needed(const PlayedMethod& played, const std::vector<double>& grid,
                             double level) {
  for (std::size_t i = 0; i < grid.size(); ++i) {
    if (played.by_point[i].utilisation >= level) return grid[i];
  }
  return std::nullopt;
}

void print_json(const SimulateLocalOptions& options, const std::vector<PlayedMethod>& methods,
                const std::vector<double>& grid) {
  JsonValue report = {{"layers", options.layers},
                      {"parameters", options.parameters},
                      {"step_seconds", 1e-3 * options.step_ms},
                      {"sites", options.sites},
                      {"latency_seconds", 1e-3 * options.latency_ms},
                      {"methods", JsonValue::array()}};
  for (const PlayedMethod& played : methods) {
    JsonValue one = {{"method", played.name},
                     {"every", played.method.every},
                     {"fragments", played.method.fragments},
                     {"delay", played.method.delay},
                     {"bits", played.method.bits},
                     {"bytes_per_step", played.method.bits_per_step() / 8},
                     {"largest_bytes", played.method.largest_bits() / 8},
                     {"needed_gbit", JsonValue::array()},
                     {"curve", JsonValue::array()}};
    for (const double level : kLevels) {
      const auto least = needed(played, grid, level);
      one["needed_gbit"].push_back(
          {{"utilisation", level}, {"gbit", least ? JsonValue(*least) : JsonValue(nullptr)}});
    }
    for (std::size_t i = 0; i < grid.size(); ++i) {
      one["curve"].push_back({{"gbit", grid[i]},
                              {"utilisation", played.by_point[i].utilisation},
                              {"step_seconds", played.by_point[i].step_seconds}});
    }
    if (options.gbit > 0) {
      const PlayedLocal at = play(played.method, options.gbit, options);
      one["at"] = {{"gbit", options.gbit},
                   {"utilisation", at.utilisation},
                   {"step_seconds", at.step_seconds}};
    }
    report["methods"].push_back(std::move(one));
  }
  fmt::print("{}\n", report.dump(2));
}

void print_table(const SimulateLocalOptions& options, const std::vector<PlayedMethod>& methods,
                 const std::vector<double>& grid) {
  fmt::print("{} sites, {} layers with {} parameters, steps of {:.6g} s\n\n", options.sites,
             options.layers, format_count(options.parameters), 1e-3 * options.step_ms);
  fmt::print("{:<14}{:>6}{:>11}{:>7}{:>8}{:>16}{:>14}\n", "method", "every", "fragments", "delay",
             "bits", "sent per step", "most at once");
  for (const auto& [name, method, points] : methods) {
    fmt::print("{:<14}{:>6}{:>11}{:>7}{:>8.4g}{:>16}{:>14}\n", name, method.every, method.fragments,
               method.delay, method.bits, format_bytes(method.bits_per_step() / 8),
               format_bytes(method.largest_bits() / 8));
  }
  fmt::print("\n{:<30}", "Gbit/s for a utilisation of");
  for (const double level : kLevels) fmt::print("{:>7.0f} %", 100 * level);
  fmt::print("\n");
  for (const PlayedMethod& played : methods) {
    fmt::print("{:<30}", played.name);
    for (const double level : kLevels) {
      const auto least = needed(played, grid, level);
      fmt::print("{:>9}",
                 least ? fmt::format("{:.3g}", *least) : fmt::format("> {:.3g}", grid.back()));
    }
    fmt::print("\n");
  }
  if (options.gbit <= 0) return;
  fmt::print("\nat {:.6g} Gbit/s\n", options.gbit);
  for (const PlayedMethod& played : methods) {
    const PlayedLocal at = play(played.method, options.gbit, options);
    fmt::print("{:<14} utilisation {:5.1f} %, steps of {:.6g} s\n", played.name,
               100 * at.utilisation, at.step_seconds);
  }
}

std::string drawing(const SimulateLocalOptions& options, const std::vector<PlayedMethod>& methods,
                    const std::vector<double>& grid) {
  observe::LinePlot plot{
      .title = fmt::format("Compute utilisation of {} sites: {} layers with {} parameters, steps "
                           "of {:.4g} s",
                           options.sites, options.layers, format_count(options.parameters),
                           1e-3 * options.step_ms),
      .across = "Gbit/s between sites",
      .up = "%",
      .high = 100.0};
  for (const PlayedMethod& played : methods) {
    observe::LinePlot::Line line{.name = played.name};
    for (std::size_t i = 0; i < grid.size(); ++i) {
      line.points.emplace_back(grid[i], 100 * played.by_point[i].utilisation);
    }
    plot.lines.push_back(std::move(line));
  }
  return observe::render_line_plot(plot);
}

void run(const SimulateLocalOptions& options) {
  std::vector<PlayedMethod> methods = methods_of(options);
  const std::vector<double> grid = grid_of(options);
  for (PlayedMethod& played : methods) {
    for (const double gbit : grid) played.by_point.push_back(play(played.method, gbit, options));
  }
  if (!options.svg.empty()) {
    write_file_atomically(real_file_system(), options.svg, drawing(options, methods, grid));
  }
  options.json ? print_json(options, methods, grid) : print_table(options, methods, grid);
}

}  // namespace

void add_simulate_local(Verb simulate) {
  const auto options = std::make_shared<SimulateLocalOptions>();
  Verb verb = simulate.add_verb(
      "local", "play sites that train for many steps between exchanges over a slow link");
  verb.add_option("--method", options->method,
                  "data-parallel (every layer every step), diloco (all layers every so many "
                  "steps), streaming (fragment by fragment), or all")
      .one_of({"all", "data-parallel", "diloco", "streaming"})
      .show_default();
  verb.add_option("--layers", options->layers, "of the model").required();
  verb.add_option("--parameters", options->parameters, "of the model, as in 1e9").required();
  verb.add_option("--step-ms", options->step_ms, "what a step computes").required();
  verb.add_option("--every", options->every, "steps between two exchanges of the same layer")
      .show_default();
  verb.add_option("--fragments", options->fragments,
                  "of streaming: layer l is in fragment l mod this; three layers each when left "
                  "out");
  verb.add_option("--delay", options->delay,
                  "of streaming: steps that an exchange may last before it is waited for; 1 when "
                  "left out");
  Option bits = verb.add_option("--bits", options->bits, "of a value on the link");
  bits.show_default();
  verb.add_option("--codec", options->codec, "takes the bits of this codec, as in e3m0 or int8")
      .excludes(bits);
  verb.add_option("--sites", options->sites, "that exchange").show_default();
  verb.add_option("--latency-ms", options->latency_ms,
                  "by which an exchange ends later than its bytes have left")
      .range(0.0, 1e6)
      .show_default();
  verb.add_option("--from", options->from, "lowest rate of the link that is tried, in Gbit/s")
      .range(1e-9, 1e9)
      .show_default();
  verb.add_option("--to", options->to, "highest rate").range(1e-9, 1e9).show_default();
  verb.add_option("--points", options->points, "rates tried, evenly spaced in their logarithm")
      .range(2, 1000)
      .show_default();
  verb.add_option("--gbit", options->gbit, "say also what this rate gives").range(1e-9, 1e9);
  verb.add_option("--svg", options->svg, "draw utilisation against rate into this file");
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
