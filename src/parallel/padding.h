#pragma once

#include <cstdint>

namespace heddle {

/// Elements. Parameters start on cache lines, so that no two share one and vector loads are
/// aligned.
inline constexpr std::int64_t kParameterAlignment = 16;

/// The next multiple.
constexpr std::int64_t padded(std::int64_t count, std::int64_t to = kParameterAlignment) {
  return (count + to - 1) / to * to;
}

}  // namespace heddle
