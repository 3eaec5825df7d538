#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "planner/predicted_step.h"
#include "train/data_setup.h"
#include "train/run_identity.h"
#include "train/run_state.h"
#include "train/run_tokenizer.h"
#include "train/taken_folder.h"
#include "train/trainer.h"

namespace heddle {

/// What a run is whoever takes part in it: it stays the same from start to end. Made without asking
/// other ranks.
struct RunBasis {
  RunBasis(const config::RunConfig& config, const TrainOptions& options);

  const config::RunConfig& config;
  const TrainOptions& options;
  const std::filesystem::path folder;
  const RunTokenizer tokenizer;
  const ModelSpec spec;
  const RunIdentity identity;   ///< of all but the data
  std::optional<RunData> data;  ///< once there are ranks to open it with
  FolderLock lock;
};

/// Those who compute together. They are the same in both worlds.
struct RunRanks {
  World& world;        ///< the first keeps the run folder and speaks to the user
  World& placed;       ///< in the order of the mesh
  bool go_on = false;  ///< with a run that the first of them has been in: others have come to it
  /// The numbers of sites in the order of the mesh; empty: as TrainOptions::sites_left.
  std::vector<int> sites = {};
};

/// Of a pipeline that goes on without some of its stages (recover.stages = "skip").
struct KeptStages {
  std::vector<int> cut = {};       ///< blocks by stage; empty: as the run file says
  std::vector<int> left_out = {};  ///< blocks that nothing will go through
};

/// What a run is before anything of it is computed: mesh, data, predictions, for the ranks that
/// there are. Making it checks all that can be checked, and takes the run folder; all of them make
/// theirs at the same time. The members are in the order in which they are made.
struct RunSetup {
  /// `config`: the basis's, with what of it depends on the number of ranks.
  RunSetup(const config::RunConfig& config, RunBasis& basis, const RunRanks& ranks,
           const KeptStages& kept = {});

  std::filesystem::path checkpoints() const { return folder / "checkpoints"; }
  const Keepers& keepers() const { return kept_by; }
  /// Silent on all ranks but those that speak.
  observe::Terminal terminal() const;
  Schedule step_schedule() const;
  /// Of all sites that are there.
  std::int64_t tokens_per_step() const;

  const config::RunConfig& config;
  const TrainOptions& options;
  World& world;
  World& placed;
  const std::filesystem::path& folder;
  const RunTokenizer& tokenizer;
  const ModelSpec& spec;
  RunIdentity identity;                ///< complete once the data are open
  const std::vector<int> sites_there;  ///< their numbers, where not all may be
  const ParallelPlan plan;
  const Keepers kept_by;
  const bool is_first;  ///< of those who keep the folder: writes there and speaks to the user
  const SiteNumbers sites;
  const RunData& data;
  std::optional<double> predicted_seconds;  ///< of a step, where the run file names a machine
  std::optional<planner::SiteTimes> predicted_sites;  ///< likewise, where there are sites
  /// By block that the model repeats, likewise.
  std::vector<planner::AttentionByRank> predicted_attention;
  StepPlan step_plan;  ///< of this rank; a dry run has none
};

/// Whether this rank has the memory for its part of another plan of the same run.
bool fits(const RunSetup& setup, const ParallelPlan& plan);

/// Plans all ranks, prints that, and says whether they fit.
TrainOutcome dry_run(const RunSetup& setup);

/// The table that a run begins with, on the first rank.
void print_plan(const RunSetup& setup, const std::vector<RunPlan::Group>& groups);

}  // namespace heddle
