#include <cstdlib>
#include <iostream>
#include <numeric>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "cli/elastic.h"
#include "cli/ended.h"
#include "cli/own_arguments.h"
#include "cli/ranks.h"
#include "cli/temporary_folder.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "comm/record/record_communicator.h"
#include "config/load.h"
#include "train/model_setup.h"
#include "train/stop_signals.h"
#include "train/trainer.h"

namespace heddle::cli {
namespace {

struct TrainArguments {
  std::string run_file;
  std::vector<std::string> overrides;
  int ranks = 1;
  bool fresh = false, accept_changes = false, dry_run = false, json = false;
  bool elastic = false;
  ElasticOptions company = {};
};

/// The lines of the resolved run file as rows of the report.
std::vector<std::pair<std::string, std::string>> settings_of(const config::RunConfig& config) {
  std::vector<std::pair<std::string, std::string>> rows;
  std::istringstream lines(config::to_toml(config));
  std::string line, section;
  while (std::getline(lines, line)) {
    if (line.starts_with('[')) section = line.substr(1, line.find(']') - 1);
    const auto equals = line.find(" = ");
    if (equals != std::string::npos && !line.starts_with('#')) {
      rows.emplace_back(section + "." + line.substr(0, equals), line.substr(equals + 3));
    }
  }
  return rows;
}

WatchdogOptions watchdog_options(const config::RunConfig& config) {
  const std::chrono::duration<double> limit(config.run.timeout);
  return {.limit = limit,
          .joining = limit,
          .flight_folder = config.folder() / "flight",
          // A rank that hangs cannot be ended from within; what is written is whole or not there.
          .give_up = [](const std::string& reason) {
            log_line(LogLevel::error, reason);
            std::_Exit(
                status_of_rank_ended_at_once(reason).value_or(static_cast<int>(ErrorCode::peer)));
          }};
}

bool goes_on_without(const config::RunConfig& config) {
  return config.parallel.sites > 1 && config.outer.lost == config::OnLostSite::go_on;
}

void require_meeting_again(const config::RunConfig& config) {
  if (!goes_on_without(config) || can_meet_again()) return;
  throw Error(
      ErrorCode::usage,
      "outer.lost = \"go-on\" needs ranks that can meet again without others: processes that "
      "join over TCP, not threads of one or ranks of MPI",
      "start every rank by itself with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or "
      "with srun --mpi=none --kill-on-bad-exit=0; or set outer.lost = \"stop\"");
}

/// At the start, where the run may go on without some.
std::optional<SitesLeft> sites_left(const config::RunConfig& config, int ranks) {
  if (!goes_on_without(config)) return std::nullopt;
  std::vector<int> sites(static_cast<std::size_t>(config.parallel.sites));
  std::iota(sites.begin(), sites.end(), 0);
  return SitesLeft{.ranks_each = ranks / config.parallel.sites, .sites = std::move(sites)};
}

void end_if_stopped(const TrainOutcome& outcome, bool speaks) {
  if (outcome.stopped_by == 0) return;
  const int status = outcome.is_saved ? static_cast<int>(ErrorCode::stopped)
                                      : status_of_signal(outcome.stopped_by);
  if (speaks) {
    log_info("stopped by {} after step {} of {}; checkpoint {}; the same command continues",
             signal_name(outcome.stopped_by), outcome.step, outcome.steps_total,
             outcome.checkpoint.empty() ? "none" : outcome.checkpoint.string());
  }
  throw Ended{status};
}

void run(const TrainArguments& arguments) {
  if (!arguments.company.members.empty() && !arguments.company.joins) {
    throw Error(ErrorCode::usage, "--member says where a run is that goes on, and is for --join",
                "add --join, or leave --member out");
  }
  StopSignals signals(is_first_process());  // loading and finding each other may take long too
  const int ranks = rank_count(arguments.ranks);
  config::LoadedRun loaded;
  const bool is_elastic = arguments.elastic || arguments.company.joins;
  std::vector<std::string> overrides = arguments.overrides;
  if (is_elastic) overrides.emplace_back("recover.elastic=true");
  const auto load = [&] {
    loaded = load_run(arguments.run_file, overrides, ranks);
    if (arguments.dry_run) return;
    require_meeting_again(loaded.config);
    if (loaded.config.recover.elastic) require_elastic(arguments.company);
  };
  // Those who may come one by one have nobody to tell it to.
  arguments.dry_run || is_elastic ? load() : prepare_on_ranks(load);
  // A dry run leaves nothing behind, not even tokens.
  std::optional<TemporaryFolder> scratch;
  if (arguments.dry_run) scratch.emplace();
  const TrainOptions options{
      .threads = thread_count(static_cast<int>(loaded.config.run.threads), ranks),
      .fresh = arguments.fresh,
      .accept_changes = arguments.accept_changes,
      .dry_run = arguments.dry_run,
      .work_folder = scratch ? scratch->path() : std::filesystem::path(),
      .terminal = observe::stderr_terminal(std::getenv("NO_COLOR") != nullptr),
      .program_version = HEDDLE_VERSION,
      .settings = settings_of(loaded.config),
      .command = own_command()};
  TrainOutcome outcome;
  std::optional<SitesLeft> left = sites_left(loaded.config, ranks);
  const Device::Kind kind = device_kind(loaded.config);
  const auto body = [&](World& world, Device device) {
    TrainOptions own_options = options;
    own_options.device = device;
    if (left && !left->loss.empty()) {
      own_options.fresh = false;  // it goes on with what it has saved since
      own_options.sites_left = left->sites;
      own_options.loss = left->loss;
    }
    const auto own = train(loaded.config, own_options, world);
    if (world.rank() == 0 || !is_first_process()) outcome = own;
  };
  bool speaks = is_first_process();
  if (arguments.dry_run) {
    // The first of so many ranks, on which nothing travels: a mesh of any size is planned here.
    World world(std::make_unique<RecordCommunicator>(0, ranks));
    body(world, {kind, 0});
  } else if (loaded.config.recover.elastic) {
    allow_open_files(ranks);
    run_in_company(loaded.config, arguments.company, kind,
                   [&](recover::Company& company, Device device, const bool& is_first) {
                     TrainOptions own_options = options;
                     own_options.device = device;
                     outcome = train(loaded.config, own_options, company);
                     speaks = is_first;
                   });
  } else {
    run_on_devices(kind, ranks, body, watchdog_options(loaded.config), left ? &*left : nullptr);
  }
  signals.set_place(
      {.doing = RunPlace::Doing::done});  // a launcher may end us as others have ended
  if (outcome.plan) {
    if (arguments.json && speaks) std::cout << to_json(*outcome.plan).dump() << "\n";
    if (outcome.plan->refusal) throw *outcome.plan->refusal;
    return;
  }
  if (arguments.json && speaks) {
    std::cout << JsonValue{{"step", outcome.step},
                           {"steps", outcome.steps_total},
                           {"loss", outcome.loss},
                           {"checkpoint", outcome.checkpoint.string()},
                           {"finished", outcome.stopped_by == 0}}
                     .dump()
              << "\n";
  }
  end_if_stopped(outcome, speaks);
}

}  // namespace

void add_train(Verb app) {
  Verb verb = app.add_verb("train", "train as a run file says; the same command again resumes");
  auto arguments = std::make_shared<TrainArguments>();
  verb.add_option("RUN", arguments->run_file, "run file (TOML)").required();
  verb.add_option("--set", arguments->overrides, "section.key=value, over the file's (repeatable)")
      .one_at_a_time();
  verb.add_option("--ranks", arguments->ranks, "local ranks to start");
  verb.add_flag("--fresh", arguments->fresh, "start over: forget the run folder's checkpoints");
  verb.add_flag("--accept-changes", arguments->accept_changes,
                "resume although settings changed that make another run of it");
  verb.add_flag("--elastic", arguments->elastic,
                "go on when ranks are lost (recover.elastic = true)");
  verb.add_flag("--join", arguments->company.joins,
                "come to a run that goes on, as another rank; --ranks says how many it began with");
  verb.add_option("--member", arguments->company.members,
                  "HOST:PORT of a rank of that run (repeatable); else those its folder names")
      .one_at_a_time();
  verb.add_flag("--dry-run", arguments->dry_run, "check and plan, but train nothing");
  verb.add_flag("--json", arguments->json, "print one JSON object at the end");
  verb.footer("heddle train examples/01_tiny_cpu/run.toml --set train.steps=100");
  verb.callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
