#pragma once

#include <filesystem>
#include <string>

namespace heddle::cli {

struct CalibrateOptions {
  std::filesystem::path out;      ///< empty: standard output
  std::filesystem::path samples;  ///< empty: not written
  int ranks = 0;               ///< most ranks at work at once; 0: two, or what a launcher started
  std::string device = "cpu";  ///< cpu or cuda
  std::string dtype = {};      ///< empty: f32 on a CPU, bf16 on a GPU
};

/// Measures this machine and writes a machine file for it (docs/design/011-planner.md).
/// Error(resources) where that cannot be written or there are fewer devices than ranks, before
/// anything is measured; and where other work on the machine does not let two measurements agree,
/// or the figures contradict each other: then nothing is written.
void calibrate(const CalibrateOptions& options);

}  // namespace heddle::cli
