#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::recover {

// A lost stage of a pipeline made of those beside it: CheckFree and CheckFree+ (arXiv 2506.15461).
// Not exact: weights are a guess, moments begin at zero and their count of steps at 0. All other
// stages stay as they are. Stages count from 0.

enum class CheckFree : std::uint8_t {
  off,
  inner,  ///< stages with two neighbours
  plus    ///< all: odd micro-batches take the first two and the last two stages in swapped order
};

/// Of `plus`, which needs swapped pairs (parallel/schedule/routes.h): the other stage of a pair,
/// which has learnt this one's place too; -1 where the stage is in none.
int partner_of(int stage, int stages);

/// Which blocks of a model are on which rank of its pipeline: rank r has those from `begins[r]` to
/// `begins[r + 1]`. Empty where a rank has several runs of them.
struct StageBlocks {
  std::vector<int> begins = {};

  int stages() const { return static_cast<int>(begins.size()) - 1; }
  int count(int stage) const {
    return begins[static_cast<std::size_t>(stage) + 1] - begins[static_cast<std::size_t>(stage)];
  }
  /// The one that has this block.
  int stage_of(int block) const;
  /// The first that has any: one before it has embedding and head alone.
  int first() const;
  /// Whether all from the first on have the same number, so that they correspond by position.
  bool are_even() const;
};

/// Blocks of a stage that nobody has, and those that they are made of by position.
struct LostBlocks {
  int begin = 0, end = 0;
  int before = 0, after = 0;  ///< the first block of the neighbours; the same of a copy
  float weight_before = 0.0F, weight_after = 0.0F;
};
/// "blocks 4 to 6", "block 4".
std::string blocks_text(int begin, int end);
/// The numbers of all of them, ascending.
std::vector<int> numbers_of(const std::vector<LostBlocks>& lost);

/// The stages of a pipeline, with those that are left out (recover.stages = "skip"): nobody has
/// the state of these, and what stands in for it rests on some rank.
struct Stages {
  StageBlocks blocks = {};
  std::vector<int> rank_of = {};  ///< of the pipeline; -1: the stage is left out

  int count() const { return static_cast<int>(rank_of.size()); }
  /// Those that are left out, ascending.
  std::vector<int> left_out() const;
};
/// Of a pipeline whose ranks have these blocks.
Stages stages_of(const StageBlocks& of_ranks, int ranks, const std::vector<LostBlocks>& left_out);

/// Blocks by rank of a pipeline that goes on without some of its stages, of which the first is
/// none: the others keep their blocks, and those of a stage that is left out go to the rank before
/// it.
std::vector<int> cut_without(const StageBlocks& blocks, const std::vector<int>& left_out);

/// How a lost stage can be had.
struct StageRecovery {
  enum class Kind : std::uint8_t { mean, copy, impossible };
  Kind kind = Kind::impossible;
  int before = -1, after = -1;  ///< whose mean, or with `copy` the first of them alone
  std::string why = {};         ///< it is impossible
};
/// `is_lost` by stage. Stages before `first` have no blocks: embedding and head cannot be guessed;
/// with `plus` the stage beside them keeps a copy (refreshed every step, so exact). Error(usage)
/// with `plus` where there are no swapped pairs.
StageRecovery recovery_of(int stage, const std::vector<bool>& is_lost, CheckFree mode,
                          int first = 0);

/// What neighbours are weighted by are the norms of their last gradients, as in the authors' code;
/// the paper's notation can also be read as their squares.
/// out = (a * before + b * after) / (a + b), each operation rounded to float32, in this order. Two
/// weights of zero count as equal ones. Error(data) where the weights are no weights.
void mean_of_neighbours(std::span<const float> before, float a, std::span<const float> after,
                        float b, std::span<float> out);

/// The factor by which a stage that was made anew learns faster than the schedule says. It does not
/// grow when the stage is lost again.
inline constexpr double kRaisedRate = 1.1;

}  // namespace heddle::recover
