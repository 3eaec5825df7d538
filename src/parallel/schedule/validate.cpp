#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "parallel/schedule/schedule.h"

namespace heddle {
namespace {

using Item = std::pair<int, int>;  // stage, micro-batch

/// Every f once, then its b (or bw) once, then its w once; nothing after the step.
void check_order(const Schedule& schedule, int rank, std::vector<Diagnostic>& found) {
  std::map<Item, int> progress;  // 0 nothing, 1 after f, 2 after b, 3 after w
  const auto advance = [&](const Action& action, int from, int to, const char* name) {
    int& state = progress[{action.stage, action.microbatch}];
    if (state != from) {
      found.push_back({rank, fmt::format("{} of micro-batch {} on stage {} is out of order", name,
                                         action.microbatch, action.stage)});
    }
    state = to;
  };
  for (const Action& action : schedule.by_rank[static_cast<std::size_t>(rank)]) {
    if (action.act == Act::f) advance(action, 0, 1, "F");
    if (action.act == Act::b) advance(action, 1, 2, "B");
    if (action.act == Act::w) advance(action, 2, 3, "W");
    if (action.act == Act::bw) advance(action, 1, 3, "BW");
  }
  for (int stage = rank; stage < schedule.stages; stage += schedule.ranks()) {
    for (int mb = 0; mb < schedule.microbatches; ++mb) {
      if (progress[{stage, mb}] != 3) {
        found.push_back(
            {rank, fmt::format("micro-batch {} on stage {} is not finished", mb, stage)});
      }
    }
  }
}

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
  for (int rank = 0; rank < lowered.ranks(); ++rank) check_order(lowered, rank, found);
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
