#include "engine/executor.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "base/clock.h"

namespace heddle {
namespace {

/// Where the schedule needs no more: a stage then runs ahead of its neighbour by one.
constexpr int kLeastSendsUnderWay = 2;

/// What a communicator's calls are for, as a verdict says it. A message is received for the pass
/// that begins with it.
const char* what_of(const Action& action) {
  switch (action.act) {
    case Act::send_act: return "activations";
    case Act::send_grad: return "gradients of activations";
    case Act::recv_act: return symbol(Act::f);
    case Act::recv_grad: return symbol(Act::b);
    default: return symbol(action.act);
  }
}

/// One rank's walk through a step. Activations and gradients wait here between the op that made or
/// received them and the one that uses them.
class Walk {
 public:
  Walk(const Schedule& schedule, Communicator& pipeline, Stage& stage, Stream& stream,
       const OnAction& on_action)
      : schedule_(schedule),
        pipeline_(pipeline),
        stage_(stage),
        stream_(stream),
        on_action_(on_action) {}

  void perform(const StepOp& op) {
    switch (op.kind) {
      case StepOp::Kind::action: return begin_action(*op.action);
      case StepOp::Kind::compute: made_ = stage_.compute(op, std::exchange(made_, {})); return;
      case StepOp::Kind::post: return post(*op.action);
      case StepOp::Kind::receive: return receive(*op.action);
      case StepOp::Kind::send: return send(*op.action);
      case StepOp::Kind::sent: return end_send(*op.action);
      case StepOp::Kind::begin: return stage_.begin_exchange(*op.action, given(*op.action));
      case StepOp::Kind::end: return end_exchange(*op.action);
      default: return stage_.perform(op);
    }
  }

  /// Ends the action under way.
  void end_action() {
    if (action_ == nullptr) return;
    hand_over(*action_, std::exchange(made_, {}));
    if (on_action_) on_action_(*action_, began_, watch_.seconds());
    action_ = nullptr;
  }

 private:
  using Key = std::pair<int, int>;  // stage, micro-batch
  using Boundary = std::map<Key, Tensor>;
  struct UnderWay {
    Tensor data;  // absent where a codec's bytes travel
    CodedMessages::Message message;
  };

  static Key key_of(const Action& action) { return {action.stage, action.microbatch}; }
  static Tensor take(Boundary& from, const Key& key) {
    auto found = from.extract(key);
    return found.empty() ? Tensor() : std::move(found.mapped());
  }

  void begin_action(const Action& action) {
    end_action();
    action_ = &action;
    began_ = watch_.seconds();
    tag(action, nullptr);
    if (action.act == Act::f) made_ = take(activations_, key_of(action));
    if (action.act == Act::b || action.act == Act::bw) made_ = take(gradients_, key_of(action));
  }

  void tag(const Action& action, std::shared_ptr<const std::string> unit) {
    pipeline_.flight().set_tag(
        {.what = what_of(action), .unit = std::move(unit), .microbatch = action.microbatch});
  }

  bool is_here(int stage) const {
    return stage >= 0 && schedule_.rank_of(stage) == pipeline_.rank();
  }
  bool is_split() const { return schedule_.vocabulary != 0; }

  /// What a pass over a stage made, to the stage behind it (in the backward: before) or to whatever
  /// sends it there.
  void hand_over(const Action& action, Tensor made) {
    const bool is_forward = action.act == Act::f;
    if (!is_forward && action.act != Act::b && action.act != Act::bw) return;
    const int next = is_forward ? schedule_.behind(action.stage, action.microbatch)
                                : schedule_.before(action.stage, action.microbatch);
    if (next < 0 && !is_split()) return;
    if (is_here(next)) {
      (is_forward ? activations_ : gradients_)[{next, action.microbatch}] = std::move(made);
    } else {
      outputs_[key_of(action)] = std::move(made);
    }
  }

  /// What the first or the last stage, if it is here, has for an exchange with a single source.
  Tensor given(const Action& action) {
    return has_one_source(action.collective) ? take(outputs_, key_of(action)) : Tensor();
  }

  void end_exchange(const Action& action) {
    const Tensor taken = stage_.end_exchange(action);
    if (!taken.defined()) return;
    (action.collective == Exchange::embedding ? activations_ : gradients_)[key_of(action)] = taken;
  }

  /// Messages have the tag of the receiving stage and their direction.
  int tag_of(const Action& action) const {
    switch (action.act) {
      case Act::send_act: return 2 * schedule_.behind(action.stage, action.microbatch);
      case Act::send_grad: return 2 * schedule_.before(action.stage, action.microbatch) + 1;
      case Act::recv_grad: return 2 * action.stage + 1;
      default: return 2 * action.stage;
    }
  }

  /// Both ends have tensors of the same size, and so agree.
  bool is_coded(const Tensor& data) const {
    return stage_.messages() != nullptr &&
           stage_.messages()->takes(static_cast<std::int64_t>(data.size_bytes()));
  }
  CodedMessages::Line line_of(const Action& action) const {
    return {pipeline_, action.peer, tag_of(action)};
  }

  void send(const Action& action) {
    const Tensor data = take(outputs_, key_of(action));
    auto& under_way = sends_[{action.peer, tag_of(action)}];
    if (is_coded(data)) {
      under_way.push_back({{}, stage_.messages()->send(data, line_of(action), stream_)});
    } else {
      under_way.push_back(
          {data, {{pipeline_.send(data, action.peer, stream_, tag_of(action))}, {}, {}}});
    }
  }
  void end_send(const Action& action) {
    auto& under_way = sends_[{action.peer, tag_of(action)}];
    under_way.front().message.wait(stream_);
    under_way.pop_front();
  }

  void post(const Action& action) {
    const Tensor data = stage_.boundary(action.microbatch);
    tag(action, stage_.entry(action));
    if (is_coded(data)) {
      posted_.push_back(
          {{}, stage_.messages()->post(data.count(), data.dtype(), line_of(action), stream_)});
    } else {
      posted_.push_back(
          {data, {{pipeline_.recv(data, action.peer, stream_, tag_of(action))}, {}, {}}});
    }
    if (action_ != nullptr) tag(*action_, nullptr);
  }
  void receive(const Action& action) {
    auto [data, message] = std::move(posted_.front());
    posted_.pop_front();
    if (data.defined()) {
      message.wait(stream_);
    } else {
      data = stage_.boundary(action.microbatch);
      stage_.messages()->receive(std::move(message), data, line_of(action), stream_);
    }
    (action.act == Act::recv_act ? activations_ : gradients_)[key_of(action)] = std::move(data);
  }

  const Schedule& schedule_;
  Communicator& pipeline_;
  Stage& stage_;
  Stream& stream_;
  const OnAction& on_action_;
  const Stopwatch watch_;

  const Action* action_ = nullptr;  // under way
  double began_ = 0.0;
  Tensor made_;  // by the unit before, in this action
  Boundary activations_, gradients_, outputs_;
  std::deque<UnderWay> posted_;  // in the order of the schedule
  std::map<std::pair<int, int>, std::deque<UnderWay>> sends_;
};

}  // namespace

void execute(const Schedule& lowered, const RankUnits& units, StepPolicy policy,
             Communicator& pipeline, Stage& stage, Stream& stream, const OnAction& on_action) {
  policy.sends_under_way = std::max(kLeastSendsUnderWay, messages_under_way(lowered));
  Walk walk(lowered, pipeline, stage, stream, on_action);
  tell_step(lowered, pipeline.rank(), units, policy, [&](const StepOp& op) { walk.perform(op); });
  walk.end_action();
  pipeline.flight().set_tag({});
}

}  // namespace heddle
