#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "parallel/schedule/schedule.h"

namespace heddle {
namespace {

bool is_end(const Action& action) {
  return action.act == Act::reduce_grads || action.act == Act::step;
}
bool is_send(Act act) { return act == Act::send_act || act == Act::send_grad; }
bool is_receive(Act act) { return act == Act::recv_act || act == Act::recv_grad; }

/// The stage that a message comes from or goes to.
int other_stage(const Action& action) {
  const bool is_above = action.act == Act::send_act || action.act == Act::recv_grad;
  return is_above ? action.stage + 1 : action.stage - 1;
}

/// What one rank has done so far, and whether it may do the next thing: every action once, behind
/// all that it needs.
class OrderCheck {
 public:
  OrderCheck(const Schedule& schedule, int rank, std::vector<Diagnostic>& found)
      : schedule_(schedule), rank_(rank), found_(found) {}

  void run() {
    const auto& actions = schedule_.by_rank[static_cast<std::size_t>(rank_)];
    for (const Action& action : actions) {
      if (!is_end(action) && belongs_here(action)) visit(action);
    }
    for (const int stage : stages_of(schedule_, rank_)) {
      for (int mb = 0; mb < schedule_.microbatches; ++mb) {
        if (!is_done(Act::w, stage, mb)) {
          report(fmt::format("micro-batch {} on stage {} is not finished", mb, stage));
        }
      }
    }
    const std::size_t n = actions.size();
    if (n < 2 || actions[n - 2].act != Act::reduce_grads || actions[n - 1].act != Act::step ||
        std::ranges::count_if(actions, is_end) != 2) {
      report("does not end with the reduction of gradients and the step");
    }
  }

 private:
  bool belongs_here(const Action& action) {
    if (action.microbatch < 0 || action.microbatch >= schedule_.microbatches) {
      report(fmt::format("{} is of a micro-batch that the step does not have", to_text(action)));
      return false;
    }
    if (rank_of(action.stage) != rank_) {
      report(fmt::format("{} is of stage {}, which this rank does not have", to_text(action),
                         action.stage));
      return false;
    }
    const bool is_message = is_send(action.act) || is_receive(action.act);
    if (is_message && rank_of(other_stage(action)) != action.peer) {
      report(fmt::format("{} on stage {} names rank {}, which does not have the neighbouring stage",
                         to_text(action), action.stage, action.peer));
    }
    return true;
  }

  void visit(const Action& action) {
    const auto [act, stage, mb, peer, completes] = action;
    const auto done = [&](Act kind) { return is_done(kind, action.stage, action.microbatch); };
    bool ready = true;
    switch (act) {
      case Act::f: ready = has_input(stage - 1, Act::f, Act::recv_act, action); break;
      case Act::b:
      case Act::bw:
        ready = done(Act::f) && has_input(stage + 1, Act::b, Act::recv_grad, action);
        break;
      case Act::w: ready = done(Act::b); break;
      case Act::send_act: ready = done(Act::f); break;
      case Act::send_grad: ready = done(Act::b); break;
      default: break;
    }
    const Act first_half = act == Act::bw ? Act::b : act;
    if (!ready || done(first_half)) {
      report(fmt::format("{} on stage {} is out of order", to_text(action), stage));
    }
    const auto [latest, is_first] = latest_.try_emplace({act, stage}, mb);
    if (!is_first && mb < latest->second) {
      report(fmt::format("{} on stage {} comes behind micro-batch {}: they must ascend",
                         to_text(action), stage, latest->second));
    }
    latest->second = mb;
    done_.insert({first_half, stage, mb});
    if (act == Act::bw) done_.insert({Act::w, stage, mb});
  }

  /// Whether the result of the neighbouring stage is there: received, or made by this rank.
  bool has_input(int neighbour, Act made_by, Act received_by, const Action& action) const {
    if (neighbour < 0 || neighbour >= schedule_.stages()) return true;
    return rank_of(neighbour) == rank_ ? is_done(made_by, neighbour, action.microbatch)
                                       : is_done(received_by, action.stage, action.microbatch);
  }

  int rank_of(int stage) const {
    return stage < 0 || stage >= schedule_.stages() ? -1 : schedule_.rank_of(stage);
  }
  bool is_done(Act act, int stage, int mb) const { return done_.contains({act, stage, mb}); }
  void report(std::string message) { found_.push_back({rank_, std::move(message)}); }

  const Schedule& schedule_;
  int rank_;
  std::vector<Diagnostic>& found_;
  std::set<std::tuple<Act, int, int>> done_;   // with stage and micro-batch
  std::map<std::pair<Act, int>, int> latest_;  // micro-batch by kind and stage
};

/// Runs the ranks against each other: sends never wait, a receive waits for its send and takes the
/// oldest message of its channel. What cannot move at the end is a deadlock or a receive that
/// nobody serves.
class CommunicationCheck {
 public:
  CommunicationCheck(const Schedule& schedule, std::vector<Diagnostic>& found)
      : schedule_(schedule), found_(found), at_(schedule.by_rank.size(), 0) {}

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < at_.size(); ++rank) {
        const auto& actions = schedule_.by_rank[rank];
        for (; at_[rank] < actions.size(); ++at_[rank]) {
          if (!pass(actions[at_[rank]], static_cast<int>(rank))) break;
          moved = true;
        }
      }
    }
    report_stuck();
    report_unreceived();
  }

 private:
  /// Kind of the send, sender, receiver, stage of the sender.
  using Channel = std::tuple<Act, int, int, int>;

  static Channel channel(const Action& action, int rank) {
    const bool sends = is_send(action.act);
    const bool is_act = action.act == Act::send_act || action.act == Act::recv_act;
    return {is_act ? Act::send_act : Act::send_grad, sends ? rank : action.peer,
            sends ? action.peer : rank, sends ? action.stage : other_stage(action)};
  }

  bool pass(const Action& action, int rank) {
    if (is_send(action.act)) in_flight_[channel(action, rank)].push_back(action.microbatch);
    if (!is_receive(action.act)) return true;
    auto& messages = in_flight_[channel(action, rank)];
    if (messages.empty()) return false;
    if (messages.front() != action.microbatch) {
      found_.push_back({rank, fmt::format("{} on stage {} would receive micro-batch {}",
                                          to_text(action), action.stage, messages.front())});
    }
    messages.pop_front();
    return true;
  }

  void report_stuck() {
    for (std::size_t rank = 0; rank < at_.size(); ++rank) {
      if (at_[rank] == schedule_.by_rank[rank].size()) continue;
      const Action& stuck = schedule_.by_rank[rank][at_[rank]];
      found_.push_back(
          {static_cast<int>(rank),
           fmt::format("waits for ever for {} of micro-batch {} on stage {} from rank {}",
                       stuck.act == Act::recv_act ? "the activation" : "the gradient",
                       stuck.microbatch, stuck.stage, stuck.peer)});
    }
  }

  void report_unreceived() {
    for (const auto& [channel, messages] : in_flight_) {
      const auto& [kind, from, to, stage] = channel;
      for (const int mb : messages) {
        found_.push_back(
            {from,
             fmt::format("what it sends of micro-batch {} to rank {} is never received", mb, to)});
      }
    }
  }

  const Schedule& schedule_;
  std::vector<Diagnostic>& found_;
  std::vector<std::size_t> at_;  // the next action of each rank
  std::map<Channel, std::deque<int>> in_flight_;
};

}  // namespace

std::vector<Diagnostic> validate(const Schedule& lowered) {
  std::vector<Diagnostic> found;
  for (int rank = 0; rank < lowered.ranks(); ++rank) OrderCheck(lowered, rank, found).run();
  CommunicationCheck(lowered, found).run();
  return found;
}

}  // namespace heddle
