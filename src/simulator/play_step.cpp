#include "simulator/play_step.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <queue>

#include "simulator/network/flow_network.h"

namespace heddle {
namespace {

constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();
/// Instructions between two reports of progress.
constexpr std::uint64_t kReportEvery = 1 << 16;

class StepPlayer {
 public:
  StepPlayer(const StepProgram& program, double tolerance,
             const std::function<void(std::uint64_t, std::uint64_t)>& progress)
      : program_(program),
        progress_(progress),
        network_(program.capacities, tolerance),
        ranks_(program.by_rank.size()),
        transfers_(program.transfers.size()),
        channels_(program.channels.size()) {
    played_.ranks.resize(ranks_.size());
    played_.transfers.resize(transfers_.size());
    for (std::uint32_t id = 0; id < program.transfers.size(); ++id) {
      const int channel = program.transfers[id].channel;
      if (channel < 0) continue;
      transfers_[id].place = channels_[at(channel)].queue.size();
      channels_[at(channel)].queue.push_back(id);
    }
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      channels_[i].busy_before.resize(program.channels[i].ranks.size());
    }
    for (const auto& instructions : program.by_rank) all_ += instructions.size();
  }

  PlayedStep run() {
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) events_.push({0.0, false, rank});
    while (true) {
      const double next =
          events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().time;
      const auto ended = network_.advance(next);
      for (const auto& [id, time] : ended) {
        if (--transfers_[id].pieces == 0) {
          events_.push({time, true, static_cast<std::uint32_t>(id)});
        }
      }
      if (!ended.empty()) continue;  // what comes next may have changed
      if (events_.empty()) break;
      const Event event = events_.top();
      events_.pop();
      if (event.is_transfer) {
        end(event.who, event.time);
      } else {
        go_on(event.who, event.time);
      }
    }
    finish();
    return std::move(played_);
  }

 private:
  using Kind = StepProgram::Instruction::Kind;
  /// A transfer has ended, or a rank is free.
  struct Event {
    double time = 0.0;
    bool is_transfer = false;
    std::uint32_t who = 0;
    friend bool operator>(const Event& a, const Event& b) { return a.time > b.time; }
  };
  struct Rank {
    std::size_t next = 0;
    double computes_from = 0.0, computes_until = 0.0;  ///< what is computed now, or was last
    double debt = 0.0;                                 ///< to be added to the next computation
    double waits_from = 0.0;
    std::uint32_t next_waiter = kNobody;  ///< for the same transfer
  };
  struct Transfer {
    int issued = 0;
    std::size_t pieces = 0;  ///< under way
    std::size_t place = 0;   ///< in the queue of its channel
    std::uint32_t first_waiter = kNobody;
  };
  struct Channel {
    std::vector<std::uint32_t> queue;
    std::size_t head = 0;             ///< the next that begins something, and does not follow
    int under_way = 0;                ///< those that follow each other are one
    std::vector<double> busy_before;  ///< by rank of the channel, when it had nothing under way
  };

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  void go_on(std::uint32_t who, double time) {
    Rank& rank = ranks_[who];
    PlayedStep::Rank& played = played_.ranks[who];
    const auto& instructions = program_.by_rank[who];
    for (; rank.next < instructions.size(); ++rank.next) {
      const auto& [kind, what, seconds] = instructions[rank.next];
      switch (kind) {
        case Kind::action: played.action_begins.push_back(time); break;
        case Kind::issue: issue(what, time); break;
        case Kind::wait:
          if (!played_.transfers[what].has_ended) {
            rank.waits_from = time;
            rank.next_waiter = std::exchange(transfers_[what].first_waiter, who);
            return;
          }
          count_wait(who, what, time, time);
          break;
        case Kind::compute:
        case Kind::work: return occupy(who, time, kind == Kind::compute, seconds);
      }
      report();
    }
    played.end = time;
  }

  void occupy(std::uint32_t who, double time, bool is_computation, double seconds) {
    Rank& rank = ranks_[who];
    PlayedStep::Rank& played = played_.ranks[who];
    seconds += std::exchange(rank.debt, 0.0);
    if (is_computation) {
      rank.computes_from = time;
      rank.computes_until = time + seconds;
      if (seconds > 0.0) {
        if (played.first_compute < 0.0) played.first_compute = time;
        played.last_compute = time + seconds;
      }
    }
    (is_computation ? played.busy : played.work) += seconds;
    ++rank.next;
    report();
    events_.push({time + seconds, false, who});
  }

  /// Seconds that the rank has computed until `time`.
  double busy_until(int rank, double time) const {
    return played_.ranks[at(rank)].busy - std::max(0.0, ranks_[at(rank)].computes_until - time);
  }

  void issue(std::uint32_t id, double time) {
    Transfer& transfer = transfers_[id];
    if (++transfer.issued != program_.transfers[id].needed) return;
    played_.transfers[id].ready = time;
    const int channel = program_.transfers[id].channel;
    if (channel < 0) return begin(id, time);
    if (!program_.transfers[id].follows) return begin_next(channel, time);
    const std::uint32_t before = channels_[at(channel)].queue[transfer.place - 1];
    if (played_.transfers[before].has_ended) begin(id, time);
  }

  bool is_issued(std::uint32_t id) const {
    return transfers_[id].issued == program_.transfers[id].needed;
  }

  void begin_next(int index, double time) {
    Channel& channel = channels_[at(index)];
    const auto& ranks = program_.channels[at(index)].ranks;
    while (channel.under_way < program_.channels[at(index)].at_once &&
           channel.head < channel.queue.size() && is_issued(channel.queue[channel.head])) {
      const std::uint32_t id = channel.queue[channel.head++];
      while (follower(channel, channel.head)) ++channel.head;
      for (std::size_t i = 0; channel.under_way == 0 && i < ranks.size(); ++i) {
        channel.busy_before[i] = busy_until(ranks[i], time);
      }
      ++channel.under_way;
      begin(id, time);
    }
  }

  /// The one at this place of the queue, where it follows the one before.
  std::optional<std::uint32_t> follower(const Channel& channel, std::size_t place) const {
    if (place >= channel.queue.size()) return std::nullopt;
    const std::uint32_t id = channel.queue[place];
    return program_.transfers[id].follows ? std::optional(id) : std::nullopt;
  }

  void begin(std::uint32_t id, double time) {
    played_.transfers[id].begin = time;
    const int index = program_.transfers[id].path;
    if (index < 0) return events_.push({time, true, id});
    const StepProgram::Path& path = program_.paths[at(index)];
    if (path.pieces.empty()) return events_.push({time + path.latency_seconds, true, id});
    transfers_[id].pieces = path.pieces.size();
    for (const network::Piece& piece : path.pieces) network_.begin(time, piece, id);
  }

  void end(std::uint32_t id, double time) {
    PlayedStep::Transfer& played = played_.transfers[id];
    played.end = time;
    played.has_ended = true;
    if (const int channel = program_.transfers[id].channel; channel >= 0) {
      if (const auto next = follower(channels_[at(channel)], transfers_[id].place + 1)) {
        if (is_issued(*next)) begin(*next, time);
      } else {
        leave(channel, time);
        begin_next(channel, time);
      }
    }
    for (std::uint32_t who = transfers_[id].first_waiter; who != kNobody;) {
      const std::uint32_t next = std::exchange(ranks_[who].next_waiter, kNobody);
      count_wait(who, id, ranks_[who].waits_from, time);
      ++ranks_[who].next;
      report();
      go_on(who, time);
      who = next;
    }
  }

  void leave(int index, double time) {
    Channel& channel = channels_[at(index)];
    if (--channel.under_way > 0) return;
    const auto& [ranks, at_once, contention] = program_.channels[at(index)];
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      ranks_[at(ranks[i])].debt +=
          contention * (busy_until(ranks[i], time) - channel.busy_before[i]);
    }
  }

  void count_wait(std::uint32_t who, std::uint32_t id, double from, double until) {
    PlayedStep::Rank& rank = played_.ranks[who];
    const auto& [ready, begin, end, has_ended] = played_.transfers[id];
    const Traffic traffic = program_.transfers[id].traffic;
    if (traffic == Traffic::none) {
      rank.bubble += until - from;
      return;
    }
    const double seen = std::clamp(ready, from, until);
    const auto index = static_cast<std::size_t>(traffic);
    rank.bubble += seen - from;
    rank.exposed[index] += until - seen;
    rank.transferring[index] += end - begin;
  }

  void report() {
    if (++done_ % kReportEvery == 0 && progress_ && done_ < all_) progress_(done_, all_);
  }

  void finish() {
    for (std::uint32_t who = 0; who < ranks_.size(); ++who) {
      const auto& instructions = program_.by_rank[who];
      const std::size_t next = ranks_[who].next;
      if (next < instructions.size()) {
        played_.stuck.push_back({static_cast<int>(who), played_.ranks[who].action_begins.size() - 1,
                                 instructions[next].what});
      }
      played_.seconds = std::max(played_.seconds, played_.ranks[who].end);
    }
    if (progress_ && played_.stuck.empty()) progress_(all_, all_);
  }

  const StepProgram& program_;
  const std::function<void(std::uint64_t, std::uint64_t)>& progress_;
  network::FlowNetwork network_;
  std::vector<Rank> ranks_;
  std::vector<Transfer> transfers_;
  std::vector<Channel> channels_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  PlayedStep played_;
  std::uint64_t done_ = 0, all_ = 0;
};

}  // namespace

PlayedStep play_step(const StepProgram& program, double tolerance,
                     const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  return StepPlayer(program, tolerance, progress).run();
}

}  // namespace heddle
