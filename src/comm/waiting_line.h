#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "observe/terminal.h"

namespace heddle {

/// "1-3, 7 and 9", at most some twenty of them: "1, 3, 5 and 210 more". Ranks in ascending order.
std::string rank_list(const std::vector<int>& ranks);

/// Says what is waited for, from the second second on: on a terminal as a line that is rewritten in
/// place, elsewhere as a plain line now and then.
class WaitingLine {
 public:
  /// `limit`: how long is waited, for the reader; 0: for ever. `pause` is between two plain lines
  /// of the first minute, later it is 30 s. None: nothing but on a terminal.
  WaitingLine(std::chrono::duration<double> limit, std::chrono::seconds pause);
  ~WaitingLine();
  WaitingLine(const WaitingLine&) = delete;
  WaitingLine& operator=(const WaitingLine&) = delete;

  /// Call it at least every kTick.
  void show(const std::string& text);
  /// Whether anything was to be seen.
  bool has_shown() const { return has_shown_; }
  double seconds() const;

  static constexpr std::chrono::milliseconds kTick{500};

 private:
  const std::chrono::duration<double> limit_;
  const std::chrono::seconds pause_;
  const observe::Terminal terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double next_ = 2;  // seconds after the start
  bool has_shown_ = false;
};

}  // namespace heddle
