#include <fmt/format.h>

#include <limits>
#include <memory>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json_value.h"
#include "cli/times_option.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "parallel/schedule/draw.h"
#include "parallel/schedule/make_schedule.h"
#include "simulator/play.h"

namespace heddle::cli {
namespace {

/// Stages times micro-batches that are simulated in about a gibibyte.
constexpr double kMostSimulatedPasses = 2e6;
constexpr int kColumns = 160;

constexpr int kNotGiven = std::numeric_limits<int>::min();

struct SimulateOptions {
  std::string schedule;
  PipeShape shape{.ranks = kNotGiven, .microbatches = kNotGiven};
  std::string times = "1,1,1,0", vocabulary_times = "0,0", routes;
  double skip = 0.0;
  std::filesystem::path svg;
  bool json = false;
};

void check_size(const PipeShape& shape) {
  const double passes = 1.0 * shape.ranks * shape.chunks * shape.microbatches;
  if (passes <= kMostSimulatedPasses) return;
  throw Error(ErrorCode::usage,
              fmt::format("{} stages x {} chunks x {} micro-batches are too many to simulate",
                          shape.ranks, shape.chunks, shape.microbatches),
              "the steady state shows with a few micro-batches per stage; give fewer");
}

observe::Timeline timeline_of(const SimulateOptions& options, const Schedule& schedule,
                              const Played& played) {
  observe::Timeline timeline{.description = fmt::format("{} on {} ranks with {} micro-batches",
                                                        options.schedule, options.shape.ranks,
                                                        options.shape.microbatches)};
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    for (const auto& [action, begin, end] : played.by_rank[static_cast<std::size_t>(rank)]) {
      if (auto bar = timeline_bar(schedule, rank, action, begin, end)) {
        timeline.bars.push_back(std::move(*bar));
      }
    }
  }
  return timeline;
}

void print_json(const SimulateOptions& options, const Schedule& schedule, const Played& played) {
  const JsonValue report = {{"schedule", options.schedule},
                            {"stages", options.shape.ranks},
                            {"microbatches", options.shape.microbatches},
                            {"chunks", schedule.stages() / schedule.ranks()},
                            {"vocabulary", schedule.vocabulary},
                            {"skip", options.skip},
                            {"makespan", played.makespan},
                            {"bubble_fraction", played.bubble_fraction},
                            {"bubble_over_ideal", played.bubble_over_ideal},
                            {"bubble_cost_rate", played.bubble_cost_rate},
                            {"peak_in_flight", peak_in_flight(schedule)}};
  fmt::print("{}\n", report.dump(2));
}

void print_table(const SimulateOptions& options, const Schedule& schedule, const Played& played) {
  const int chunks = schedule.stages() / schedule.ranks();
  fmt::print("{}: {} ranks, {} micro-batches, {} {} per rank\n\n", options.schedule,
             options.shape.ranks, options.shape.microbatches, chunks,
             chunks == 1 ? "stage" : "stages");
  fmt::print("makespan           {:.6g}\n", played.makespan);
  fmt::print("bubble_fraction    {:<8.4f} idle over makespan\n", played.bubble_fraction);
  fmt::print("bubble_over_ideal  {:<8.4f} idle over computing\n", played.bubble_over_ideal);
  fmt::print("bubble_cost_rate   {:<8.4f} of the longest a rank takes from its first to its last\n",
             played.bubble_cost_rate);
  fmt::print("peak_in_flight     {} by rank\n", fmt::join(peak_in_flight(schedule), " "));
  const std::string drawing =
      observe::timeline_text(timeline_of(options, schedule, played), kColumns);
  if (!drawing.empty()) fmt::print("\n{}", drawing);
}

void run(const SimulateOptions& options) {
  require_option(!options.schedule.empty(), "simulate", "--schedule");
  require_option(options.shape.ranks != kNotGiven, "simulate", "--stages");
  require_option(options.shape.microbatches != kNotGiven, "simulate", "--microbatches");
  const auto t = parse_times("--times", options.times, "F,B,W,C");
  const StageTimes whole_rank{.f = t[0], .b = t[1], .w = t[2], .hop = t[3]};
  const auto v = parse_times("--vocabulary-times", options.vocabulary_times, "S,T");
  check_size(options.shape);
  PipeShape shape = options.shape;
  if (options.skip > 0.0 || !options.routes.empty()) {
    shape.routes = make_routes(shape.ranks, options.skip, options.routes);
  }
  const Schedule schedule = lower(make_schedule(pipeline_named(options.schedule), shape));
  const Played played = play(schedule, even_times(schedule, whole_rank), {.s = v[0], .t = v[1]});
  if (!options.svg.empty()) {
    write_file_atomically(real_file_system(), options.svg,
                          observe::render_timeline(timeline_of(options, schedule, played)));
  }
  if (options.json) {
    print_json(options, schedule, played);
  } else {
    print_table(options, schedule, played);
  }
}

}  // namespace

void add_simulate(Verb app) {
  const auto options = std::make_shared<SimulateOptions>();
  Verb verb = app.add_verb(
      "simulate", "play a pipeline schedule, or what the verbs below name, without running it");
  const auto names = schedule_names();
  verb.add_option("--schedule", options->schedule,
                  fmt::format("one of {}", fmt::join(names, ", ")));
  verb.add_option("--stages", options->shape.ranks, "pipeline ranks");
  verb.add_option("--microbatches", options->shape.microbatches, "micro-batches per step");
  verb.add_option("--chunks", options->shape.chunks, "stages per rank").show_default();
  verb.add_option("--times", options->times,
                  "F,B,W,C: forward, backward and weight gradients of one micro-batch on a rank's "
                  "whole part of the model, and one hop")
      .show_default();
  verb.add_option("--vocabulary", options->shape.vocabulary,
                  "split the vocabulary over the ranks by algorithm 1 or 2; 0: do not")
      .show_default();
  verb.add_option("--vocabulary-times", options->vocabulary_times,
                  "S,T: a rank's two passes over its rows, for one micro-batch")
      .show_default();
  verb.add_option("--skip", options->skip,
                  "of schedule routes: share of the stages that each micro-batch leaves out")
      .range(0.0, 0.75)
      .show_default();
  verb.add_option("--routes", options->routes,
                  "of schedule routes: swap, or ranks in order, as \"0-1-3 0-2-3\", that "
                  "micro-batches take in turn");
  verb.add_option("--svg", options->svg, "draw the timeline into this file");
  verb.add_flag("--json", options->json, "print one JSON object");
  add_simulate_context(verb);
  add_simulate_decode(verb);
  add_simulate_experts(verb);
  add_simulate_local(verb);
  add_simulate_network(verb);
  add_simulate_step(verb);
  verb.callback([options, verb] {
    if (!verb.has_chosen_verb()) run(*options);
  });
}

}  // namespace heddle::cli
