#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "checkpoint/hf_folder.h"
#include "checkpoint/reader.h"
#include "comm/world.h"
#include "engine/model.h"
#include "train/run_identity.h"

namespace heddle {

/// Where a run stands between two steps: with the weights, the moments and the run file, all that
/// the rest of the run depends on.
struct RunState {
  std::int64_t step = 0;  ///< steps done; also the data cursor
  std::int64_t tokens = 0;
  std::int64_t skipped_updates = 0;
  double seconds = 0.0;  ///< of training so far
  std::optional<double> eval_loss = {};
};

/// Writes a checkpoint of the run and returns its folder once it is durable. With DType::bf16 the
/// weights are rounded in the Hugging Face files, and the exact ones are kept with the optimizer's.
/// Nothing in it tells the device and the precision of the computations; `identity` goes into the
/// manifest, for who resumes.
/// All ranks call it; the first collects and writes, and all return when it is there.
std::filesystem::path save_run(const std::filesystem::path& checkpoints, const RunState& state,
                               const RunIdentity& identity, const Model& model, DType weights_dtype,
                               const std::vector<TextFile>& companions, World& world,
                               Memory& memory, Stream& stream);

/// Where the run stood that wrote it.
RunState run_state_of(const Manifest& manifest);

/// What a store keeps from step to step, by kind: the weights and the optimizer's states.
struct StateKind {
  std::string kind;
  std::vector<ParamPiece> pieces;
};
std::vector<StateKind> states_of(const ParamStore& store);

/// Puts this rank's weights and states back from `source`, whatever the mesh that saved them.
/// Error(data) when something is missing, has another shape, or is not the model's.
void restore_state(const StateSource& source, Model& model, Stream& stream);

}  // namespace heddle
