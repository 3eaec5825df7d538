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
/// Those of a rank with several stages are of none of them.
std::vector<double> stage_norms(const std::vector<double>& totals, const recover::Stages& stages) {
  const int ranks = std::ranges::max(stages.rank_of) + 1;
  if (std::ssize(totals) < StepPolicy::kFirstOwn + ranks) return {};
  std::vector<double> norms;
  for (const int rank : stages.rank_of) {
    const bool is_known = rank >= 0 && std::ranges::count(stages.rank_of, rank) == 1;
    norms.push_back(is_known ? std::sqrt(*(totals.end() - ranks + rank)) : std::nan(""));
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

bool others_have_all(const config::RunConfig& config, const MeshShape& mesh) {
  if (config.recover.copies > 0) return true;
  const bool have_experts = !config.parallel.divides_experts() || mesh.size(Axis::edp) > 1;
  return config.parallel.zero == 0 && have_experts && mesh.size({Axis::dp, Axis::cp}) > 1;
}

LostState lost_state(const EpochMeeting& meeting, recover::CheckFree checkfree) {
  const recover::FormerPlace& former = *meeting.teller().place;
  const MeshShape& mesh = former.mesh;
  const recover::Stages stages = former.stages();
  LostState lost;
  lost.losses = {.step = meeting.step(),
                 .is_lost = std::vector<bool>(static_cast<std::size_t>(mesh.ranks()), true),
                 .stages = stages.count(),
                 .sites = former.sites,
                 .checkfree = possible(checkfree, stages.blocks),
                 .blocks = stages.blocks,
                 .left_out = former.left_out};
  if (lost.losses.checkfree != recover::CheckFree::off) {
    lost.losses.norms = stage_norms(meeting.teller().totals, stages);
  }
  weigh_neighbours(lost.losses.left_out, former, meeting.teller().totals);
  for (const auto& place : meeting.places()) {
    if (place && place->mesh.text() == mesh.text()) {
      lost.losses.is_lost[static_cast<std::size_t>(place->rank)] = false;
    }
  }
  if (meeting.checkpoint() >= 0) lost.losses.checkpoint = meeting.checkpoint();
  const auto axis = copies_axis(mesh, former.zero);
  // Ranks that differ only where they see other tokens have the same, unless ZeRO divides it.
  const bool divides_experts = mesh.size(Axis::ep) * mesh.size(Axis::etp) > 1;
  std::map<std::tuple<int, bool, int, int>, recover::StatePiece> pieces;
  for (const int stage : stages.left_out()) pieces[{0, false, stage, 0}].stage = stage;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const auto keeper = axis ? keeper_of(rank, mesh, *axis, former.copies) : std::nullopt;
    const auto hold = [&](bool is_of_experts, int part) {
      for (int stage = 0; stage < stages.count(); ++stage) {
        if (stages.rank_of[static_cast<std::size_t>(stage)] != mesh.coord(Axis::pp, rank)) continue;
        const int site = mesh.coord(Axis::site, rank);
        recover::StatePiece& piece = pieces[{site, is_of_experts, stage, part}];
        piece.site = site;
        piece.stage = stage;
        piece.part = part;
        piece.is_of_experts = is_of_experts;
        piece.holders.push_back(rank);
        if (keeper) piece.copies.push_back(*keeper);
      }
    };
    const bool has_shards = former.zero > 0;
    const int shard = mesh.coord(Axis::dp, rank) * mesh.size(Axis::cp) + mesh.coord(Axis::cp, rank);
    hold(false, (has_shards ? shard * mesh.size(Axis::tp) : 0) + mesh.coord(Axis::tp, rank));
    if (!divides_experts) continue;
    const int of_experts =
        mesh.coord(Axis::ep, rank) * mesh.size(Axis::etp) + mesh.coord(Axis::etp, rank);
    const int all = mesh.size(Axis::ep) * mesh.size(Axis::etp);
    hold(true, (has_shards ? mesh.coord(Axis::edp, rank) * all : 0) + of_experts);
  }
  for (auto& [place, piece] : pieces) lost.pieces.push_back(std::move(piece));
  return lost;
}

void weigh_neighbours(std::vector<recover::LostBlocks>& left_out, const recover::FormerPlace& place,
                      const std::vector<double>& totals) {
  if (left_out.empty()) return;
  const recover::Stages stages = place.stages();
  const std::vector<double> norms = stage_norms(totals, stages);
  for (recover::LostBlocks& blocks : left_out) {
    const auto norm_from = [&](int begin) {
      for (int stage = 0; stage < std::ssize(norms); ++stage) {
        const bool is_it = stages.blocks.begins[static_cast<std::size_t>(stage)] == begin &&
                           stages.blocks.count(stage) == blocks.end - blocks.begin;
        if (is_it) return static_cast<float>(norms[static_cast<std::size_t>(stage)]);
      }
      return std::nanf("");
    };
    const float before = norm_from(blocks.before), after = norm_from(blocks.after);
    const bool are_known = std::isfinite(before + after);
    blocks.weight_before = are_known ? before : 0.0F;
    blocks.weight_after = are_known ? after : 0.0F;
  }
}

}  // namespace heddle
