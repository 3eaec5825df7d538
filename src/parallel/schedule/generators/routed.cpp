#include <algorithm>
#include <queue>
#include <tuple>

#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/generators/placement.h"

namespace heddle::generators {
namespace {

/// What passes take while the order is made: a backward twice a forward. The first rank, which all
/// micro-batches visit, has few blocks or none (model/cut_stages.h).
constexpr int kForward = 4, kLoss = 1, kFirst = 1;
/// Micro-batches that a stage keeps beyond what 1F1B does at the same place of a pipeline with all
/// stages: routes do not meet as regularly, and without would wait for each other.
constexpr int kMoreKept = 2;

constexpr int forward_of(int stage, int last) {
  return stage == 0 ? kFirst : stage == last ? kLoss : kForward;
}
constexpr int backward_of(int stage, int last) {
  return stage == last ? kLoss : 2 * forward_of(stage, last);
}

/// Lets ranks do what has arrived, a backward before a forward, and writes down the order. F and B
/// of a stage ascend with micro-batches: the oldest one that is not finished then never waits
/// behind a later one, so the bound on what is kept stops nobody for ever.
class RouteOrder {
 public:
  explicit RouteOrder(Schedule& schedule)
      : schedule_(schedule), stages_(at(schedule.stages())), free_(at(schedule.ranks()), 0) {
    for (int mb = 0; mb < schedule.microbatches; ++mb) {
      const std::vector<int>& route = schedule.routes[at(mb)];
      for (std::size_t place = 0; place < route.size(); ++place) {
        stages_[at(route[place])].visits.push_back(
            {mb, schedule.ranks() + kMoreKept - static_cast<int>(place), place == 0 ? 0 : kNever,
             kNever});
      }
    }
  }

  void run() {
    wake(0, schedule_.rank_of(0));
    while (!wakes_.empty()) {
      const auto [time, rank] = wakes_.top();
      wakes_.pop();
      if (free_[at(rank)] <= time) do_next(rank, time);
    }
  }

 private:
  static constexpr int kNever = -1;
  struct Visit {
    int microbatch = 0, most_kept = 0;
    std::int64_t input = kNever, gradient = kNever;  ///< when it has arrived
  };
  struct Stage {
    std::vector<Visit> visits = {};
    std::size_t forwards = 0, backwards = 0;  ///< done so far
  };

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  int last() const { return schedule_.stages() - 1; }

  void wake(std::int64_t time, int rank) { wakes_.emplace(time, rank); }

  static bool has_come(std::int64_t arrival, std::int64_t now) {
    return arrival != kNever && arrival <= now;
  }
  static bool may_go_back(const Stage& stage, std::int64_t now) {
    return stage.backwards < stage.forwards &&
           has_come(stage.visits[stage.backwards].gradient, now);
  }
  static bool may_go_on(const Stage& stage, std::int64_t now) {
    if (stage.forwards == stage.visits.size()) return false;
    const Visit& next = stage.visits[stage.forwards];
    return has_come(next.input, now) && stage.forwards - stage.backwards < at(next.most_kept);
  }

  /// The head first: what it makes is what others wait for.
  void do_next(int rank, std::int64_t now) {
    for (int number = last(); number >= 0; --number) {
      Stage& stage = stages_[at(number)];
      if (schedule_.rank_of(number) != rank) continue;
      if (may_go_back(stage, now)) return backward(number, stage.visits[stage.backwards++], now);
      if (may_go_on(stage, now)) return forward(number, stage.visits[stage.forwards++], now);
    }
  }

  void forward(int number, Visit& visit, std::int64_t now) {
    const int mb = visit.microbatch;
    const std::int64_t end = write({Act::f, number, mb}, now, forward_of(number, last()));
    if (number == last()) {
      visit.gradient = end;
    } else {
      give(&Visit::input, schedule_.behind(number, mb), mb, end);
    }
  }
  void backward(int number, const Visit& visit, std::int64_t now) {
    const int mb = visit.microbatch;
    const std::int64_t end = write({Act::bw, number, mb}, now, backward_of(number, last()));
    const int before = schedule_.before(number, mb);
    if (before >= 0) give(&Visit::gradient, before, mb, end);
  }

  std::int64_t write(const Action& action, std::int64_t now, int takes) {
    const int rank = schedule_.rank_of(action.stage);
    schedule_.by_rank[at(rank)].push_back(action);
    free_[at(rank)] = now + takes;
    wake(now + takes, rank);
    return now + takes;
  }
  void give(std::int64_t Visit::*what, int number, int microbatch, std::int64_t when) {
    auto& visits = stages_[at(number)].visits;
    const auto visit = std::ranges::lower_bound(visits, microbatch, {}, &Visit::microbatch);
    (*visit).*what = when;
    wake(when, schedule_.rank_of(number));
  }

  Schedule& schedule_;
  std::vector<Stage> stages_;
  std::vector<std::int64_t> free_;  // by rank: from when
  using Wake = std::pair<std::int64_t, int>;
  std::priority_queue<Wake, std::vector<Wake>, std::greater<>> wakes_;
};

}  // namespace

Schedule routed(const PipeShape& shape) {
  if (shape.ranks == 1) return one_f_one_b(shape);
  Schedule schedule = looped(shape);
  schedule.rank_of_stage.push_back(0);
  const std::vector<Route> routes =
      shape.routes.empty() ? make_routes(shape.ranks, 0.0, "") : shape.routes;
  for (int mb = 0; mb < shape.microbatches; ++mb) {
    schedule.routes.push_back(routes[static_cast<std::size_t>(mb) % routes.size()]);
    schedule.routes.back().push_back(shape.ranks);
  }
  RouteOrder(schedule).run();
  return schedule;
}

}  // namespace heddle::generators
