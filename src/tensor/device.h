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

/// The GPUs that this process can use; 0 where there is none, no driver, or heddle was built
/// without CUDA.
int cuda_device_count();

}  // namespace heddle
