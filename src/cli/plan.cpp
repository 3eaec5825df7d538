#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json_value.h"
#include "cli/job_options.h"
#include "cli/links_option.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "config/load.h"
#include "observe/progress.h"
#include "planner/plan_page.h"

namespace heddle::cli {
namespace {

struct PlanOptions {
  JobOptions job;
  std::filesystem::path system, out, report;
  int gpus = 0, threads = 0;
  double margin = 0.1;
  std::vector<std::string> compress;
  std::string links;
  bool json = false;
};

/// "gradients=int8:128", "preset=zhybrid": keys of the section `compress` of a run file.
Compression parse_compression(const std::vector<std::string>& settings) {
  std::vector<std::string> keys;
  for (const std::string& setting : settings) keys.push_back("compress." + setting);
  const Compression compress = config::parse_settings(keys).compress;
  for (const auto& [key, message] : problems_of(compress))
    throw Error(ErrorCode::usage, message, "");
  return compress;
}

/// What is compared there is not given too.
std::optional<planner::GivenLinks> given_links(const PlanOptions& options) {
  if (options.links.empty()) return std::nullopt;
  if (!options.compress.empty()) {
    throw Error(ErrorCode::usage, "--links tries codecs itself, and --compress gives one",
                "leave one of the two out");
  }
  if (options.job.optimizer == "onebit-adam") {
    throw Error(ErrorCode::usage, "--links compares onebit-adam with plain steps of adamw",
                "leave --optimizer out");
  }
  return parse_links(options.links);
}

/// Below this verb is another that has options of its own, so these cannot be required by the
/// parser.
void run(const PlanOptions& options) {
  require_option(!options.job.model.empty(), "plan", "--model");
  require_option(!options.system.empty(), "plan", "--system");
  require_option(options.gpus > 0, "plan", "--gpus");
  require_option(options.job.batch_tokens > 0, "plan", "--batch-tokens");
  const auto links = given_links(options);
  const planner::Machine machine = planner::read_machine(options.system);
  planner::Job job = make_job(options.job);
  job.compress = parse_compression(options.compress);
  planner::SearchOptions search{.gpus = options.gpus, .margin = options.margin};
  search.threads =
      options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  std::unique_ptr<observe::Progress> progress;
  std::once_flag starts;
  search.progress = [&](std::uint64_t, std::uint64_t all) {
    std::call_once(starts, [&] {
      progress = std::make_unique<observe::Progress>(
          observe::ProgressOptions{.label = "searching",
                                   .total = all,
                                   .unit = "parts",
                                   .terminal = observe::stderr_terminal(true)});
    });
    progress->add(1);
  };
  const planner::PlanReport report =
      planner::make_report(options.job.model, machine, job, search, links);
  progress.reset();
  if (!options.out.empty()) {
    write_file_atomically(real_file_system(), options.out, planner::plan_toml(report));
  }
  if (!options.report.empty()) {
    write_file_atomically(real_file_system(), options.report, planner::plan_page(report));
  }
  if (options.json) {
    fmt::print("{}\n", planner::report_json(report).dump(2));
  } else {
    fmt::print("{}", planner::report_text(report));
  }
}

}  // namespace

void add_plan(Verb app) {
  const auto options = std::make_shared<PlanOptions>();
  Verb verb = app.add_verb("plan", "choose a parallel layout for a model on a machine");
  add_job_options(verb, options->job);
  verb.add_option("--system", options->system, "machine file, as in configs/systems");
  verb.add_option("--gpus", options->gpus, "number of devices").positive();
  verb.add_option("--margin", options->margin, "share of device memory that stays free")
      .range(0.0, 0.9)
      .show_default();
  verb.add_option("--compress", options->compress,
                  "a key of the section compress, as gradients=int8:128 or preset=zhybrid; may be "
                  "given several times");
  verb.add_option(
      "--links", options->links,
      "links between servers, as rate=100mbit,delay=50ms or a file of heddle bench link "
      "--json: compare what to send less of over them");
  verb.add_option("--threads", options->threads, "of the search; all when absent").positive();
  verb.add_option("--out", options->out, "write the best plan as sections of a run file");
  verb.add_option("--report", options->report,
                  "write all of it as one HTML page that needs no network");
  verb.add_flag("--json", options->json, "print one JSON object");
  add_plan_evaluate(verb);
  add_plan_experts(verb);
  add_plan_routes(verb);
  add_plan_stages(verb);
  verb.callback([options, verb] {
    if (!verb.has_chosen_verb()) run(*options);
  });
}

}  // namespace heddle::cli
