#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"
#include "base/json_value.h"
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

/// What report.json of a run says of its ranks.
struct MeasuredSpeeds {
  int ranks = 0;
  std::vector<double> by_stage = {};  ///< seconds a block, of the slowest; by pipeline rank
};

constexpr std::size_t kMostStages = 1 << 20;

MeasuredSpeeds read_speeds(const std::filesystem::path& file) {
  const Json report = parse_json(read_text_file(file), file.string());
  MeasuredSpeeds measured;
  try {
    const Json& starts = report.at("starts");
    if (!starts.empty()) measured.ranks = starts.back().at("ranks");
    for (const Json& row : report.at("speeds")) {
      const auto stage = row.at("stage").get<std::size_t>();
      if (stage >= kMostStages) fail(ErrorCode::data, "{} names stage {}", file.string(), stage);
      measured.by_stage.resize(std::max(measured.by_stage.size(), stage + 1), 0.0);
      measured.by_stage[stage] =
          std::max(measured.by_stage[stage], row.at("block_seconds").get<double>());
    }
  } catch (const Json::exception&) {
    throw Error(ErrorCode::data, fmt::format("{} is no report of a run", file.string()),
                "give the report.json of a run that has ended, or its folder");
  }
  if (measured.ranks < 1 || measured.by_stage.empty()) {
    throw Error(ErrorCode::usage, fmt::format("{} has no speeds of ranks", file.string()),
                "they are measured in runs of several ranks on CPU");
  }
  return measured;
}

JsonValue json_of(const planner::Recut& cut, const MeasuredSpeeds& speeds) {
  return {{"block_seconds", speeds.by_stage},
          {"now", {{"parallel.cut", text_of_cut(cut.now)}, {"seconds", cut.seconds_now}}},
          {"better", {{"parallel.cut", text_of_cut(cut.better)}, {"seconds", cut.seconds_better}}},
          {"gain", cut.gain()}};
}

void print_table(const planner::Recut& cut, const MeasuredSpeeds& speeds,
                 const std::vector<int>& rank_of_stage) {
  fmt::print("{:>5}  {:>4}  {:>12}  {:>10}  {:>13}\n", "stage", "rank", "ms a block", "blocks now",
             "blocks better");
  for (std::size_t stage = 0; stage < cut.now.size(); ++stage) {
    const int rank = rank_of_stage[stage];
    fmt::print("{:>5}  {:>4}  {:>12.4g}  {:>10}  {:>13}\n", stage, rank,
               1e3 * speeds.by_stage[static_cast<std::size_t>(rank)], cut.now[stage],
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
  const std::filesystem::path file = std::filesystem::is_directory(options.speeds)
                                         ? options.speeds / "report.json"
                                         : options.speeds;
  MeasuredSpeeds speeds = read_speeds(file);
  const config::RunConfig config =
      load_run(options.run_file, options.overrides, speeds.ranks).config;
  if (std::ssize(speeds.by_stage) > config.parallel.pp) {
    throw Error(ErrorCode::usage,
                fmt::format("{} is of a pipeline of {} ranks, and the run file's has {}",
                            file.string(), speeds.by_stage.size(), config.parallel.pp),
                "give the run file of that run");
  }
  speeds.by_stage.resize(static_cast<std::size_t>(config.parallel.pp), 0.0);
  const ModelSpec spec = configured_model(config, configured_tokenizer(config));
  const ParallelPlan plan = configured_plan(config, spec, speeds.ranks);
  const planner::Recut cut = planner::recut_stages(
      spec, plan, config.data.seq_len, static_cast<int>(config.accumulation()), speeds.by_stage);
  if (options.json) {
    fmt::print("{}\n", json_of(cut, speeds).dump(2));
  } else {
    print_table(cut, speeds, plan.rank_of_stage);
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
