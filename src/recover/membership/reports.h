#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "comm/verdict.h"
#include "recover/membership/limits.h"
#include "recover/membership/status.h"

namespace heddle::recover {

/// What a rank does together with another, or else what it has done last: "rank 2 is in recv #16 of
/// pp from rank 0 (F of block 4, micro-batch 3)", "rank 2 has just ended ...". Empty before its
/// first call.
std::string at_work_with(const RankReport& own, int rank);

/// What the members of one epoch say that they are doing, as one of them knows it, and who is to
/// blame when one waits in vain. Not thread-safe.
class Reports {
 public:
  using Time = std::chrono::nanoseconds;

  Reports() = default;
  Reports(std::size_t members, Time now);

  /// From the rank, in this epoch; `report` as it was read from it. Older ones than the last do not
  /// count.
  void receive(std::size_t rank, const Status& status, RankReport report, Time now);

  /// Of all members but this one, which says it itself.
  bool all_are_stepping(std::size_t self) const;
  bool is_stepping(std::size_t rank) const { return of_[rank].is_stepping; }
  Status::End end(std::size_t rank) const { return of_[rank].end; }
  /// Whether the rank, as it said last, waits in a call itself: it does not hang by itself then.
  bool is_waiting(std::size_t rank) const;
  /// Since the rank was last heard of.
  Duration silence(std::size_t rank, Time now) const { return now - of_[rank].at; }

  /// judge(), with what this member is doing now.
  std::optional<Verdict> verdict(const RankReport& own, Duration limit, Time now) const;
  /// The same where a member is known to be gone, or silent: for the user.
  std::string text_of_gone(std::size_t rank, const RankReport& own, Time now) const;

 private:
  struct Of {
    RankReport report = {};
    Time at{};
    std::uint64_t sequence = 0;
    bool is_stepping = false;
    Status::End end = Status::End::none;
  };
  std::vector<RankReport> now(const RankReport& own, Time now) const;

  std::vector<Of> of_;  // by rank
};

}  // namespace heddle::recover
