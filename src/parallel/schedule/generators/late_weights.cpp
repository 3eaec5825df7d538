#include "parallel/schedule/generators/late_weights.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "base/check.h"
#include "parallel/schedule/advance.h"

namespace heddle::generators {
namespace {

class Weaver {
 public:
  Weaver(const Schedule& given, int capacity)
      : given_(given), capacity_(capacity), ranks_(given.by_rank.size()) {}

  Schedule run() {
    std::vector<std::size_t> next;
    const bool is_whole = advance_all(given_.by_rank, next, [&](const Action& action, int rank) {
      return advance(ranks_[static_cast<std::size_t>(rank)], action);
    });
    HEDDLE_CHECK(is_whole, "the order of f and b does not end");
    Schedule woven = given_;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      while (!ranks_[rank].waiting.empty()) put_weights(ranks_[rank]);
      woven.by_rank[rank] = std::move(ranks_[rank].out);
    }
    return woven;
  }

 private:
  struct Rank {
    int free = 0;  // from this slot on
    int in_flight = 0;
    std::deque<Action> waiting;
    std::vector<Action> out;
  };

  bool advance(Rank& rank, const Action& action) {
    const auto ready = slot_of_inputs(action);
    if (!ready) return false;
    const auto must_free = [&] { return action.act == Act::f && rank.in_flight >= capacity_; };
    while (!rank.waiting.empty() && (must_free() || rank.free < *ready)) put_weights(rank);
    rank.free = std::max(rank.free, *ready) + 1;
    end_[{action.act, action.stage, action.microbatch}] = rank.free;
    rank.out.push_back(action);
    if (action.act == Act::f) ++rank.in_flight;
    if (action.act == Act::b) rank.waiting.push_back({Act::w, action.stage, action.microbatch});
    return true;
  }

  void put_weights(Rank& rank) {
    rank.out.push_back(rank.waiting.front());
    rank.waiting.pop_front();
    ++rank.free;
    --rank.in_flight;
  }

  /// The slot from which on all is there that comes from neighbouring stages, if they are done.
  std::optional<int> slot_of_inputs(const Action& action) const {
    const bool is_forward = action.act == Act::f;
    const int neighbour = is_forward ? action.stage - 1 : action.stage + 1;
    if (neighbour < 0 || neighbour >= given_.stages()) return 0;
    const auto input = end_.find({action.act, neighbour, action.microbatch});
    return input == end_.end() ? std::nullopt : std::optional(input->second);
  }

  const Schedule& given_;
  int capacity_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<Act, int, int>, int> end_;  // by kind, stage and micro-batch
};

}  // namespace

Schedule with_late_weights(const Schedule& forward_and_backward, int capacity) {
  return Weaver(forward_and_backward, capacity).run();
}

}  // namespace heddle::generators
