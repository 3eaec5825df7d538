#pragma once

#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "checkpoint/background_save.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/retention.h"
#include "engine/model.h"
#include "observe/metrics.h"
#include "train/keepers.h"
#include "train/run_identity.h"
#include "train/run_state.h"

namespace heddle {

/// Writes a run's checkpoints while the run goes on, and knows which are there. Every rank writes
/// its own boxes in the background; ranks find at boundaries of steps that all have, and the first
/// of those who keep a folder together then commits, in the background too
/// (docs/design/021-checkpoints-by-slices.md). An error of any rank is thrown by all, at such a
/// boundary; the checkpoint before stays, in all folders.
class Saving {
 public:
  struct Options {
    std::filesystem::path root;  ///< the folder of the run's checkpoints, the same of all keepers
    RunIdentity identity;        ///< goes into the manifest, for who resumes
    std::vector<TextFile> companions = {};
    /// With DType::bf16 the weights are rounded in the Hugging Face files, and the exact ones are
    /// kept beside the optimizer's. Nothing in a checkpoint tells what the run computes in.
    DType weights = DType::f32;
    RetentionPolicy retention = {};
    SiteNumbers sites = {};
    FileSystem* files = &real_file_system();
  };
  /// All ranks make theirs at the same time. `model` outlives it.
  Saving(Options options, const Model& model, Keepers keepers);

  /// The checkpoint that the run was resumed from.
  void resumed_from(const std::filesystem::path& folder, std::int64_t step);

  // All ranks call these at the same point, between steps.

  /// Begins to write a checkpoint of what the model is now. None is under way.
  void begin(const RunState& state);
  /// Looks how far the one under way is. What has become durable, when it has.
  std::optional<observe::CheckpointDurable> poll() { return advance(false); }
  /// Waits for the one under way, if one is.
  std::optional<observe::CheckpointDurable> finish() { return advance(true); }

  /// Before weights and optimizer states change; may wait for the disk. Of this rank alone.
  void before_update();

  /// The newest durable checkpoint and its step; empty and -1 when there is none.
  const std::filesystem::path& newest() const { return newest_; }
  std::int64_t newest_step() const { return newest_step_; }
  bool is_under_way() const { return under_way_.has_value(); }
  /// Whether this process has saved the step, or is about to.
  bool has_begun(std::int64_t step) const { return begun_step_ == step; }
  /// The most that a save held on this rank beside what was there.
  std::size_t peak_bytes() const { return peak_bytes_; }

 private:
  struct UnderWay {
    RunState state;
    std::vector<std::int64_t> skipped_by_site;
    std::filesystem::path staged;
    Stopwatch watch;
    std::unique_ptr<BackgroundSave> boxes;
    bool is_committing = false;  ///< all ranks' boxes are durable
    std::shared_future<Result<observe::CheckpointDurable>> commit;  ///< of a first keeper
  };

  std::shared_ptr<const CheckpointLayout> agree_on_layout();
  std::vector<StateKind> states() const;
  std::vector<std::int64_t> skipped_by_site(const RunState& state) const;
  std::optional<observe::CheckpointDurable> advance(bool waits);
  int own_progress() const;
  Result<observe::CheckpointDurable> commit(const UnderWay& save) const;
  /// Throws the error of the first rank that has one, on all.
  [[noreturn]] void give_up();

  const Options options_;
  const Model& model_;
  const Keepers keepers_;
  const std::shared_ptr<const CheckpointLayout> layout_;
  std::filesystem::path newest_;
  std::int64_t begun_step_ = -1, newest_step_ = -1;
  std::size_t peak_bytes_ = 0;
  std::optional<UnderWay> under_way_;
};

}  // namespace heddle
