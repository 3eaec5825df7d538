#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm_op.h"

namespace heddle {

/// What one rank is doing, as a watchdog sees it. Times are ages in seconds, ranks are numbers in
/// the world, so that it means the same in another process.
struct RankReport {
  /// A call that was begun and has not ended.
  struct Open {
    CommOp op = CommOp::barrier;
    std::int64_t sequence = 0;
    std::uint64_t group = 0;
    std::vector<int> ranks = {};
    int peer = -1;  ///< for send and recv
    int message_tag = 0;
    std::string text = {};
    bool holds_rank = false;    ///< the rank does nothing else until it ends
    bool is_on_device = false;  ///< the host has handed it over, and the device has come to it
    double seconds = 0;         ///< how long it has been waited for; 0 when nobody waits for it yet
  };
  /// The calls of a group that are counted together: its collectives (as `barrier`), or the
  /// messages of one tag to or from one peer.
  struct Line {
    std::uint64_t group = 0;
    CommOp op = CommOp::barrier;
    int peer = -1;
    int message_tag = 0;
    friend auto operator<=>(const Line&, const Line&) = default;
  };

  static constexpr std::size_t kRecent = 64;

  int rank = 0;
  std::string place = {};     ///< "site 1": where it is, for people; may be empty
  bool has_ended = false;     ///< it came to its end and makes no more calls
  bool is_gone = false;       ///< its process does not exist any more
  double silent_seconds = 0;  ///< since the last sign of life
  std::vector<Open> open = {};
  std::map<Line, std::int64_t> begun = {};  ///< the last sequence number of each line
  std::string last_call = {};               ///< that has ended; empty when none has
  double idle_seconds = 0;                  ///< since then
  std::int64_t made = 0;                    ///< calls so far
  /// What the last of them were, oldest first: equal numbers for calls of the same operation on
  /// the same axis with the same tensor.
  std::vector<std::uint64_t> recent = {};
};

/// One line of JSON, for the way between processes.
std::string to_text(const RankReport& report);
RankReport rank_report_from(std::string_view text);

}  // namespace heddle
