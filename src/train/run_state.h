#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/own_boxes.h"
#include "checkpoint/state_source.h"
#include "engine/model.h"
#include "optim/optimizer.h"

namespace heddle {

/// Where a run stands between two steps: with the weights, the optimizer's states and the run file,
/// all that the rest of the run depends on.
struct RunState {
  std::int64_t step = 0;  ///< steps done; also the data cursor
  std::int64_t tokens = 0;
  std::int64_t skipped_updates = 0;  ///< of this rank's site
  double seconds = 0.0;              ///< of training so far
  std::optional<double> eval_loss = {};
  Optimizer::Numbers optimizer = {};  ///< what it keeps beside its states
};

/// Where the run stood that wrote it, of this site.
RunState run_state_of(const Manifest& manifest, int site = 0);

/// What a store keeps from step to step, by kind: the weights and the optimizer's states. Where
/// there are several sites, the outer weights are the weights, and what each has of its own lies
/// under kinds of the site (own_kind).
std::vector<StateKind> states_of(const ParamStore& store);
/// "site1.exp_avg".
std::string own_kind(int site, const std::string& kind);

/// What becomes of states of the optimizer that a source does not have.
enum class MissingStates : std::uint8_t {
  are_refused,
  start_at_zero,     ///< those that it has of no parameter
  all_start_at_zero  ///< it is another optimizer's, and what it has is left behind
};

/// Puts this rank's weights and states back from `source`, whatever the mesh that saved them. A
/// state of which every rank has its own (OptimizerState::Lies::by_rank) goes on, when their number
/// is another, with its sum over ranks: rank r of N takes those of all q with q mod N = r. Where it
/// is not there it starts at zero. The first rank says so.
/// Error(data) when something is missing, has another shape, or is not the model's.
void restore_state(const StateSource& source, Model& model, MissingStates missing, Stream& stream);

}  // namespace heddle
