#pragma once

#include "recover/choose_sources.h"
#include "train/epoch_meeting.h"

namespace heddle {

/// The pieces of a run's state as the ranks of the last epoch had them, and who of these is lost.
/// Ranks are those of the mesh that it had.
struct LostState {
  std::vector<recover::StatePiece> pieces = {};
  recover::Losses losses = {};

  bool is_anything_lost() const;
};

/// What follows from where members stand; the same on all of them. Some member has state.
LostState lost_state(const EpochMeeting& meeting, recover::CheckFree checkfree);

}  // namespace heddle
