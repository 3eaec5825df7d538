#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "parallel/schedule/schedule.h"

namespace heddle {
namespace {

/// What one rank has done so far, and whether it may do the next thing: every action once, behind
/// all that it needs.
class OrderCheck {
 public:
  OrderCheck(const Schedule& schedule, int rank, std::vector<Diagnostic>& found)
      : schedule_(schedule), rank_(rank), found_(found) {}

  void run() {
    const auto& actions = schedule_.by_rank[static_cast<std::size_t>(rank_)];
    for (const Action& action : actions) {
      if (action.act != Act::reduce_grads && action.act != Act::step) visit(action);
    }
    for (int stage = rank_; stage < schedule_.stages; stage += schedule_.ranks()) {
      for (int mb = 0; mb < schedule_.microbatches; ++mb) {
        if (!is_done(Act::w, stage, mb)) {
          report(fmt::format("micro-batch {} on stage {} is not finished", mb, stage));
        }
      }
    }
    const auto is_end = [](const Action& action) {
      return action.act == Act::reduce_grads || action.act == Act::step;
    };
    const std::size_t n = actions.size();
    if (n < 2 || actions[n - 2].act != Act::reduce_grads || actions[n - 1].act != Act::step ||
        std::ranges::count_if(actions, is_end) != 2) {
      report("does not end with the reduction of gradients and the step");
    }
  }

 private:
  void visit(const Action& action) {
    const auto done = [&](Act act) { return is_done(act, action.stage, action.microbatch); };
    const bool is_first = action.stage == 0, is_last = action.stage == schedule_.stages - 1;
    bool ready = true;
    switch (action.act) {
      case Act::f: ready = is_first || done(Act::recv_act); break;
      case Act::b:
      case Act::bw: ready = done(Act::f) && (is_last || done(Act::recv_grad)); break;
      case Act::w: ready = done(Act::b); break;
      case Act::send_act: ready = done(Act::f); break;
      case Act::send_grad: ready = done(Act::b); break;
      default: break;
    }
    const Act first_half = action.act == Act::bw ? Act::b : action.act;
    if (!ready || done(first_half)) {
      report(fmt::format("{} on stage {} is out of order", to_text(action), action.stage));
    }
    done_.insert({first_half, action.stage, action.microbatch});
    if (action.act == Act::bw) done_.insert({Act::w, action.stage, action.microbatch});
  }

  bool is_done(Act act, int stage, int mb) const { return done_.contains({act, stage, mb}); }
  void report(std::string message) { found_.push_back({rank_, std::move(message)}); }

  const Schedule& schedule_;
  int rank_;
  std::vector<Diagnostic>& found_;
  std::set<std::tuple<Act, int, int>> done_;  // with stage and micro-batch
};

/// Runs the ranks against each other: sends never wait, a receive waits for its send. What cannot
/// move at the end is a deadlock or a receive that nobody serves.
void check_communication(const Schedule& schedule, std::vector<Diagnostic>& found) {
  using Message =
      std::tuple<Act, int, int, int, int>;  // kind, from, to, boundary stage, micro-batch
  std::multiset<Message> in_flight;
  const auto message = [](const Action& action, int rank) {
    const bool forward = action.act == Act::send_act || action.act == Act::recv_act;
    const bool sends = action.act == Act::send_act || action.act == Act::send_grad;
    const int boundary = forward == sends ? action.stage : action.stage - 1;
    return Message{forward ? Act::send_act : Act::send_grad, sends ? rank : action.peer,
                   sends ? action.peer : rank, boundary, action.microbatch};
  };
  std::vector<std::size_t> at(schedule.by_rank.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < at.size(); ++rank) {
      const auto& actions = schedule.by_rank[rank];
      while (at[rank] < actions.size()) {
        const Action& action = actions[at[rank]];
        const Message key = message(action, static_cast<int>(rank));
        if (action.act == Act::send_act || action.act == Act::send_grad) in_flight.insert(key);
        if (action.act == Act::recv_act || action.act == Act::recv_grad) {
          const auto arrived = in_flight.find(key);
          if (arrived == in_flight.end()) break;
          in_flight.erase(arrived);
        }
        ++at[rank];
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < at.size(); ++rank) {
    if (at[rank] == schedule.by_rank[rank].size()) continue;
    const Action& stuck = schedule.by_rank[rank][at[rank]];
    found.push_back({static_cast<int>(rank),
                     fmt::format("waits for ever for {} of micro-batch {} on stage {} from rank {}",
                                 stuck.act == Act::recv_act ? "the activation" : "the gradient",
                                 stuck.microbatch, stuck.stage, stuck.peer)});
  }
  for (const auto& [kind, from, to, stage, mb] : in_flight) {
    found.push_back(
        {from,
         fmt::format("what it sends of micro-batch {} to rank {} is never received", mb, to)});
  }
}

}  // namespace

std::vector<Diagnostic> validate(const Schedule& lowered) {
  std::vector<Diagnostic> found;
  for (int rank = 0; rank < lowered.ranks(); ++rank) OrderCheck(lowered, rank, found).run();
  check_communication(lowered, found);
  return found;
}

std::vector<int> peak_in_flight(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const auto& actions : schedule.by_rank) {
    int now = 0, peak = 0;
    for (const Action& action : actions) {
      if (action.act == Act::f) peak = std::max(peak, ++now);
      if (action.act == Act::w || action.act == Act::bw) --now;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace heddle
