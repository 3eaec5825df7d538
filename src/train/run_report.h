#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/memory_plan.h"
#include "observe/metrics.h"
#include "observe/report.h"
#include "train/rank_speeds.h"
#include "train/run_state.h"

namespace heddle {

/// What the trainer knows at the end and the files do not.
struct RunSummary {
  std::string name;
  std::vector<std::pair<std::string, std::string>> settings;
  observe::StepTimeRow step_time;
  MemoryPlan predicted;
  MemoryStats measured;
  std::optional<double> best_possible_loss;
  std::vector<observe::SampleText> samples;
  std::vector<std::string> warnings;
  std::vector<observe::RankMemoryRow> ranks;
  std::vector<observe::TimelineFigure> timelines;
  std::optional<observe::AttentionFigures> attention;
  std::vector<observe::ExpertExchangeRow> expert_exchanges;
  RankWork work;                                   ///< of the ranks of the last mesh
  MeshTraffic predicted_traffic, counted_traffic;  ///< of this process's steps, on the first rank
  bool masks_documents = false;
  bool has_lossless = false;  ///< codecs among those of the run
};

/// "llama, 109.5M parameters: 12 layers of width 768, ..."
std::string describe(const ModelSpec& spec);

/// "AMD EPYC 9654", "NVIDIA H200": what a rank on the device computes with.
std::string device_name(Device device);

/// Writes report.json and report.html of a run folder from its metrics, its starts and the summary.
void write_run_report(const std::filesystem::path& folder, const ModelSpec& spec,
                      const RunState& state, const RunSummary& summary);

}  // namespace heddle
