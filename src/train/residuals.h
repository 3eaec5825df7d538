#pragma once

#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "checkpoint/own_boxes.h"
#include "checkpoint/state_source.h"
#include "config/run_config.h"
#include "engine/model.h"
#include "recover/peer_source.h"
#include "train/run_state.h"

namespace heddle {

/// What encoding lost of gradients (ParamStore::Residuals) as a checkpoint keeps it: "residual.R"
/// of rank R of those that sum them, "residual_of_sum" of what they sum to.
/// Where sites train apart, a prefix says of which (own_prefix).
std::vector<StateKind> residual_states(const ParamStore& store, const std::string& prefix = "");

/// By which codec and on how many ranks they were made, for the checkpoint; null where the plan
/// keeps none.
Json describe_residuals(const ParallelPlan& plan);

/// Reads them back. On as many ranks as before each has its own to the bit; on N others, rank i
/// takes the sum of those of all ranks q with q mod N = i, so that their sum stays. Those of
/// another codec are left behind. `then` is what describe_residuals() said. Returns a line that
/// says what was done; "" where there is nothing to say.
std::string restore_residuals(const StateSource& source, const Json& then, Model& model,
                              Stream& stream, const std::string& prefix = "");

// ---- While ranks come and go (docs/design/050-runs-that-outlive-ranks.md) -----------------------

/// What encodings have lost on this rank and not yet sent, as the last decided step has left it:
/// residuals of gradients, and errors of 1-bit Adam. No other rank has them.
std::vector<recover::HeldBox> unsent_boxes(const ParamStore& store);
/// The same of others that a rank goes on with. `taken`: ranks of those that summed gradients
/// before, whose own it takes.
std::vector<recover::HeldBox> wanted_unsent(const ParamStore& store, const std::vector<int>& taken);
/// Reads what was wanted so: each piece is the sum of those of the ranks that are taken.
void restore_unsent(const StateSource& source, ParamStore& store, const std::vector<int>& taken,
                    Stream& stream);
/// Optimizer's states among them, by name.
std::vector<std::string> unsent_states(const ParamStore& store);
/// Whether a run may have any, and what a lost rank of such a mesh takes with it, for the user; ""
/// for nothing.
bool keeps_unsent(const config::RunConfig& config);
std::string unsent_text(const config::RunConfig& config, const RunState& state,
                        const MeshShape& mesh);

}  // namespace heddle
