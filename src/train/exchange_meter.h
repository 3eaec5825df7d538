#pragma once

#include <mutex>
#include <vector>

#include "comm/flight_recorder.h"
#include "comm/world.h"
#include "observe/report.h"

namespace heddle {

/// How long exchanges of experts' rows (axes ep and etp) were under way in the steps of a rank, and
/// for how much of that it did nothing but wait. Thread-safe.
class ExchangeMeter {
 public:
  /// Is told every call that has ended.
  void add(const CommCall& call);
  void end_step();

  /// The mean step of all ranks; of several the first is left out, it warms up. All ranks of
  /// `world` call it.
  std::vector<observe::ExpertExchangeRow> gather(World& world);

 private:
  struct Seconds {
    double exposed = 0, hidden = 0;
  };
  std::mutex mutex_;
  Seconds sum_, first_;  // of all steps, of the first
  int steps_ = 0;
};

}  // namespace heddle
