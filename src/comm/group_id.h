#pragma once

#include <cstdint>

namespace heddle {

/// The same on all ranks of a new group: `sequence` is that of the split in the parent.
inline std::uint64_t group_id_of_part(std::uint64_t parent, std::int64_t sequence, int color) {
  const auto mix = [](std::uint64_t a, std::uint64_t b) {
    const std::uint64_t h = (a ^ b) * 0x9e3779b97f4a7c15ULL;
    return (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ULL + b;
  };
  return mix(mix(parent, static_cast<std::uint64_t>(sequence)),
             static_cast<std::uint64_t>(color) + 1);
}

}  // namespace heddle
