#include "recover/checkfree.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/error.h"
#include "parallel/schedule/routes.h"

namespace heddle::recover {
namespace {

/// A neighbour's tensors by their place.
class Places {
 public:
  explicit Places(std::span<const StageTensor> tensors) {
    for (const StageTensor& tensor : tensors) by_place_[{tensor.block, tensor.name}] = &tensor;
    HEDDLE_CHECK(by_place_.size() == tensors.size(), "a stage has a tensor twice");
  }
  /// What corresponds to a lost tensor.
  std::span<const float> at(const StageTensor& lost) const {
    const auto found = by_place_.find({lost.block, lost.name});
    if (found != by_place_.end() && found->second->values.size() == lost.values.size()) {
      return found->second->values;
    }
    throw Error(ErrorCode::data,
                fmt::format("a stage cannot be made of its neighbour, which has no {} of {} "
                            "elements in block {}",
                            lost.name, lost.values.size(), lost.block),
                "stages need the same number of blocks, of the same kinds in the same order");
  }

 private:
  std::map<std::pair<int, std::string>, const StageTensor*> by_place_;
};

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

StageRecovery recovery_of(int stage, const std::vector<bool>& is_lost, CheckFree mode) {
  const int stages = static_cast<int>(is_lost.size());
  const auto lost = [&](int which) { return is_lost[static_cast<std::size_t>(which)]; };
  if (mode == CheckFree::off) return impossible("stages are not made of their neighbours");
  if (mode == CheckFree::plus) {
    if (!has_swapped_pairs(stages)) {
      throw Error(ErrorCode::usage,
                  fmt::format("CheckFree+ swaps the first two and the last two stages, and {} "
                              "stage{} not have such pairs",
                              stages, stages == 1 ? " does" : "s do"),
                  "use 2, or 4 or more stages");
    }
    if (const int partner = partner_of(stage, stages); partner >= 0) {
      if (lost(partner)) return impossible(lost_too(partner));
      return {.kind = StageRecovery::Kind::copy, .before = partner};
    }
  }
  if (stage == 0 || stage == stages - 1) {
    return impossible(fmt::format("it is the {} stage, which has {}", stage == 0 ? "first" : "last",
                                  stage == 0 ? "the embedding" : "the head"));
  }
  for (const int beside : {stage - 1, stage + 1}) {
    if (lost(beside)) return impossible(lost_too(beside));
  }
  return {.kind = StageRecovery::Kind::mean, .before = stage - 1, .after = stage + 1};
}

void fill_with_mean(std::span<const StageTensor> before, float a,
                    std::span<const StageTensor> after, float b,
                    std::span<const StageTensor> lost) {
  const Places left(before), right(after);
  for (const StageTensor& tensor : lost) {
    mean_of_neighbours(left.at(tensor), a, right.at(tensor), b, tensor.values);
  }
}

void fill_with_copy(std::span<const StageTensor> partner, std::span<const StageTensor> lost) {
  const Places from(partner);
  for (const StageTensor& tensor : lost) std::ranges::copy(from.at(tensor), tensor.values.begin());
}

}  // namespace heddle::recover
