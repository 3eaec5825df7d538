#pragma once

#include <algorithm>

#include "config/run_config.h"
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

/// What becomes of the state of a run from one epoch to the next.
struct Recovery {
  recover::Restoration from = {};
  /// What no rank has, whoever is asked: it was left out.
  std::vector<recover::LostBlocks> left_out = {};
  std::vector<recover::LostBlocks> lost = {};  ///< what is to be had of neighbours beside that
  std::vector<int> leaves_out = {};   ///< blocks of both that are left out; others are trained
  std::vector<int> whole_sites = {};  ///< that have lost nothing, by their numbers
  bool has_unsent = false;            ///< encodings may have lost what ranks have not sent yet

  bool is_left_out(const recover::LostBlocks& blocks) const {
    return std::ranges::binary_search(leaves_out, blocks.begin);
  }
};

/// Whether nothing goes with a single rank that is lost or leaves: others have its state too, as
/// replicas or copies.
bool others_have_all(const config::RunConfig& config, const MeshShape& mesh);

/// What follows from where members stand; the same on all of them. Some member has state.
LostState lost_state(const EpochMeeting& meeting, recover::CheckFree checkfree);

/// Weighs the neighbours of blocks that are left out by the norms of the last gradients, which are
/// in the totals of a step that ranks of such places made; those that are not known count alike.
void weigh_neighbours(std::vector<recover::LostBlocks>& left_out, const recover::FormerPlace& place,
                      const std::vector<double>& totals);

}  // namespace heddle
