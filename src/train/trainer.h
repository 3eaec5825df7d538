#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/world.h"
#include "config/run_config.h"
#include "observe/terminal.h"
#include "recover/company.h"
#include "tensor/device.h"
#include "train/run_plan.h"

namespace heddle {

/// What the command line adds to a run file.
struct TrainOptions {
  int threads = 1;                         ///< of each rank
  Device device = {};                      ///< of this rank
  bool fresh = false;                      ///< forget the earlier run of the run folder
  bool accept_changes = false;             ///< resume with settings that make another run of it
  bool dry_run = false;                    ///< plan and print, train nothing
  std::filesystem::path work_folder = {};  ///< where text is tokenised to; empty: the run folder
  observe::Terminal terminal = {};
  std::string program_version = {};
  std::vector<std::pair<std::string, std::string>> settings;  ///< key and value, for the report
  std::string command = {};                                   ///< as typed, for the report
  /// Of the run file's sites those that are left, where some are lost; empty: all.
  std::vector<int> sites_left = {};
  std::string loss = {};  ///< what was lost since, for the user; empty where nothing was
  /// The clock that passes over blocks are timed by, in seconds; empty: that of the device. For
  /// tests of slow ranks.
  std::function<double()> block_clock = {};
};

struct TrainOutcome {
  std::int64_t step = 0, steps_total = 0;
  double loss = 0.0;
  int stopped_by = 0;                     ///< a signal's number; the run is not finished then
  bool is_saved = false;                  ///< there is a checkpoint of `step`
  std::filesystem::path checkpoint = {};  ///< the newest durable one; may be empty
  std::optional<RunPlan> plan = {};       ///< of a dry run, on the first rank
};

/// Trains as the run file says, from the newest whole checkpoint of the run folder or from the
/// start, until the last step or a signal. Every rank of `world` calls it; the first writes the run
/// folder and speaks to the user. Files of the run folder: docs/guide.md.
TrainOutcome train(const config::RunConfig& config, const TrainOptions& options, World& world);

/// The same with ranks that may be lost and come while it trains: it goes through the epochs of
/// `company` (docs/design/050-runs-that-outlive-ranks.md). Error(peer) where the run goes on
/// without this process, or no quorum of it is left. Not for dry runs.
TrainOutcome train(const config::RunConfig& config, const TrainOptions& options,
                   recover::Company& company);

}  // namespace heddle
