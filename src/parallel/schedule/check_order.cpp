#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "parallel/schedule/checks.h"

namespace heddle {
namespace {

bool is_end_of_step(const Action& action) {
  return action.act == Act::reduce_grads || action.act == Act::step;
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
      if (!is_end_of_step(action) && belongs_here(action)) visit(action);
    }
    check_complete();
    const std::size_t n = actions.size();
    if (n < 2 || actions[n - 2].act != Act::reduce_grads || actions[n - 1].act != Act::step ||
        std::ranges::count_if(actions, is_end_of_step) != 2) {
      report("does not end with the reduction of gradients and the step");
    }
  }

 private:
  bool belongs_here(const Action& action) {
    if (action.microbatch < 0 || action.microbatch >= schedule_.microbatches) {
      report(fmt::format("{} is of a micro-batch that the step does not have", to_text(action)));
      return false;
    }
    const bool is_collective = action.act == Act::begin || action.act == Act::end;
    if (is_vocabulary(action.act) || is_collective) {
      if (schedule_.vocabulary == 0) {
        report(fmt::format("{} has no place where the vocabulary is whole", to_text(action)));
      }
      return schedule_.vocabulary != 0;
    }
    if (rank_of(action.stage) != rank_) {
      report(fmt::format("{} is of stage {}, which this rank does not have", to_text(action),
                         action.stage));
      return false;
    }
    if (!schedule_.is_visited(action.stage, action.microbatch)) {
      report(fmt::format("{} is of stage {}, which the micro-batch does not visit", to_text(action),
                         action.stage));
      return false;
    }
    const bool is_message = is_send(action.act) || is_receive(action.act);
    if (is_message && rank_of(other_stage(schedule_, action)) != action.peer) {
      report(fmt::format("{} on stage {} names rank {}, which does not have the neighbouring stage",
                         to_text(action), action.stage, action.peer));
    }
    return true;
  }

  void visit(const Action& action) {
    const int stage = action.stage, mb = action.microbatch;
    const Act first_half = action.act == Act::bw ? Act::b : action.act;
    if (!is_ready(action) || is_done(first_half, stage, mb, action.collective)) {
      report(fmt::format("{} on stage {} is out of order", to_text(action), stage));
    }
    const auto [latest, is_first] = latest_.try_emplace({action.act, action.collective, stage}, mb);
    if (!is_first && mb < latest->second) {
      report(fmt::format("{} on stage {} comes behind micro-batch {}: they must ascend",
                         to_text(action), stage, latest->second));
    }
    latest->second = mb;
    done_.insert({first_half, action.collective, stage, mb});
    if (action.act == Act::bw) done_.insert({Act::w, Exchange::none, stage, mb});
  }

  bool is_ready(const Action& action) const {
    const int mb = action.microbatch;
    const auto done = [&](Act act) { return is_done(act, action.stage, mb); };
    switch (action.act) {
      case Act::f:
        return has_input(schedule_.before(action.stage, mb), Act::f, Act::recv_act, action);
      case Act::b:
      case Act::bw:
        return done(Act::f) &&
               has_input(schedule_.behind(action.stage, mb), Act::b, Act::recv_grad, action);
      case Act::w: return done(Act::b);
      case Act::send_act: return done(Act::f);
      case Act::send_grad: return done(Act::b);
      case Act::vocab_s: return is_ended(Exchange::output, mb);
      case Act::vocab_t: return done(Act::vocab_s) && is_ended(Exchange::softmax, mb);
      case Act::embed_b: return is_ended(Exchange::embedding_grad, mb);
      case Act::begin: return may_begin(action);
      case Act::end: return is_done(Act::begin, action.stage, mb, action.collective);
      default: return true;
    }
  }

  /// Whether this rank has what it gives to a collective.
  bool may_begin(const Action& action) const {
    const int mb = action.microbatch;
    const bool is_source = action.peer == rank_;
    switch (action.collective) {
      case Exchange::none: return false;
      case Exchange::output: return !is_source || is_done(Act::f, last(), mb);
      case Exchange::softmax: return is_done(Act::vocab_s, last(), mb);
      case Exchange::output_grad: return is_done(Act::vocab_t, last(), mb);
      case Exchange::embedding: return is_done(Act::embed_f, 0, mb);
      case Exchange::embedding_grad: return !is_source || is_done(Act::b, 0, mb);
    }
    return false;
  }

  /// Whether the result of the neighbouring stage is there: received, or made by this rank; at the
  /// ends of a pipeline with a split vocabulary, the result of its collective.
  bool has_input(int neighbour, Act made_by, Act received_by, const Action& action) const {
    const int mb = action.microbatch;
    if (neighbour >= 0) {
      return rank_of(neighbour) == rank_ ? is_done(made_by, neighbour, mb)
                                         : is_done(received_by, action.stage, mb);
    }
    if (schedule_.vocabulary == 0) return true;
    if (made_by == Act::f) return is_ended(Exchange::embedding, mb);
    return is_ended(schedule_.vocabulary == 1 ? Exchange::output_grad : Exchange::softmax, mb);
  }

  void check_complete() {
    for (int mb = 0; mb < schedule_.microbatches; ++mb) {
      for (const int stage : stages_of(schedule_, rank_)) {
        if (schedule_.is_visited(stage, mb) && !is_done(Act::w, stage, mb)) {
          report(fmt::format("micro-batch {} on stage {} is not finished", mb, stage));
        }
      }
      if (schedule_.vocabulary == 0) continue;
      if (!is_done(Act::vocab_t, last(), mb) || !is_done(Act::embed_b, 0, mb)) {
        report(fmt::format("the vocabulary passes of micro-batch {} are not finished", mb));
      }
      for (int kind = 1; kind <= static_cast<int>(Exchange::embedding_grad); ++kind) {
        const auto collective = static_cast<Exchange>(kind);
        if (collective == Exchange::output_grad && schedule_.vocabulary != 1) continue;
        if (is_ended(collective, mb)) continue;
        const Action missing{.act = Act::end, .microbatch = mb, .collective = collective};
        report(fmt::format("{} is missing", to_text(missing)));
      }
    }
  }

  int last() const { return schedule_.stages() - 1; }
  int rank_of(int stage) const {
    return stage < 0 || stage > last() ? -1 : schedule_.rank_of(stage);
  }
  bool is_done(Act act, int stage, int mb, Exchange collective = Exchange::none) const {
    return done_.contains({act, collective, stage, mb});
  }
  bool is_ended(Exchange collective, int mb) const {
    const bool is_input =
        collective == Exchange::embedding || collective == Exchange::embedding_grad;
    return is_done(Act::end, is_input ? 0 : last(), mb, collective);
  }
  void report(std::string message) { found_.push_back({rank_, std::move(message)}); }

  const Schedule& schedule_;
  int rank_;
  std::vector<Diagnostic>& found_;
  std::set<std::tuple<Act, Exchange, int, int>> done_;    // with stage and micro-batch
  std::map<std::tuple<Act, Exchange, int>, int> latest_;  // micro-batch by kind and stage
};

}  // namespace

void check_order(const Schedule& lowered, int rank, std::vector<Diagnostic>& found) {
  OrderCheck(lowered, rank, found).run();
}

}  // namespace heddle
