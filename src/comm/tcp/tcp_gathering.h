#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/tcp/tcp_callers.h"
#include "comm/tcp/tcp_join.h"
#include "comm/waiting_line.h"

namespace heddle {

/// Rank 0 while the others join (see join_ranks).
class Gathering {
 public:
  Gathering(const TcpPlace& place, const JoinOptions& options);
  JoinedRanks gather();

 private:
  using Clock = std::chrono::steady_clock;
  struct Member {
    Socket socket;
    Hello hello = {};
    Seat seat = {};
    bool is_ready = false;
  };

  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  bool is_again() const { return place_.again.number > 0; }
  std::vector<int> missing() const;
  /// Whether one of the ranks that go on with this one only is in `ranks`.
  bool belongs_to(int rank, const std::vector<int>& ranks) const;
  /// Of those who may be missing where ranks meet again, who is waited for all the same.
  std::vector<int> awaited() const;
  /// Goes on without those who did not come and who belongs to them.
  void leave_incomplete();
  void send_left(const Socket& to, const std::string& text) const;
  void wait_for_all();
  void wait_until_ready();
  /// Sleeps until something comes, or for a moment.
  void wait_for_news();
  void notice_gone();
  void admit(Callers::Guest& guest);
  void hand_out_table();
  /// Tells the user and everybody who came, and throws. `teller`: a rank that has told the user
  /// already.
  [[noreturn]] void fail_all(const std::string& text, const std::string& hint,
                             const Socket* caller = nullptr, int teller = 0);
  void let_them_read();

  const TcpPlace& place_;
  const JoinOptions& options_;
  const Hello own_;
  Callers callers_;
  const Clock::time_point until_;
  WaitingLine line_;
  std::vector<Member> members_;  // by rank
};

}  // namespace heddle
