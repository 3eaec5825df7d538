#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"
#include "parallel/schedule/advance.h"
#include "parallel/schedule/checks.h"

namespace heddle {
namespace {

int duration(Act act) {
  if (act == Act::bw) return 2;
  return is_computation(act) && !is_vocabulary(act) ? 1 : 0;
}

/// When each message leaves and is taken, in units of f = b = w.
class MessageTimes {
 public:
  explicit MessageTimes(const Schedule& schedule)
      : schedule_(schedule), free_(schedule.by_rank.size(), 0) {
    std::vector<std::size_t> next;
    const bool is_whole = advance_all(schedule.by_rank, next, [&](const Action& action, int rank) {
      return pass(action, rank, free_[static_cast<std::size_t>(rank)]);
    });
    HEDDLE_CHECK(is_whole, "a schedule that was not validated does not end");
  }

  int most_under_way() const {
    int most = 0;
    for (const auto& [pair, line] : lines_) {
      // Both ascend: a rank's time does.
      std::size_t taken = 0;
      for (std::size_t sent = 0; sent < line.sent.size(); ++sent) {
        while (taken < line.taken.size() && line.taken[taken] < line.sent[sent]) ++taken;
        most = std::max(most, static_cast<int>(sent + 1 - taken));
      }
    }
    return most;
  }

 private:
  struct Line {
    std::vector<int> sent, taken;
  };
  struct Given {
    int givers = 0, latest = 0;
  };

  bool pass(const Action& action, int rank, int& free) {
    const auto key = [&](Act act, int stage) { return std::tuple(act, stage, action.microbatch); };
    if (is_send(action.act)) {
      sent_[key(action.act, action.stage)] = free;
      lines_[{rank, action.peer}].sent.push_back(free);
    } else if (is_receive(action.act)) {
      const Act send = action.act == Act::recv_act ? Act::send_act : Act::send_grad;
      const auto message = sent_.find(key(send, other_stage(schedule_, action)));
      if (message == sent_.end()) return false;
      free = std::max(free, message->second);
      lines_[{action.peer, rank}].taken.push_back(free);
    } else if (action.act == Act::begin) {
      Given& given = given_[{action.collective, action.microbatch}];
      if (has_one_source(action.collective) && action.peer != rank) return true;
      ++given.givers;
      given.latest = std::max(given.latest, free);
    } else if (action.act == Act::end) {
      const Given& given = given_[{action.collective, action.microbatch}];
      const int needed = has_one_source(action.collective) ? 1 : schedule_.ranks();
      if (given.givers < needed) return false;
      free = std::max(free, given.latest);
    }
    free += duration(action.act);
    return true;
  }

  const Schedule& schedule_;
  std::vector<int> free_;  // by rank
  std::map<std::tuple<Act, int, int>, int> sent_;
  std::map<std::pair<int, int>, Line> lines_;  // by sender and receiver
  std::map<std::pair<Exchange, int>, Given> given_;
};

}  // namespace

int messages_under_way(const Schedule& lowered) { return MessageTimes(lowered).most_under_way(); }

}  // namespace heddle
