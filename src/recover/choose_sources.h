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
  std::vector<int> holders = {};  ///< ranks that train with it: replicas of each other
  std::vector<int> copies = {};   ///< ranks that keep a copy that follows every step
};

/// Where a lost piece comes from.
struct PieceSource {
  enum class Kind : std::uint8_t { replica, copy, neighbours, checkpoint };
  int stage = 0, part = 0;
  Kind kind = Kind::checkpoint;
  int rank = -1;                ///< that has it, of replica and copy
  StageRecovery recovery = {};  ///< of neighbours
  /// What those are weighted by, of a mean.
  float weight_before = 0.0F, weight_after = 0.0F;
};

struct Restoration {
  std::int64_t step = 0;                  ///< the last that is finished afterwards
  bool is_exact = true;                   ///< as if nothing had been lost
  std::vector<PieceSource> sources = {};  ///< of pieces that lost ranks had, in their order
  std::string line = {};                  ///< all of it, for the user
};

/// What is known when ranks are lost behind a step.
struct Losses {
  std::int64_t step = 0;
  std::vector<bool> is_lost = {};  ///< by rank of the epoch that has ended
  int stages = 1;
  CheckFree checkfree = CheckFree::off;
  int first_stage = 0;             ///< with blocks
  std::vector<double> norms = {};  ///< of the last gradients, by stage; empty: not known
  std::optional<std::int64_t> checkpoint = {};  ///< the step of the newest whole one
};

/// The cheapest source for each piece that was on a lost rank: a replica, a copy, the neighbours of
/// its stage, the newest checkpoint; where one needs the checkpoint, everything comes from there,
/// since all pieces have to be of one step. Error(data) where there is nothing to come from.
Restoration choose_sources(const std::vector<StatePiece>& pieces, const Losses& losses);

}  // namespace heddle::recover
