#pragma once

#include <cstdint>
#include <vector>

#include "comm/comm_op.h"
#include "parallel/schedule/schedule.h"
#include "simulator/network/routing.h"

namespace heddle {

/// What a transfer belongs to. `none`: nothing but waiting for each other.
enum class Traffic : std::uint8_t { pp, dp, ends, lanes, none };
inline constexpr int kTraffics = 4;

/// A step as what each rank does in order, and the transfers between them
/// (docs/design/015-simulated-step.md).
struct StepProgram {
  struct Instruction {
    enum class Kind : std::uint8_t {
      action,   ///< the next action of the rank's list begins
      compute,  ///< a micro-batch, for `seconds`
      work,     ///< something else, for `seconds`
      issue,    ///< gives what this rank has to give to transfer `what`
      wait      ///< until transfer `what` has ended
    };
    Kind kind = Kind::action;
    std::uint32_t what = 0;
    double seconds = 0.0;
  };

  /// What a transfer takes: all its pieces, each after its own latency; without pieces a latency.
  struct Path {
    double latency_seconds = 0.0;
    std::vector<network::Piece> pieces = {};
  };

  struct Transfer {
    int path = -1;     ///< -1: takes no time
    int channel = -1;  ///< -1: waits for no other transfer
    int needed = 1;    ///< ranks that issue it
    /// It needs what the one before it on its channel gives: not before that has ended.
    bool follows = false;
    Traffic traffic = Traffic::none;
    CommOp op = CommOp::send;
    double bytes = 0.0;
    Action action = {};  ///< that began it, for names
    int rank = -1;       ///< that sends it; -1: the channel's ranks do it together
  };

  /// Transfers on a channel begin in the order of their numbers. `at_once` of them are under way at
  /// a time, of which those that follow each other count as one.
  struct Channel {
    std::vector<int> ranks = {};
    int at_once = 1;
    /// What of the computation's time under its transfers is added to the computation.
    double contention = 0.0;
  };

  std::vector<double> capacities;  ///< by link
  std::vector<Path> paths;
  std::vector<Transfer> transfers;
  std::vector<Channel> channels;
  std::vector<std::vector<Instruction>> by_rank;
};

}  // namespace heddle
