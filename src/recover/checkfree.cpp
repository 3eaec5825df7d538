#include "recover/checkfree.h"

#include <fmt/format.h>

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
