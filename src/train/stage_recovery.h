#pragma once

#include <vector>

#include "config/run_config.h"
#include "engine/model.h"
#include "optim/optimizer.h"
#include "recover/checkfree.h"
#include "train/run_state.h"

namespace heddle {

// A run whose lost stages are made of others (recover.stages): what it needs, and what the blocks
// that were made so are trained with.

/// What recover.stages asks for; nothing where ranks may not be lost.
recover::CheckFree checkfree_of(const config::RunConfig& config);

/// Whether the others go on without a lost stage's blocks while nobody takes its place.
bool skips_stages(const config::RunConfig& config);

/// Error(usage) that names what keeps stages from being made of each other.
void check_stage_recovery(const config::RunConfig& config, const ModelSpec& spec);

/// Which blocks the ranks of a pipeline have.
recover::StageBlocks stage_blocks(const ParallelPlan& plan, const ModelSpec& spec);

/// For an optimizer of the model's store: blocks that were made anew (RunState::made_anew) learn
/// faster, with moments that have seen fewer updates, and those that are left out rest. Empty where
/// there are none.
std::vector<StepArgs::OfUnit> unit_rates(const Model& model, const RunState& state);

}  // namespace heddle
