#pragma once

#include <map>
#include <optional>

#include "observe/report.h"
#include "train/session.h"

namespace heddle {

/// Keeps what attention that ranks share (axis cp) took in the steps of this process. Without such
/// ranks it does nothing.
class AttentionRecord {
 public:
  AttentionRecord(const RunSetup& setup, Session& session) : setup_(setup), session_(session) {}

  void begin_step();
  void end_step();

  /// The mean step of all ranks; of several the first is left out, it warms up. All ranks call it,
  /// and all get the answer. Nothing where ranks share no attention, or before the first step.
  std::optional<observe::AttentionFigures> gather() const;

 private:
  const RunSetup& setup_;
  Session& session_;
  int steps_ = 0;                           // that were timed
  std::map<int, AttentionTimes> by_layer_;  // sums over those that count
};

/// Of figures that are timed: "attention over cp waited 12.3 % of its time for messages, ...".
std::string describe(const observe::AttentionFigures& figures);

}  // namespace heddle
