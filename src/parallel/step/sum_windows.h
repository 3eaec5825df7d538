#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle {

/// How many elements of gradients that wait a rank begins to sum in its last backward pass over a
/// block (FSMoE's gradient partitioning, docs/design/043-experts-schedules-and-places.md). Fewer,
/// where fewer wait.
struct SumWindow {
  std::int64_t with_experts = 0;  ///< behind the last dispatch of the block's experts
  std::int64_t with_rest = 0;     ///< behind the experts
  bool operator==(const SumWindow&) const = default;
};
/// By block of the model. Empty: sums begin as soon as a unit has all its gradients.
using SumWindows = std::vector<SumWindow>;

/// "0/512 1024/256": what a rank tells others.
std::string text_of(const SumWindows& windows);
/// Of what text_of made.
SumWindows sum_windows_of(const std::string& text);

}  // namespace heddle
