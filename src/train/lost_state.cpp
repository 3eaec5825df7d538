#include "train/lost_state.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/peer_copy.h"

namespace heddle {

bool LostState::is_anything_lost() const {
  return std::ranges::find(losses.is_lost, true) != losses.is_lost.end();
}

LostState lost_state(const EpochMeeting& meeting) {
  const recover::FormerPlace& former = *meeting.teller().place;
  const MeshShape& mesh = former.mesh;
  LostState lost;
  lost.losses = {.step = meeting.step(),
                 .is_lost = std::vector<bool>(static_cast<std::size_t>(mesh.ranks()), true),
                 .stages = mesh.size(Axis::pp)};
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
    if (axis && former.keeps_copies) piece.copies.push_back(keeper_of(rank, mesh, *axis));
  }
  for (auto& [place, piece] : pieces) lost.pieces.push_back(std::move(piece));
  return lost;
}

}  // namespace heddle
