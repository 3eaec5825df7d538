#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json_value.h"

namespace heddle::observe {

/// An epoch of a run that outlives its ranks: who took part from a step on, and what the way there
/// cost.
struct EpochRow {
  std::uint64_t number = 0;
  std::int64_t step = 0;  ///< the last that was finished when it began
  std::string time = {};  ///< as in RunStart
  int members = 0, spares = 0;
  std::string mesh = {};    ///< "dp=2 tp=1 pp=2"
  std::string cause = {};   ///< why the epoch before it ended; of the first: empty
  std::string source = {};  ///< where state came from
  /// Seconds: to notice a loss, to agree on who goes on, to connect and set up, to have the state
  /// again, and of the step that was interrupted, where it was taken again.
  double detect = 0, agree = 0, rebuild = 0, restore = 0, redo = 0;

  double lost() const { return detect + agree + rebuild + restore + redo; }
};

/// As it stands in a run's epochs.jsonl and in its report.
JsonValue to_json(const EpochRow& epoch);

/// Adds a line to a run's epochs.jsonl, whole or not at all: whoever keeps the folder may be lost,
/// and the next one knows only of the epochs in which it took part. The first epoch of a start from
/// the beginning replaces what is there. Error(resources) when it cannot be written.
void record_epoch(const std::filesystem::path& file, const EpochRow& epoch);

/// The epochs of a run, in order; none when there is no file. Lines that are no epochs are left
/// out.
std::vector<EpochRow> read_epochs(const std::filesystem::path& file);

}  // namespace heddle::observe
