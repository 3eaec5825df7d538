#pragma once

#include <filesystem>
#include <optional>

#include "observe/metrics.h"
#include "train/run_state.h"
#include "train/session.h"

namespace heddle {

/// Writes a run's checkpoints and knows which are there.
class Saving {
 public:
  Saving(const RunSetup& setup, Session& session) : setup_(setup), session_(session) {}

  /// The checkpoint that the run was resumed from.
  void resumed_from(const std::filesystem::path& folder, std::int64_t step);
  /// All ranks call it. Returns when the checkpoint is durable.
  observe::CheckpointDurable save(const RunState& state);

  /// The newest durable checkpoint and its step; empty and -1 when there is none.
  const std::filesystem::path& newest() const { return newest_; }
  std::int64_t newest_step() const { return newest_step_; }
  /// Whether this process has saved the step.
  bool has_saved(std::int64_t step) const { return saved_step_ == step; }

 private:
  const RunSetup& setup_;
  Session& session_;
  std::filesystem::path newest_;
  std::int64_t saved_step_ = -1, newest_step_ = -1;
};

}  // namespace heddle
