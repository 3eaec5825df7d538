#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "recover/mesh_for.h"
#include "train/run_state.h"

namespace heddle {

/// What a member of a run tells the others when an epoch begins
/// (docs/design/050-runs-that-outlive-ranks.md).
struct MemberNews {
  /// Where it stands; nothing: it is new, or was lost before it had anything.
  std::optional<RunState> state = {};
  std::vector<double> totals = {};  ///< of the last step that it knows to be decided
  std::optional<recover::FormerPlace> place = {};
  /// Blocks by stage (parallel.cut), where the run has cut them again; empty: as the run file says.
  std::string cut = {};
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
  std::int64_t checkpoint() const;
  bool lost_save() const;

 private:
  std::vector<MemberNews> members_;
  int teller_ = -1;
};

}  // namespace heddle
