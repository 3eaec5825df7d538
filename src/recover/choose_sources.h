#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recover/checkfree.h"

namespace heddle::recover {

/// A part of a run's state that ranks have as a whole or not at all: weights and the optimizer's
/// states of a stage, or of a shard of it.
struct StatePiece {
  int stage = 0, part = 0;
  int site = 0;                   ///< its place among those that trained
  bool is_of_experts = false;     ///< that ranks divide otherwise than the rest; parts of their own
  std::vector<int> holders = {};  ///< ranks that train with it: replicas of each other; none where
                                  ///< the stage is left out
  std::vector<int> copies = {};   ///< ranks that keep a copy that follows every step
};

/// Where a lost piece comes from.
struct PieceSource {
  enum class Kind : std::uint8_t { replica, copy, site, neighbours, checkpoint };
  int stage = 0, part = 0;
  bool is_of_experts = false;
  Kind kind = Kind::checkpoint;
  int rank = -1;                ///< that has it, of replica and copy
  int site = -1;                ///< the number of its own, where there are several
  int taken = -1;               ///< of a site, the number of the one that it goes on as
  StageRecovery recovery = {};  ///< of neighbours
  /// What those are weighted by, of a mean.
  float weight_before = 0.0F, weight_after = 0.0F;
};

struct Restoration {
  std::int64_t step = 0;                  ///< the last that is finished afterwards
  bool is_exact = true;                   ///< as if nothing had been lost
  std::vector<PieceSource> sources = {};  ///< of pieces that lost ranks had, in their order
  std::string line = {};                  ///< all of it, for the user

  bool is_from_checkpoint() const {
    return !sources.empty() && sources.front().kind == PieceSource::Kind::checkpoint;
  }
};

/// What is known when ranks are lost behind a step.
struct Losses {
  std::int64_t step = 0;
  std::vector<bool> is_lost = {};  ///< by rank of the epoch that has ended
  int stages = 1;
  std::vector<int> sites = {0};      ///< the numbers of those that trained
  std::vector<int> sites_now = {0};  ///< and of those that go on
  CheckFree checkfree = CheckFree::off;
  StageBlocks blocks = {};
  std::vector<LostBlocks> left_out = {};  ///< by the epoch that has ended
  /// Of the stages that nobody has, those that are left out from now on: there are not ranks for
  /// all.
  std::vector<int> leaves_out = {};
  std::vector<double> norms = {};  ///< of the last gradients, by stage; empty: not known
  std::optional<std::int64_t> checkpoint = {};  ///< the step of the newest whole one
  /// What every rank has of its own beside pieces, for the user: gone with the rank.
  std::string own_things = {};
};

/// The site, by its number, whose state a site goes on with, of those that have all of theirs (by
/// number, ascending): its own, or of another number that of entry k mod n. The same number where
/// none has.
int site_taken(int site, const std::vector<int>& whole);

/// The numbers of sites all of whose pieces are on ranks that are left, as replicas or copies.
std::vector<int> whole_sites(const std::vector<StatePiece>& pieces, const Losses& losses);

/// The cheapest source for each piece that was on a lost rank: a replica, a copy, another site (for
/// all of a site then, site_taken), the neighbours of its stage, the newest checkpoint; where one
/// needs the checkpoint, everything comes from there, since all pieces have to be of one step.
/// Error(data) where there is nothing to come from. What was left out, and is not any more, is made
/// of its neighbours too, as the line says; its blocks are those of `losses.left_out`.
Restoration choose_sources(const std::vector<StatePiece>& pieces, const Losses& losses);

/// The stages that nobody has, ascending: those that were left out, and the lost that are to be
/// made of their neighbours. Empty where one of these cannot be: all go back then.
std::vector<int> stages_nobody_has(const std::vector<StatePiece>& pieces, const Losses& losses);

}  // namespace heddle::recover
