#include "train/lost_state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "engine/peer_copy.h"
#include "parallel/schedule/routes.h"
#include "parallel/step/tell_step.h"

namespace heddle {

bool LostState::is_anything_lost() const {
  return std::ranges::find(losses.is_lost, true) != losses.is_lost.end();
}

namespace {

/// Of the last gradients, which end the totals of a step where stages may have to be made anew.
std::vector<double> stage_norms(const std::vector<double>& totals, int stages) {
  if (std::ssize(totals) < StepPolicy::kFirstOwn + stages) return {};
  std::vector<double> norms;
  for (auto square = totals.end() - stages; square != totals.end(); ++square) {
    norms.push_back(std::sqrt(*square));
  }
  return norms;
}

/// A pipeline that was cut again for fewer ranks may have stages that do not correspond, or that
/// no micro-batch visits in swapped order.
recover::CheckFree possible(recover::CheckFree asked, const recover::StageBlocks& blocks) {
  using recover::CheckFree;
  if (!blocks.are_even()) return CheckFree::off;
  const bool swaps = blocks.first() == 1 && has_swapped_pairs(blocks.stages() - 1);
  return asked == CheckFree::plus && !swaps ? CheckFree::inner : asked;
}

}  // namespace

LostState lost_state(const EpochMeeting& meeting, recover::CheckFree checkfree) {
  const recover::FormerPlace& former = *meeting.teller().place;
  const MeshShape& mesh = former.mesh;
  LostState lost;
  lost.losses = {.step = meeting.step(),
                 .is_lost = std::vector<bool>(static_cast<std::size_t>(mesh.ranks()), true),
                 .stages = mesh.size(Axis::pp),
                 .checkfree = possible(checkfree, former.blocks)};
  if (lost.losses.checkfree != recover::CheckFree::off) {
    lost.losses.first_stage = former.blocks.first();
    lost.losses.norms = stage_norms(meeting.teller().totals, lost.losses.stages);
  }
  for (const auto& place : meeting.places()) {
    if (place && place->mesh.text() == mesh.text()) {
      lost.losses.is_lost[static_cast<std::size_t>(place->rank)] = false;
    }
  }
  if (meeting.checkpoint() >= 0) lost.losses.checkpoint = meeting.checkpoint();
  const auto axis = copies_axis(mesh, former.zero);
  // Ranks that differ only where they see other tokens have the same, unless ZeRO divides it.
  std::map<std::tuple<int, int, int>, recover::StatePiece> pieces;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const int stage = mesh.coord(Axis::pp, rank), tp = mesh.coord(Axis::tp, rank);
    const int shard = former.zero == 0 ? 0
                                       : mesh.coord(Axis::dp, rank) * mesh.size(Axis::cp) +
                                             mesh.coord(Axis::cp, rank);
    recover::StatePiece& piece = pieces[{stage, tp, shard}];
    piece.stage = stage;
    piece.part = shard * mesh.size(Axis::tp) + tp;
    piece.holders.push_back(rank);
    const auto keeper = axis ? keeper_of(rank, mesh, *axis, former.copies) : std::nullopt;
    if (keeper) piece.copies.push_back(*keeper);
  }
  for (auto& [place, piece] : pieces) lost.pieces.push_back(std::move(piece));
  return lost;
}

}  // namespace heddle
