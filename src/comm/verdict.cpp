#include "comm/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace heddle {
namespace {

using Open = RankReport::Open;

/// A rank that somebody waits for.
struct Suspect {
  int rank;
  const Open* call;  // that it has not begun
  int waiting;       // who waits in that call
};

class Inquiry {
 public:
  Inquiry(std::span<const RankReport> reports, double limit) : reports_(reports), limit_(limit) {}

  std::optional<Verdict> verdict() {
    for (const RankReport& report : reports_) {
      if (report.is_gone && !report.has_ended) return gone(report);
    }
    const Open* stalled = nullptr;
    int waiting = -1;
    for (const RankReport& report : reports_) {
      if (report.silent_seconds > limit_ && !report.has_ended) return silent(report);
      for (const Open& call : report.open) {
        if (call.seconds > limit_ && (!stalled || call.seconds > stalled->seconds)) {
          stalled = &call;
          waiting = report.rank;
        }
      }
    }
    if (!stalled) return std::nullopt;
    // Who is silent is the one, also when the call began a moment before the silence.
    for (const RankReport& report : reports_) {
      if (report.silent_seconds > limit_ / 2 && !report.has_ended) return silent(report);
    }
    follow(*stalled, waiting);
    if (suspects_.empty()) return circle(*stalled, waiting);
    return missing(*std::max_element(suspects_.begin(), suspects_.end(),
                                     [&](const Suspect& a, const Suspect& b) {
                                       return idle_seconds(a.rank) < idle_seconds(b.rank);
                                     }));
  }

 private:
  const RankReport& report(int rank) const { return reports_[static_cast<std::size_t>(rank)]; }
  double idle_seconds(int rank) const {
    return report(rank).last_call.empty() ? 1e30 : report(rank).idle_seconds;
  }

  bool has_begun(int rank, const RankReport::Line& line, std::int64_t sequence) const {
    const auto& begun = report(rank).begun;
    const auto found = begun.find(line);
    return found != begun.end() && found->second >= sequence;
  }

  /// The ranks that have not come to the call in which `waiting` waits.
  std::vector<int> absent(const Open& call, int waiting) const {
    std::vector<int> absent;
    if (is_point_to_point(call.op)) {
      const CommOp other = call.op == CommOp::send ? CommOp::recv : CommOp::send;
      const RankReport::Line line{call.group, other, waiting, call.message_tag};
      if (!has_begun(call.peer, line, call.sequence)) absent.push_back(call.peer);
      return absent;
    }
    for (const int rank : call.ranks) {
      const RankReport::Line line{.group = call.group};
      if (rank != waiting && !has_begun(rank, line, call.sequence)) absent.push_back(rank);
    }
    return absent;
  }

  /// The call in which the rank itself waits; null when it does not.
  const Open* held_by(int rank) const {
    for (const Open& call : report(rank).open) {
      if (call.holds_rank && !absent(call, rank).empty()) return &call;
    }
    return nullptr;
  }

  void follow(const Open& call, int waiting) {
    for (const int rank : absent(call, waiting)) {
      if (!visited_.insert(rank).second) continue;
      if (const Open* next = held_by(rank)) {
        follow(*next, rank);
      } else {
        suspects_.push_back({rank, &call, waiting});
      }
    }
  }

  /// "rank 3", or "rank 3 (site 1)".
  std::string name_of(int rank) const {
    const std::string& place = report(rank).place;
    return place.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, place);
  }

  std::string last_call_of(int rank) const {
    const RankReport& r = report(rank);
    if (r.last_call.empty()) return "it has not ended any call";
    // What a rank said of itself was true when it last gave a sign of life.
    return fmt::format("its last call was {}, which ended {:.1f} s ago", r.last_call,
                       r.idle_seconds + r.silent_seconds);
  }

  /// Of a rank that never said anything: rank 0, which the others know only as their judge.
  std::string how_far_others_are(int lost) const {
    for (const RankReport& other : reports_) {
      if (other.rank == lost || other.is_gone || other.last_call.empty()) continue;
      const bool is_in_call = !other.open.empty();
      return fmt::format("; rank {} {} {}", other.rank, is_in_call ? "is in" : "has just ended",
                         is_in_call ? other.open.back().text : other.last_call);
    }
    return "";
  }

  /// Where a rank was that says nothing any more. What it said last may be old; those who wait for
  /// it know better.
  std::string place_of(int lost) const {
    const Open* found = nullptr;
    int waiting = -1;
    for (const RankReport& other : reports_) {
      if (other.rank == lost || other.is_gone || other.has_ended) continue;
      for (const Open& call : other.open) {
        const bool is_better =
            !found || call.holds_rank > found->holds_rank ||
            (call.holds_rank == found->holds_rank && call.seconds > found->seconds);
        if (!is_better || !std::ranges::count(absent(call, other.rank), lost)) continue;
        found = &call;
        waiting = other.rank;
      }
    }
    if (found) return fmt::format("; rank {} waits for it in {}", waiting, found->text);
    const RankReport& last = report(lost);
    if (!last.open.empty()) return "; it was in " + last.open.back().text;
    if (!last.last_call.empty()) return "; " + last_call_of(lost);
    return how_far_others_are(lost);
  }

  /// The rank, and all others that are gone or silent too.
  std::vector<int> lost_with(int rank) const {
    std::vector<int> lost;
    for (const RankReport& r : reports_) {
      const bool is_lost = r.rank == rank || r.is_gone || r.silent_seconds > limit_;
      if (is_lost && !r.has_ended) lost.push_back(r.rank);
    }
    return lost;
  }

  Verdict gone(const RankReport& r) const {
    return {r.rank, fmt::format("the process of {} is gone{}", name_of(r.rank), place_of(r.rank)),
            lost_with(r.rank)};
  }

  Verdict silent(const RankReport& r) const {
    return {r.rank,
            fmt::format("{} has given no sign of life for {:.1f} s{}", name_of(r.rank),
                        r.silent_seconds, place_of(r.rank)),
            lost_with(r.rank)};
  }

  Verdict missing(const Suspect& suspect) const {
    const Open& call = *suspect.call;
    const std::string what =
        is_point_to_point(call.op)
            ? fmt::format("has not {} rank {}, which waits in {}",
                          call.op == CommOp::send ? "received from" : "sent to", suspect.waiting,
                          call.text)
            : fmt::format("has not entered {}", call.text);
    const bool has_ended = report(suspect.rank).has_ended;
    return {suspect.rank,
            fmt::format("{} {}{} after {:.1f} s; {}", name_of(suspect.rank),
                        has_ended ? "has ended and " : "", what, call.seconds,
                        last_call_of(suspect.rank)),
            has_ended ? std::vector<int>() : lost_with(suspect.rank)};
  }

  /// The only rank whose n-th call differs from that of all others, n being the first for which
  /// ranks differ. -1 when there is none, or ranks never were in step (as in a pipeline).
  int first_out_of_step() const {
    const auto oldest = [](const RankReport& r) {
      return r.made + 1 - static_cast<std::int64_t>(r.recent.size());
    };
    std::int64_t first = 1, last = 0;
    for (const RankReport& r : reports_) {
      first = std::max(first, oldest(r));
      last = std::max(last, r.made);
    }
    for (std::int64_t number = first; number <= last; ++number) {
      std::map<std::uint64_t, std::vector<int>> ranks_by_kind;
      std::size_t ranks = 0;
      for (const RankReport& r : reports_) {
        if (number > r.made) continue;
        ranks_by_kind[r.recent[static_cast<std::size_t>(number - oldest(r))]].push_back(r.rank);
        ++ranks;
      }
      if (ranks_by_kind.size() == 1) continue;
      constexpr std::int64_t kKnown = 8;
      if (ranks_by_kind.size() > 2 || ranks < 3 || (first > 1 && number - first < kKnown))
        return -1;
      const auto& a = ranks_by_kind.begin()->second;
      const auto& b = ranks_by_kind.rbegin()->second;
      return a.size() == 1 ? a.front() : b.size() == 1 ? b.front() : -1;
    }
    return -1;
  }

  /// Of the ranks that are all in this call, the only one whose host has not come out of it;
  /// negative when there is none.
  int only_one_not_on_device(const Open& stalled) const {
    int found = -1, on_device = 0;
    for (const int rank : stalled.ranks) {
      for (const Open& call : report(rank).open) {
        if (call.group != stalled.group || call.sequence != stalled.sequence) continue;
        if (is_point_to_point(call.op)) continue;
        if (call.is_on_device) {
          ++on_device;
        } else {
          found = found == -1 ? rank : -2;
        }
      }
    }
    return on_device > 0 ? found : -1;
  }

  /// Everybody waits for somebody who waits.
  Verdict circle(const Open& stalled, int waiting) const {
    const int odd = first_out_of_step();
    if (odd >= 0 && odd != waiting && held_by(odd)) return out_of_step(odd, waiting, stalled);
    if (odd == waiting) {
      const int other = absent(stalled, waiting).front();
      if (held_by(other)) return out_of_step(odd, other, *held_by(other));
    }
    return waited_for_by_most(stalled, waiting);
  }

  Verdict out_of_step(int odd, int other, const Open& call) const {
    return {odd,
            fmt::format("{} is out of step: it is in {}, rank {} waits in {}; {}", name_of(odd),
                        held_by(odd)->text, other, call.text, last_call_of(odd))};
  }

  Verdict waited_for_by_most(const Open& stalled, int waiting) const {
    std::size_t most = 1;
    int odd = -1, one = -1;
    const Open* call = nullptr;
    for (const RankReport& r : reports_) {
      for (const Open& open : r.open) {
        const auto ranks = absent(open, r.rank);
        if (is_point_to_point(open.op) || ranks.size() != 1 || !held_by(ranks.front())) continue;
        if (open.ranks.size() - 1 <= most) continue;
        most = open.ranks.size() - 1;
        odd = ranks.front();
        one = r.rank;
        call = &open;
      }
    }
    if (odd >= 0) return out_of_step(odd, one, *call);
    const auto others = absent(stalled, waiting);
    if (others.empty()) {
      if (const int rank = only_one_not_on_device(stalled); rank >= 0) {
        return {rank, fmt::format("rank {} has entered {}, but not handed it to its device after "
                                  "{:.1f} s, where the others wait; {}",
                                  rank, stalled.text, stalled.seconds, last_call_of(rank))};
      }
      return {-1, fmt::format("{} has not ended for {:.1f} s although all ranks have entered it",
                              stalled.text, stalled.seconds)};
    }
    const Open* other = held_by(others.front());
    return {-1,
            fmt::format("ranks wait for each other: rank {} is in {}, rank {} is in {}", waiting,
                        stalled.text, others.front(), other ? other->text : "no call")};
  }

  const std::span<const RankReport> reports_;
  const double limit_;
  std::set<int> visited_;
  std::vector<Suspect> suspects_;
};

}  // namespace

std::optional<Verdict> judge(std::span<const RankReport> reports, double limit) {
  return Inquiry(reports, limit).verdict();
}

}  // namespace heddle
