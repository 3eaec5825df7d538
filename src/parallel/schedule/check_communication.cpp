#include <fmt/core.h>

#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "parallel/schedule/advance.h"
#include "parallel/schedule/checks.h"

namespace heddle {
namespace {

/// Runs the ranks against each other: sends and the begin of a collective never wait; a receive
/// waits for its send and takes the oldest message of its channel; the end of a collective waits
/// for those who give. What cannot move at the end is a deadlock, or nobody serves it.
class CommunicationCheck {
 public:
  CommunicationCheck(const Schedule& schedule, std::vector<Diagnostic>& found)
      : schedule_(schedule), found_(found) {}

  void run() {
    advance_all(schedule_.by_rank, next_,
                [&](const Action& action, int rank) { return pass(action, rank); });
    report_stuck();
    report_unreceived();
  }

 private:
  /// Kind of the send, sender, receiver, stage of the sender.
  using Channel = std::tuple<Act, int, int, int>;

  Channel channel(const Action& action, int rank) const {
    const bool sends = is_send(action.act);
    const bool is_act = action.act == Act::send_act || action.act == Act::recv_act;
    return {is_act ? Act::send_act : Act::send_grad, sends ? rank : action.peer,
            sends ? action.peer : rank, sends ? action.stage : other_stage(schedule_, action)};
  }

  bool pass(const Action& action, int rank) {
    if (is_send(action.act)) in_flight_[channel(action, rank)].push_back(action.microbatch);
    if (action.act == Act::begin) given_[{action.collective, action.microbatch}].insert(rank);
    if (action.act == Act::end) return has_all(action);
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

  bool has_all(const Action& action) {
    const auto& ranks = given_[{action.collective, action.microbatch}];
    return has_one_source(action.collective)
               ? ranks.contains(action.peer)
               : ranks.size() == static_cast<std::size_t>(schedule_.ranks());
  }

  void report_stuck() {
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] == schedule_.by_rank[rank].size()) continue;
      const Action& stuck = schedule_.by_rank[rank][next_[rank]];
      const std::string what =
          stuck.act == Act::end
              ? fmt::format("the other ranks in {}", to_text(stuck))
              : fmt::format("{} of micro-batch {} on stage {} from rank {}",
                            stuck.act == Act::recv_act ? "the activation" : "the gradient",
                            stuck.microbatch, stuck.stage, stuck.peer);
      found_.push_back({static_cast<int>(rank), "waits for ever for " + what});
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
  std::vector<std::size_t> next_;  // by rank
  std::map<Channel, std::deque<int>> in_flight_;
  std::map<std::pair<Exchange, int>, std::set<int>> given_;  // by whom, with micro-batch
};

}  // namespace

void check_communication(const Schedule& lowered, std::vector<Diagnostic>& found) {
  CommunicationCheck(lowered, found).run();
}

}  // namespace heddle
