#pragma once

#include <cstdint>

namespace heddle {

/// Where bytes live; a value, not a handle.
struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace heddle
