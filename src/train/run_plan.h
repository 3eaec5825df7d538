#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_value.h"
#include "config/run_config.h"
#include "engine/memory_plan.h"
#include "model/parallel_plan.h"
#include "planner/site_times.h"
#include "tensor/device.h"
#include "train/context_choices.h"

namespace heddle {

/// A run before it is trained: what `heddle train --dry-run` finds out.
struct RunPlan {
  /// Ranks that differ only on dp and tp do and hold the same; of those on cp the fullest is shown:
  /// one group for each pipeline rank of the first site, which others repeat.
  struct Group {
    int first_rank = 0, last_rank = 0;
    std::string stages;  ///< "stage 0: embedding to layer 3"
    StepPlan step;
    /// Where ranks divide experts: of a step in which one receives as many rows as it may.
    std::optional<MemoryPlan> most = {};
  };

  std::string model;  ///< in words
  std::int64_t parameters = 0;
  ParallelPlan parallel;
  std::int64_t steps = 0, tokens_per_step = 0;
  std::int64_t microbatches = 0;  ///< of each replica in a step
  std::int64_t sequences = 0, seq_len = 0;
  std::vector<ContextChoice> context;  ///< where cp has ranks
  std::vector<Group> groups;
  std::optional<double> step_seconds;       ///< where observe.system names a machine
  std::optional<planner::SiteTimes> sites;  ///< likewise, of a run that has several
  std::uint64_t limit_bytes = 0;            ///< what a rank may use; 0: not known
  std::optional<Error> refusal;             ///< of a run that does not fit
};

/// A step of one rank as the run file describes it, with what the loader holds meanwhile.
/// `left_out`: blocks that nothing goes through (Model::leave_out).
StepPlan plan_rank(const config::RunConfig& config, const ModelSpec& spec,
                   const ParallelPlan& parallel, int rank, Device device,
                   const std::vector<int>& left_out = {});

/// The one that needs most memory.
const RunPlan::Group& fullest(const std::vector<RunPlan::Group>& groups);

/// One group for each pipeline rank.
std::vector<RunPlan::Group> plan_groups(const config::RunConfig& config, const ModelSpec& spec,
                                        const ParallelPlan& parallel, Device device);

/// What `train --dry-run --json` prints: docs/guide.md, "For scripts".
JsonValue to_json(const RunPlan& plan);

}  // namespace heddle
