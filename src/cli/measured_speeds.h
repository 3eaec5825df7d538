#pragma once

#include <filesystem>
#include <vector>

namespace heddle::cli {

/// What report.json of a run says of its ranks.
struct MeasuredSpeeds {
  struct Rank {
    int rank = 0, stage = 0, blocks = 0;
    double block_seconds = 0.0;  ///< of a micro-batch, forward and backward
  };
  int ranks = 0;  ///< of the run; those that measured nothing are not in the list
  std::vector<Rank> measured = {};

  /// Seconds a block, of the slowest; by pipeline rank.
  std::vector<double> by_stage() const;
  /// Null where that rank measured nothing.
  const Rank* find(int rank) const;
};

/// Of a report, or of the run folder that has it. Error where it has none of this.
MeasuredSpeeds read_speeds(const std::filesystem::path& report);

}  // namespace heddle::cli
