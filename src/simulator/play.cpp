#include "simulator/play.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"

namespace heddle {
namespace {

bool computes(Act act) { return act == Act::f || act == Act::b || act == Act::w || act == Act::bw; }

double duration(Act act, const StageTimes& times) {
  switch (act) {
    case Act::f: return times.f;
    case Act::b: return times.b;
    case Act::w: return times.w;
    case Act::bw: return times.b + times.w;
    default: return 0.0;
  }
}

class Player {
 public:
  Player(const Schedule& schedule, std::span<const StageTimes> times)
      : schedule_(schedule), times_(times) {
    played_.by_rank.resize(schedule.by_rank.size());
  }

  Played run() {
    std::size_t left = 0;
    for (const auto& actions : schedule_.by_rank) left += actions.size();
    while (left > 0) {
      const std::size_t before = left;
      for (std::size_t rank = 0; rank < played_.by_rank.size(); ++rank) {
        const auto& actions = schedule_.by_rank[rank];
        auto& done = played_.by_rank[rank];
        while (done.size() < actions.size() && advance(actions[done.size()], done)) --left;
      }
      HEDDLE_CHECK(left < before, "a schedule that was not validated does not end");
    }
    measure();
    return std::move(played_);
  }

 private:
  /// Kind of the send, its stage, micro-batch.
  using Message = std::tuple<Act, int, int>;

  /// Does the next action of a rank, unless it waits for what is not sent yet.
  bool advance(const Action& action, std::vector<PlayedAction>& done) {
    const double free = done.empty() ? 0.0 : done.back().end;
    double end = free;
    const auto& times = times_[static_cast<std::size_t>(action.stage)];
    switch (action.act) {
      case Act::send_act:
      case Act::send_grad:
        arrival_[{action.act, action.stage, action.microbatch}] = free + times.hop;
        break;
      case Act::recv_act:
      case Act::recv_grad: {
        const bool is_act = action.act == Act::recv_act;
        const auto sent =
            arrival_.find({is_act ? Act::send_act : Act::send_grad,
                           is_act ? action.stage - 1 : action.stage + 1, action.microbatch});
        if (sent == arrival_.end()) return false;
        end = std::max(free, sent->second);
        break;
      }
      default: end = free + duration(action.act, times);
    }
    done.push_back({action, free, end});
    return true;
  }

  void measure() {
    double all_busy = 0.0;
    for (const auto& done : played_.by_rank) {
      double busy = 0.0, first = -1.0, last = 0.0;
      for (const auto& [action, begin, end] : done) {
        if (!computes(action.act)) continue;
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
  std::map<Message, double> arrival_;
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

Played play(const Schedule& lowered, std::span<const StageTimes> times) {
  HEDDLE_CHECK(times.size() == static_cast<std::size_t>(lowered.stages()),
               "times of {} stages for a schedule of {}", times.size(), lowered.stages());
  return Player(lowered, times).run();
}

}  // namespace heddle
