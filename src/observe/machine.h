#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace heddle::observe {

/// What this process may use of the machine: the machine itself, narrowed by affinity and by the
/// control group (containers, batch systems).
struct Machine {
  std::string cpu_model;  ///< "" when the system does not say
  int cores_present = 0;
  int cores_usable = 0;                  ///< by affinity and quota, at least 1
  double cpu_quota = 0;                  ///< cores the control group grants; 0 without a limit
  bool has_avx2 = false;                 ///< with FMA, which our kernels use together
  bool has_avx512 = false;               ///< F, BW, DQ, VL and CD
  std::uint64_t memory_total_bytes = 0;  ///< 0 when unknown
  std::uint64_t memory_free_bytes = 0;   ///< without swapping, counting caches that can be dropped
  bool memory_is_limited = false;        ///< total comes from the control group, not the machine
};

/// Reads /proc and /sys under `root` (another one in tests). Never throws: what cannot be read
/// stays unknown.
Machine inspect_machine(const std::filesystem::path& root = "/");

/// As the machine calls itself; "localhost" when it does not say.
std::string host_name();

struct DiskReport {
  std::uint64_t free_bytes = 0;
  double write_bytes_per_second = 0;  ///< of a file written and synced
};

/// Writes and removes a file of `probe_bytes` in `folder`. Throws Error(resources) where that is
/// not possible.
DiskReport measure_disk(const std::filesystem::path& folder, std::size_t probe_bytes);

/// The largest physical memory this process has held, and what it holds now; 0 when unknown.
std::uint64_t process_peak_bytes();
std::uint64_t process_resident_bytes();
/// Makes the peak start again at what is held now. False where the system does not allow it.
bool reset_process_peak();

}  // namespace heddle::observe
