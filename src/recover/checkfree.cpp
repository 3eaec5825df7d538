#include "recover/checkfree.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "parallel/schedule/routes.h"

namespace heddle::recover {
namespace {

StageRecovery impossible(std::string why) { return {.why = std::move(why)}; }

std::string lost_too(int stage) { return fmt::format("stage {} beside it is lost too", stage); }

}  // namespace

int partner_of(int stage, int stages) {
  HEDDLE_CHECK(has_swapped_pairs(stages) && stage >= 0 && stage < stages, "stage {} of {}", stage,
               stages);
  if (stage < 2) return 1 - stage;
  if (stage >= stages - 2) return 2 * stages - 3 - stage;
  return -1;
}

int StageBlocks::stage_of(int block) const {
  return static_cast<int>(std::ranges::upper_bound(begins, block) - begins.begin()) - 1;
}

int StageBlocks::first() const {
  int stage = 0;
  while (stage < stages() && count(stage) == 0) ++stage;
  return stage;
}

bool StageBlocks::are_even() const {
  if (begins.empty() || first() == stages()) return false;
  for (int stage = first(); stage < stages(); ++stage) {
    if (count(stage) != count(first())) return false;
  }
  return true;
}

std::string blocks_text(int begin, int end) {
  return end - begin == 1 ? fmt::format("block {}", begin)
                          : fmt::format("blocks {} to {}", begin, end - 1);
}

std::vector<int> numbers_of(const std::vector<LostBlocks>& lost) {
  std::vector<int> numbers;
  for (const LostBlocks& blocks : lost) {
    for (int block = blocks.begin; block < blocks.end; ++block) numbers.push_back(block);
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::vector<int> Stages::left_out() const {
  std::vector<int> stages;
  for (int stage = 0; stage < count(); ++stage) {
    if (rank_of[static_cast<std::size_t>(stage)] < 0) stages.push_back(stage);
  }
  return stages;
}

Stages stages_of(const StageBlocks& of_ranks, int ranks, const std::vector<LostBlocks>& left_out) {
  Stages stages;
  if (left_out.empty()) {
    stages.blocks = of_ranks;
    stages.rank_of.resize(static_cast<std::size_t>(ranks));
    std::iota(stages.rank_of.begin(), stages.rank_of.end(), 0);
    return stages;
  }
  HEDDLE_CHECK(of_ranks.stages() == ranks, "blocks of {} ranks of {}", of_ranks.stages(), ranks);
  const std::vector<int> numbers = numbers_of(left_out);
  const auto add = [&](int begin, int rank) {
    stages.blocks.begins.push_back(begin);
    stages.rank_of.push_back(rank);
  };
  int last = -2;  // of whom the stage before is
  for (int rank = 0; rank < ranks; ++rank) {
    const int begin = of_ranks.begins[static_cast<std::size_t>(rank)];
    const int end = begin + of_ranks.count(rank);
    if (begin == end) add(begin, last = rank);
    for (int block = begin; block < end; ++block) {
      const int holder = std::ranges::binary_search(numbers, block) ? -1 : rank;
      const bool begins_one =
          std::ranges::find(left_out, block, &LostBlocks::begin) != left_out.end();
      if (holder != last || begins_one) add(block, holder);
      last = holder;
    }
  }
  stages.blocks.begins.push_back(of_ranks.begins.back());
  return stages;
}

std::vector<int> cut_without(const StageBlocks& blocks, const std::vector<int>& left_out) {
  std::vector<int> cut;
  for (int stage = 0; stage < blocks.stages(); ++stage) {
    if (std::ranges::find(left_out, stage) == left_out.end()) {
      cut.push_back(blocks.count(stage));
    } else {
      cut.back() += blocks.count(stage);
    }
  }
  return cut;
}

StageRecovery recovery_of(int stage, const std::vector<bool>& is_lost, CheckFree mode, int first) {
  const int last = static_cast<int>(is_lost.size()) - 1, stages = last + 1 - first;
  const auto lost = [&](int which) { return is_lost[static_cast<std::size_t>(which)]; };
  if (mode == CheckFree::off) return impossible("stages are not made of their neighbours");
  if (stage < first) return impossible("embedding and head cannot be made of other stages");
  if (mode == CheckFree::plus) {
    if (!has_swapped_pairs(stages)) {
      throw Error(ErrorCode::usage,
                  fmt::format("CheckFree+ swaps the first two and the last two stages, and {} "
                              "stage{} not have such pairs",
                              stages, stages == 1 ? " does" : "s do"),
                  "use 2, or 4 or more stages");
    }
    if (const int partner = partner_of(stage - first, stages); partner >= 0) {
      if (lost(first + partner)) return impossible(lost_too(first + partner));
      return {.kind = StageRecovery::Kind::copy, .before = first + partner};
    }
  }
  if (stage == first || stage == last) {
    return impossible(fmt::format("it is the {} stage, with none {} it",
                                  stage == first ? "first" : "last",
                                  stage == first ? "before" : "behind"));
  }
  for (const int beside : {stage - 1, stage + 1}) {
    if (lost(beside)) return impossible(lost_too(beside));
  }
  return {.kind = StageRecovery::Kind::mean, .before = stage - 1, .after = stage + 1};
}

}  // namespace heddle::recover
