#pragma once

#include <array>
#include <functional>
#include <vector>

#include "simulator/step_program.h"

namespace heddle {

struct PlayedStep {
  struct Transfer {
    double ready = 0.0;  ///< all had issued it
    double begin = 0.0, end = 0.0;
    bool has_ended = false;
  };
  struct Rank {
    std::vector<double> action_begins;  ///< in the order of its actions; each ends with the next
    double end = 0.0;
    double busy = 0.0, work = 0.0;                    ///< seconds of compute and of work
    double first_compute = -1.0, last_compute = 0.0;  ///< begin and end; -1: none
    /// Of its waits: until the transfer was ready, and from then on. A rank computes, works or
    /// waits, so that these four add up to `end`.
    double bubble = 0.0;
    std::array<double, kTraffics> exposed = {};
    /// What the transfers it waited for took.
    std::array<double, kTraffics> transferring = {};
  };
  /// A rank that waits for a transfer that never ends.
  struct Stuck {
    int rank = 0;
    std::size_t action = 0;  ///< its number in the rank's list, from 0
    std::uint32_t transfer = 0;
  };

  std::vector<Transfer> transfers;
  std::vector<Rank> ranks;
  std::vector<Stuck> stuck;  ///< empty when the step came to its end
  double seconds = 0.0;
};

/// Plays a program: every rank does its instructions in order, transfers share links (max-min
/// fair). `tolerance` is FlowNetwork's. `progress` is called now and then with (instructions done,
/// all), the last time with all of them unless ranks are stuck.
PlayedStep play_step(const StepProgram& program, double tolerance = 0.0,
                     const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace heddle
