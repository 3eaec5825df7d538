#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "recover/mesh_for.h"
#include "train/run_state.h"

namespace heddle {

/// What encodings have lost and not yet sent (unsent_boxes), of the ranks that began an epoch.
struct KeptErrors {
  std::int64_t epoch = 0;
  int ranks = 0;  ///< that sum gradients
};

/// What a member of a run tells the others when an epoch begins
/// (docs/design/050-runs-that-outlive-ranks.md).
struct MemberNews {
  /// Where it stands; nothing: it is new, or was lost before it had anything.
  std::optional<RunState> state = {};
  std::vector<double> totals = {};  ///< of the last step that it knows to be decided
  std::optional<recover::FormerPlace> place = {};
  /// Blocks by stage (parallel.cut), where the run has cut them again; empty: as the run file says.
  std::string cut = {};
  /// Its own; of two epochs where one has not begun on all ranks, newest last.
  std::vector<KeptErrors> errors = {};
  std::int64_t checkpoint = -1;  ///< the step of the newest one that it knows of
  bool lost_save = false;        ///< one was under way
  std::string lock = {};         ///< of the run folder, as it was seen last (FolderLock::text)
};

/// What all members told, by their rank.
class EpochMeeting {
 public:
  /// All ranks of `world` make theirs at the same time.
  EpochMeeting(World& world, const MemberNews& own);

  const std::vector<MemberNews>& members() const { return members_; }
  /// Whether some member has state to go on with; otherwise the run is yet to start.
  bool has_state() const { return teller_ >= 0; }
  /// The last step that one of them has decided: behind it they go on.
  std::int64_t step() const { return teller().state->step; }
  /// Of the one that counts: it has decided that step, and knows most of it.
  const MemberNews& teller() const { return members_[static_cast<std::size_t>(teller_)]; }
  bool has_newest(std::size_t rank) const {
    return members_[rank].state && members_[rank].state->step == step();
  }
  std::vector<std::optional<recover::FormerPlace>> places() const;
  /// Those that members go on with: where one has not got its own of the newest epoch, nobody has
  /// given up those of the epoch before. Nothing where no member has any.
  std::optional<KeptErrors> errors() const;
  std::int64_t checkpoint() const;
  bool lost_save() const;

 private:
  /// Whether its state is, or becomes by its update, that of the step that counts.
  bool has_state_of_step(std::size_t rank) const {
    return has_state() && members_[rank].state && members_[rank].state->step + 1 >= step();
  }

  std::vector<MemberNews> members_;
  int teller_ = -1;
};

}  // namespace heddle
