#include <set>

#include "parallel/schedule/schedule.h"

namespace heddle {
namespace {

/// Inserts what lies between the computations of one rank.
class RankLowering {
 public:
  RankLowering(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

  std::vector<Action> run() {
    for (const Action& action : schedule_.by_rank[static_cast<std::size_t>(rank_)]) {
      before(action);
      out_.push_back(action);
      after(action);
    }
    while (!open_.empty()) end(open_.begin()->first, open_.begin()->second);
    out_.push_back({Act::reduce_grads});
    out_.push_back({Act::step});
    return std::move(out_);
  }

 private:
  void before(const Action& action) {
    const int mb = action.microbatch;
    switch (action.act) {
      case Act::f:
        if (is_split() && action.stage == 0) return end(Exchange::embedding, mb);
        return message(Act::recv_act, action, schedule_.before(action.stage, mb));
      case Act::b:
      case Act::bw:
        if (is_split() && action.stage == last()) return end(grad_of_output(), mb);
        return message(Act::recv_grad, action, schedule_.behind(action.stage, mb));
      case Act::vocab_s:
        if (rank_ != schedule_.rank_of(last())) begin(Exchange::output, mb);
        return end(Exchange::output, mb);
      case Act::vocab_t:
        // Those who need nothing of the sum of dX let go of it a pass later.
        end(Exchange::output_grad, mb - 1);
        return end(Exchange::softmax, mb);
      case Act::embed_f: return end(Exchange::embedding, mb - 2);
      case Act::embed_b:
        if (rank_ != schedule_.rank_of(0)) begin(Exchange::embedding_grad, mb);
        return end(Exchange::embedding_grad, mb);
      default: return;
    }
  }

  void after(const Action& action) {
    const int mb = action.microbatch;
    switch (action.act) {
      case Act::f:
        if (is_split() && action.stage == last()) return begin(Exchange::output, mb);
        return message(Act::send_act, action, schedule_.behind(action.stage, mb));
      case Act::b:
      case Act::bw:
        if (is_split() && action.stage == 0) return begin(Exchange::embedding_grad, mb);
        return message(Act::send_grad, action, schedule_.before(action.stage, mb));
      case Act::vocab_s: return begin(Exchange::softmax, mb);
      case Act::vocab_t:
        if (schedule_.vocabulary == 1) begin(Exchange::output_grad, mb);
        return;
      case Act::embed_f: return begin(Exchange::embedding, mb);
      default: return;
    }
  }

  bool is_split() const { return schedule_.vocabulary != 0; }
  int last() const { return schedule_.stages() - 1; }
  Exchange grad_of_output() const {
    return schedule_.vocabulary == 1 ? Exchange::output_grad : Exchange::softmax;
  }

  /// To or from the rank of the stage before or behind, where there is one and it is another.
  void message(Act act, const Action& action, int neighbour) {
    if (neighbour < 0 || schedule_.rank_of(neighbour) == rank_) return;
    out_.push_back({act, action.stage, action.microbatch, schedule_.rank_of(neighbour)});
  }

  void begin(Exchange collective, int mb) {
    open_.insert({collective, mb});
    out_.push_back(collective_action(Act::begin, collective, mb));
  }
  void end(Exchange collective, int mb) {
    if (open_.erase({collective, mb}) == 0) return;
    out_.push_back(collective_action(Act::end, collective, mb));
  }
  Action collective_action(Act act, Exchange collective, int mb) const {
    const bool is_input =
        collective == Exchange::embedding || collective == Exchange::embedding_grad;
    const int stage = is_input ? 0 : last();
    const int peer = collective == Exchange::softmax ? -1 : schedule_.rank_of(stage);
    return {act, stage, mb, peer, collective};
  }

  const Schedule& schedule_;
  int rank_;
  std::vector<Action> out_;
  std::set<std::pair<Exchange, int>> open_;  // begun, with the micro-batch
};

}  // namespace

Schedule lower(const Schedule& compute_only) {
  Schedule lowered = compute_only;
  for (int rank = 0; rank < lowered.ranks(); ++rank) {
    lowered.by_rank[static_cast<std::size_t>(rank)] = RankLowering(compute_only, rank).run();
  }
  return lowered;
}

}  // namespace heddle
