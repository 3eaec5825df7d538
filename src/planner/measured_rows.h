#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "planner/candidate.h"
#include "planner/machine.h"

namespace heddle::planner {

/// One measured run: what was trained, how it lay, and how long a step took.
struct MeasuredRow {
  Job job;
  Candidate candidate;
  double seconds = 0;
  std::string model;  ///< rows of one model, batch and number of GPUs can be compared
  /// Whether constants may be fitted to it: half of all rows, by a hash of the configuration, so
  /// that a row is on the same side in every file.
  bool is_for_calibration = false;
};

/// A decoder with learned positions, GeLU of four times the width and a padded vocabulary of
/// 51,200: the model of the measured tables.
ModelSpec gpt_spec(std::int64_t hidden, std::int64_t heads, std::int64_t layers,
                   std::int64_t seq_len);

/// Sets `model` where it is empty, and `is_for_calibration`.
void finish_row(MeasuredRow& row);

/// Rows of a CSV file with the columns of the vTrain measurements ("# GPUs", "global batch", "micro
/// batch", "hidden size", ... "iteration time (ms)") and optionally "recompute" (none, selective,
/// full), "virtual stages", "zero" and "sequence parallelism" (0 or 1). Error(data) names the line
/// and the column.
std::vector<MeasuredRow> parse_rows(std::string_view csv, const std::string& name,
                                    const Machine& machine);
std::vector<MeasuredRow> read_rows(const std::filesystem::path& file, const Machine& machine);

}  // namespace heddle::planner
