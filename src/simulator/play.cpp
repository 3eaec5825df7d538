#include "simulator/play.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "base/check.h"
#include "parallel/schedule/advance.h"

namespace heddle {
namespace {

class Player {
 public:
  Player(const Schedule& schedule, std::span<const StageTimes> times,
         const VocabularyTimes& vocabulary, const HopTimes& hops)
      : schedule_(schedule), times_(times), vocabulary_(vocabulary), hops_(hops) {
    played_.by_rank.resize(schedule.by_rank.size());
  }

  Played run() {
    std::vector<std::size_t> next;
    const bool is_whole = advance_all(schedule_.by_rank, next, [&](const Action& action, int rank) {
      return advance(action, rank, played_.by_rank[static_cast<std::size_t>(rank)]);
    });
    HEDDLE_CHECK(is_whole, "a schedule that was not validated does not end");
    measure();
    return std::move(played_);
  }

 private:
  /// Kind of the send, its stage, micro-batch.
  using Message = std::tuple<Act, int, int>;

  struct Given {
    double arrival = 0.0;  // of the latest so far
    int givers = 0;
  };

  /// When what the action waits for is there, if it is on its way; 0 when it waits for nothing.
  std::optional<double> arrival_of(const Action& action) const {
    if (action.act == Act::recv_act || action.act == Act::recv_grad) {
      const bool is_act = action.act == Act::recv_act;
      const auto sent = arrival_.find({is_act ? Act::send_act : Act::send_grad,
                                       is_act ? schedule_.before(action.stage, action.microbatch)
                                              : schedule_.behind(action.stage, action.microbatch),
                                       action.microbatch});
      return sent == arrival_.end() ? std::nullopt : std::optional(sent->second);
    }
    if (action.act != Act::end) return 0.0;
    const auto given = given_.find({action.collective, action.microbatch});
    if (given == given_.end()) return std::nullopt;
    const bool is_whole =
        has_one_source(action.collective) || given->second.givers == schedule_.ranks();
    return is_whole ? std::optional(given->second.arrival) : std::nullopt;
  }

  double duration(const Action& action) const {
    const auto& times = times_[static_cast<std::size_t>(action.stage)];
    switch (action.act) {
      case Act::f: return times.f;
      case Act::b: return times.b;
      case Act::w: return times.w;
      case Act::bw: return times.b + times.w;
      case Act::vocab_s: return vocabulary_.s;
      case Act::vocab_t: return vocabulary_.t;
      default: return 0.0;
    }
  }

  /// Of what leaves now.
  double arrival_when_sent(const Action& action, int rank, double now) {
    const bool is_sent = action.act == Act::send_act || action.act == Act::send_grad;
    if (!hops_ || !is_sent) return now + times_[static_cast<std::size_t>(action.stage)].hop;
    const auto [latency, carried] = hops_(rank, action.peer);
    double& free = link_free_[{rank, action.peer}];
    free = std::max(free, now) + carried;
    return free + latency;
  }

  /// Does the next action of a rank, unless it waits for what is not sent yet.
  bool advance(const Action& action, int rank, std::vector<PlayedAction>& done) {
    const double free = done.empty() ? 0.0 : done.back().end;
    const auto arrival = arrival_of(action);
    if (!arrival) return false;
    const double later = arrival_when_sent(action, rank, free);
    if (action.act == Act::send_act || action.act == Act::send_grad) {
      arrival_[{action.act, action.stage, action.microbatch}] = later;
    }
    if (action.act == Act::begin && (!has_one_source(action.collective) || action.peer == rank)) {
      Given& given = given_[{action.collective, action.microbatch}];
      given.arrival = std::max(given.arrival, later);
      ++given.givers;
    }
    done.push_back({action, free, std::max(free, *arrival) + duration(action)});
    return true;
  }

  void measure() {
    double all_busy = 0.0;
    for (const auto& done : played_.by_rank) {
      double busy = 0.0, first = -1.0, last = 0.0;
      for (const auto& [action, begin, end] : done) {
        if (!is_computation(action.act) || end <= begin) continue;
        busy += end - begin;
        if (first < 0.0) first = begin;
        last = end;
      }
      all_busy += busy;
      played_.makespan = std::max(played_.makespan, last);
      played_.cost = std::max(played_.cost, last - std::max(0.0, first));
      played_.ideal = std::max(played_.ideal, busy);
    }
    if (played_.makespan <= 0.0) return;
    const double all = played_.makespan * static_cast<double>(schedule_.ranks());
    played_.bubble_fraction = (all - all_busy) / all;
    played_.bubble_over_ideal = (all - all_busy) / all_busy;
    played_.bubble_cost_rate = (played_.cost - played_.ideal) / played_.cost;
  }

  const Schedule& schedule_;
  std::span<const StageTimes> times_;
  Played played_;
  VocabularyTimes vocabulary_;
  const HopTimes& hops_;
  std::map<std::pair<int, int>, double> link_free_;  // from when, by sender and receiver
  std::map<Message, double> arrival_;
  std::map<std::pair<Exchange, int>, Given> given_;  // with the micro-batch
};

}  // namespace

std::vector<StageTimes> even_times(const Schedule& schedule, const StageTimes& whole_rank) {
  std::vector<StageTimes> times;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const auto parts = static_cast<double>(stages_of(schedule, schedule.rank_of(stage)).size());
    times.push_back(
        {whole_rank.f / parts, whole_rank.b / parts, whole_rank.w / parts, whole_rank.hop});
  }
  return times;
}

namespace {

void check_times(const Schedule& lowered, std::span<const StageTimes> times) {
  HEDDLE_CHECK(times.size() == static_cast<std::size_t>(lowered.stages()),
               "times of {} stages for a schedule of {}", times.size(), lowered.stages());
}

}  // namespace

Played play(const Schedule& lowered, std::span<const StageTimes> times,
            const VocabularyTimes& vocabulary) {
  check_times(lowered, times);
  return Player(lowered, times, vocabulary, {}).run();
}

Played play(const Schedule& lowered, std::span<const StageTimes> times, const HopTimes& hops) {
  check_times(lowered, times);
  return Player(lowered, times, {}, hops).run();
}

}  // namespace heddle
