#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/json_value.h"
#include "cli/measured_speeds.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "model/given_cut.h"
#include "planner/recut.h"
#include "train/model_setup.h"
#include "train/run_tokenizer.h"

namespace heddle::cli {
namespace {

struct PlanStagesOptions {
  std::filesystem::path run_file, speeds;
  std::vector<std::string> overrides;
  bool json = false;
};

JsonValue json_of(const planner::Recut& cut, const std::vector<double>& block_seconds) {
  return {{"block_seconds", block_seconds},
          {"now", {{"parallel.cut", text_of_cut(cut.now)}, {"seconds", cut.seconds_now}}},
          {"better", {{"parallel.cut", text_of_cut(cut.better)}, {"seconds", cut.seconds_better}}},
          {"gain", cut.gain()}};
}

void print_table(const planner::Recut& cut, const std::vector<double>& block_seconds,
                 const std::vector<int>& rank_of_stage) {
  fmt::print("{:>5}  {:>4}  {:>12}  {:>10}  {:>13}\n", "stage", "rank", "ms a block", "blocks now",
             "blocks better");
  for (std::size_t stage = 0; stage < cut.now.size(); ++stage) {
    const int rank = rank_of_stage[stage];
    fmt::print("{:>5}  {:>4}  {:>12.4g}  {:>10}  {:>13}\n", stage, rank,
               1e3 * block_seconds[static_cast<std::size_t>(rank)], cut.now[stage],
               cut.better[stage]);
  }
  if (cut.better == cut.now) {
    fmt::print("\nno other cut is faster: {:.4g} s a step for passes and their waiting\n",
               cut.seconds_now);
    return;
  }
  fmt::print(
      "\npasses and their waiting take {:.4g} s a step in place of {:.4g} s, {:.2f} times as fast, "
      "with\n\n[parallel]\ncut = \"{}\"\n",
      cut.seconds_better, cut.seconds_now, cut.gain(), text_of_cut(cut.better));
}

void run(const PlanStagesOptions& options) {
  const MeasuredSpeeds speeds = read_speeds(options.speeds);
  std::vector<double> block_seconds = speeds.by_stage();
  const config::RunConfig config =
      load_run(options.run_file, options.overrides, speeds.ranks).config;
  if (std::ssize(block_seconds) > config.parallel.pp) {
    throw Error(ErrorCode::usage,
                fmt::format("{} is of a pipeline of {} ranks, and the run file's has {}",
                            options.speeds.string(), block_seconds.size(), config.parallel.pp),
                "give the run file of that run");
  }
  block_seconds.resize(static_cast<std::size_t>(config.parallel.pp), 0.0);
  const ModelSpec spec = configured_model(config, configured_tokenizer(config));
  const ParallelPlan plan = configured_plan(config, spec, speeds.ranks);
  const planner::Recut cut = planner::recut_stages(
      spec, plan, config.data.seq_len, static_cast<int>(config.accumulation()), block_seconds);
  if (options.json) {
    fmt::print("{}\n", json_of(cut, block_seconds).dump(2));
  } else {
    print_table(cut, block_seconds, plan.rank_of_stage);
  }
}

}  // namespace

void add_plan_stages(Verb plan) {
  const auto options = std::make_shared<PlanStagesOptions>();
  Verb verb = plan.add_verb(
      "stages", "cut a run's pipeline by the speeds of its ranks that an earlier run has measured");
  verb.add_option("RUN", options->run_file, "run file (TOML)").required();
  verb.add_option("--speeds", options->speeds, "report.json of that run, or its folder").required();
  verb.add_option("--set", options->overrides, "section.key=value, over the file's (repeatable)");
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
