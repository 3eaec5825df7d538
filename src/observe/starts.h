#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace heddle::observe {

/// One start of the program on a run: its first, or a resume. A process that is killed leaves
/// nothing else behind, so this is written before its first step.
struct RunStart {
  std::int64_t step = 0;     ///< steps that were done before; 0: from the beginning
  std::string time = {};     ///< "2026-11-15T09:30:00Z"
  std::string host = {};     ///< of the first rank
  std::string device = {};   ///< "AMD EPYC 9654", "NVIDIA H200"
  std::string version = {};  ///< of the program
  std::string command = {};  ///< as it was typed
  int ranks = 1;
  int threads = 1;  ///< of each rank
};

/// Adds a line to a run's starts.jsonl, whole or not at all. A start from the beginning replaces
/// what is there, as it does with the metrics. Error(resources) when it cannot be written.
void record_start(const std::filesystem::path& file, const RunStart& start);

/// The starts of a run, in order; none when there is no file. Lines that are no starts, and values
/// of another type, are left out.
std::vector<RunStart> read_starts(const std::filesystem::path& file);

/// The starts at which the curves of a run go over from one process to the next. A resume from an
/// older checkpoint takes back the steps after it, and with them the resumes there.
std::vector<RunStart> resumes_on_curves(const std::vector<RunStart>& starts);

}  // namespace heddle::observe
