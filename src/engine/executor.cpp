#include "engine/executor.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace heddle {
namespace {

/// Where the schedule needs no more: a stage then runs ahead of its neighbour by one.
constexpr int kLeastSendsOutstanding = 2;
constexpr std::size_t kReceivesPosted = 2;

bool is_receive(const Action& action) {
  return action.act == Act::recv_act || action.act == Act::recv_grad;
}

/// One rank's walk through a schedule. Activations and gradients wait here between the action that
/// made or received them and the one that uses them.
class Walk {
 public:
  Walk(const std::vector<Action>& actions, const Schedule& schedule, Communicator& pipeline,
       Stage& stage, Stream& stream)
      : actions_(actions),
        schedule_(schedule),
        pipeline_(pipeline),
        stage_(stage),
        stream_(stream),
        sends_outstanding_(static_cast<std::size_t>(
            std::max(kLeastSendsOutstanding, messages_under_way(schedule)))) {}

  void perform(std::size_t index) {
    post_receives(index);
    const Action& action = actions_[index];
    const Key key{action.stage, action.microbatch};
    switch (action.act) {
      case Act::f: return forward(action, key);
      case Act::b:
        return hand_back(
            action, stage_.backward_input(action.stage, action.microbatch, take(gradients_, key)));
      case Act::w: return stage_.backward_weight(action.stage, action.microbatch);
      case Act::bw:
        return hand_back(action,
                         stage_.backward(action.stage, action.microbatch, take(gradients_, key)));
      case Act::send_act: return send(action, take(outputs_, key), 2 * (action.stage + 1));
      case Act::send_grad: return send(action, take(outputs_, key), 2 * (action.stage - 1) + 1);
      case Act::recv_act: return receive(activations_, key);
      case Act::recv_grad: return receive(gradients_, key);
      case Act::reduce_grads: return stage_.reduce_grads();
      case Act::step: return stage_.step();
      case Act::vocab_s:
      case Act::vocab_t:
      case Act::embed_f:
      case Act::embed_b: return stage_.vocabulary_pass(action.act, action.microbatch);
      case Act::begin:
        return stage_.begin_exchange(action.collective, action.microbatch, given(action));
      case Act::end: return end_exchange(action, key);
    }
  }

  void finish() {
    for (auto& [to, sends] : sends_) {
      for (const auto& [data, work] : sends) work.wait(stream_);
    }
  }

 private:
  using Key = std::pair<int, int>;  // stage, micro-batch
  using Boundary = std::map<Key, Tensor>;

  static Tensor take(Boundary& from, const Key& key) {
    auto found = from.extract(key);
    return found.empty() ? Tensor() : std::move(found.mapped());
  }

  bool is_here(int stage) const {
    return stage >= 0 && stage < schedule_.stages() && schedule_.rank_of(stage) == pipeline_.rank();
  }

  void forward(const Action& action, const Key& key) {
    const Tensor y = stage_.forward(action.stage, action.microbatch, take(activations_, key));
    if (is_last(action.stage) && !is_split()) return;
    if (is_here(action.stage + 1)) {
      activations_[{action.stage + 1, action.microbatch}] = y;
    } else {
      outputs_[key] = y;
    }
  }

  void hand_back(const Action& action, const Tensor& dx) {
    if (action.stage == 0 && !is_split()) return;
    if (is_here(action.stage - 1)) {
      gradients_[{action.stage - 1, action.microbatch}] = dx;
    } else {
      outputs_[{action.stage, action.microbatch}] = dx;
    }
  }

  bool is_split() const { return schedule_.vocabulary != 0; }
  bool is_last(int stage) const { return stage + 1 == schedule_.stages(); }

  /// What the first or the last stage, if it is here, has for an exchange with a single source.
  Tensor given(const Action& action) {
    return has_one_source(action.collective) ? take(outputs_, {action.stage, action.microbatch})
                                             : Tensor();
  }

  void end_exchange(const Action& action, const Key& key) {
    const Tensor taken = stage_.end_exchange(action.collective, action.microbatch);
    if (!taken.defined()) return;
    (action.collective == Exchange::embedding ? activations_ : gradients_)[key] = taken;
  }

  void send(const Action& action, const Tensor& data, int tag) {
    auto& outstanding = sends_[{action.peer, tag}];
    if (outstanding.size() == sends_outstanding_) {
      outstanding.front().second.wait(stream_);
      outstanding.pop_front();
    }
    outstanding.emplace_back(data, pipeline_.send(data, action.peer, stream_, tag));
  }

  void post_receives(std::size_t from) {
    for (; posted_.size() < kReceivesPosted && next_receive_ < actions_.size(); ++next_receive_) {
      const Action& action = actions_[next_receive_];
      if (!is_receive(action)) continue;
      const int tag = 2 * action.stage + (action.act == Act::recv_grad ? 1 : 0);
      const Tensor data = stage_.boundary(action.microbatch);
      posted_.emplace_back(data, pipeline_.recv(data, action.peer, stream_, tag));
    }
    HEDDLE_CHECK(next_receive_ > from || !is_receive(actions_[from]) || !posted_.empty(),
                 "a receive was not posted");
  }

  void receive(Boundary& to, const Key& key) {
    auto [data, work] = std::move(posted_.front());
    posted_.pop_front();
    work.wait(stream_);
    to[key] = std::move(data);
  }

  const std::vector<Action>& actions_;
  const Schedule& schedule_;
  Communicator& pipeline_;
  Stage& stage_;
  Stream& stream_;
  const std::size_t sends_outstanding_;  // to the same stage, in the same direction

  Boundary activations_, gradients_, outputs_;
  std::size_t next_receive_ = 0;
  std::deque<std::pair<Tensor, Work>> posted_;  // in the order of the schedule
  std::map<std::pair<int, int>, std::deque<std::pair<Tensor, Work>>> sends_;
};

}  // namespace

void execute(const Schedule& lowered, Communicator& pipeline, Stage& stage, Stream& stream,
             const OnAction& on_action) {
  const Stopwatch watch;
  const auto& actions = lowered.by_rank[static_cast<std::size_t>(pipeline.rank())];
  Walk walk(actions, lowered, pipeline, stage, stream);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const double begin = watch.seconds();
    walk.perform(i);
    if (on_action) on_action(actions[i], begin, watch.seconds());
  }
  walk.finish();
}

}  // namespace heddle
