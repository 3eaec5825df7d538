#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/rank_report.h"

namespace heddle {

struct Verdict {
  int rank = -1;  ///< the guilty one; -1 when ranks wait for each other and none is the odd one
  std::string text;
  /// Of whom nothing can be expected any more: gone, silent or stuck. None where ranks live and do
  /// not agree about what to do.
  std::vector<int> lost = {};
};

/// Who is to blame when a call has been waited for longer than `limit` seconds, or a rank has been
/// silent for so long. Blame goes along those who wait to one who does not: a rank that computes,
/// has ended or is silent. Where all wait in a circle, to the first that left the step which all
/// kept before, or else to the one for which most others wait.
/// `reports` has one entry per rank of the world, in order.
std::optional<Verdict> judge(std::span<const RankReport> reports, double limit);

}  // namespace heddle
