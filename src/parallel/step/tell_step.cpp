#include "parallel/step/tell_step.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "parallel/step/waiting_sums.h"

namespace heddle {
namespace {

using Kind = StepOp::Kind;

/// Sums of whole gradients that may be under way at a time: a bound on the memory they hold.
constexpr std::size_t kReductionsUnderWay = 2;
/// Messages that have a place before they are waited for, so that they travel meanwhile.
constexpr int kReceivesPosted = 2;

bool is_receive(const Action& action) {
  return action.act == Act::recv_act || action.act == Act::recv_grad;
}

/// Of a unit's buckets, those whose values ranks have parts of.
std::vector<int> divided(const RankUnits& units, int unit) {
  std::vector<int> buckets = units.units[static_cast<std::size_t>(unit)].buckets;
  std::erase_if(buckets, [&](int bucket) {
    return units.buckets[static_cast<std::size_t>(bucket)].zero != 3;
  });
  return buckets;
}

/// Values that are gathered for a unit's sake.
class Values {
 public:
  Values(const RankUnits& units, const StepVisitor& visit)
      : units_(units), visit_(visit), is_here_(units.buckets.size(), false) {}

  /// `next`: -1 for none.
  void acquire(int unit, int next, const Action* action) {
    for (const int bucket : divided(units_, unit)) {
      fetch(bucket, action);
      visit_({Kind::values, bucket, action});
    }
    if (next < 0) return;
    for (const int bucket : divided(units_, next)) fetch(bucket, action);
  }
  void release(int unit, const Action* action) {
    for (const int bucket : divided(units_, unit)) {
      is_here_[static_cast<std::size_t>(bucket)] = false;
      visit_({Kind::drop, bucket, action});
    }
  }

 private:
  void fetch(int bucket, const Action* action) {
    if (is_here_[static_cast<std::size_t>(bucket)]) return;
    is_here_[static_cast<std::size_t>(bucket)] = true;
    visit_({Kind::fetch, bucket, action});
  }

  const RankUnits& units_;
  const StepVisitor& visit_;
  std::vector<bool> is_here_;  // or on its way
};

class StepTeller {
 public:
  StepTeller(const Schedule& schedule, int rank, const RankUnits& units, const StepPolicy& policy,
             const StepVisitor& visit)
      : schedule_(schedule),
        actions_(schedule.by_rank[static_cast<std::size_t>(rank)]),
        units_(units),
        policy_(policy),
        visit_(visit),
        values_(units, visit),
        is_open_(units.buckets.size(), false),
        passes_with_gradients_(units.units.size(), 0),
        passes_needed_(units.units.size(), schedule.microbatches),
        waiting_(units, policy.windows, [this](Kind kind, int bucket, const StepOp::Slice& slice) {
          visit_({kind, bucket, action_, slice});
          reductions_.push_back(bucket);
        }) {
    for (std::size_t stage = 0; stage < units.stages.size(); ++stage) {
      const auto [first, count] = units.stages[stage];
      std::fill_n(passes_needed_.begin() + first, count,
                  schedule.visits_of(static_cast<int>(stage)));
    }
  }

  void run() {
    sums(StepSum::When::first);
    for (const Action& action : actions_) {
      action_ = &action;
      say(Kind::action);
      post_receives();
      tell(action);
    }
    end_sends();
  }

 private:
  void say(Kind kind, int what = -1) { visit_({kind, what, action_}); }

  void tell(const Action& action) {
    switch (action.act) {
      case Act::f: return pass(true);
      case Act::b:
      case Act::w:
      case Act::bw: return pass(false);
      case Act::vocab_s:
      case Act::vocab_t: return compute(units_.head, -1);
      case Act::embed_f:
      case Act::embed_b: return compute(units_.embedding, -1);
      case Act::send_act:
      case Act::send_grad: return send();
      case Act::recv_act:
      case Act::recv_grad: --posted_; return say(Kind::receive);
      case Act::begin: return say(Kind::begin);
      case Act::end: return say(Kind::end);
      case Act::reduce_grads: return finish_gradients();
      case Act::step: return update();
    }
  }

  // ---- Units ------------------------------------------------------------------------------------

  void pass(bool is_forward) {
    const auto [first, count] = units_.stages[static_cast<std::size_t>(action_->stage)];
    for (int i = 0; i < count; ++i) {
      const int unit = is_forward ? first + i : first + count - 1 - i;
      compute(unit, i + 1 == count ? -1 : is_forward ? unit + 1 : unit - 1);
    }
  }

  void compute(int unit, int next) {
    const bool adds = adds_gradients(unit);
    if (action_->act == Act::w && !adds) return;
    if (needs_values()) values_.acquire(unit, next, action_);
    if (adds) open(unit);
    const bool has_window =
        (action_->act == Act::b || action_->act == Act::bw) && open_window(unit);
    say(Kind::compute, unit);
    if (needs_values()) values_.release(unit, action_);
    if (adds) gradients_are_in(unit);
    if (has_window) waiting_.close_window();
  }

  /// Whether this pass over the unit adds to the gradients of its parameters.
  bool adds_gradients(int unit) const {
    const bool in_forward = units_.units[static_cast<std::size_t>(unit)].adds_gradients_in_forward;
    switch (action_->act) {
      case Act::f: return in_forward;
      case Act::w:
      case Act::bw: return !in_forward;
      default: return action_->act == Act::vocab_t || action_->act == Act::embed_b;
    }
  }

  bool needs_values() const {
    switch (action_->act) {
      case Act::w:
      case Act::embed_b: return false;
      case Act::vocab_t: return schedule_.vocabulary == 1;
      default: return true;
    }
  }

  // ---- Gradients --------------------------------------------------------------------------------

  const RankUnits::Bucket& bucket_at(int bucket) const {
    return units_.buckets[static_cast<std::size_t>(bucket)];
  }
  const std::vector<int>& buckets_of(int unit) const {
    return units_.units[static_cast<std::size_t>(unit)].buckets;
  }

  std::vector<int> trained_of(int unit) const {
    std::vector<int> buckets = buckets_of(unit);
    std::erase_if(buckets, [this](int bucket) { return !bucket_at(bucket).trains; });
    return buckets;
  }

  void open(int unit) {
    for (const int bucket : buckets_of(unit)) {
      const RankUnits::Bucket& of = bucket_at(bucket);
      if (!of.trains || of.zero < 2 || is_open_[static_cast<std::size_t>(bucket)]) continue;
      is_open_[static_cast<std::size_t>(bucket)] = true;
      say(Kind::open, bucket);
    }
  }

  void gradients_are_in(int unit) {
    if (!policy_.reduces) return;
    int& passes = passes_with_gradients_[static_cast<std::size_t>(unit)];
    const bool are_all_in = ++passes == passes_needed_[static_cast<std::size_t>(unit)];
    for (const int bucket : trained_of(unit)) {
      const int zero = bucket_at(bucket).zero;
      if (bucket_at(bucket).owner != unit || (zero < 2 && (!are_all_in || policy_.reduces_at_end)))
        continue;
      if (zero < 2 && bucket_at(bucket).coded_gradients > 0 && is_sent_next()) {
        behind_send_.push_back(bucket);
        continue;
      }
      if (waiting_.takes(bucket)) {
        waiting_.add(bucket);
        continue;
      }
      reduce(bucket);
      while (zero >= 2 && reductions_.size() > kReductionsUnderWay) end_oldest_reduction();
    }
  }

  /// Encoding takes this rank's time, in which another stage would wait for what it has computed.
  bool is_sent_next() const {
    const Action* const next = action_ + 1;
    return next < actions_.data() + actions_.size() &&
           (next->act == Act::send_grad || next->act == Act::send_act);
  }

  /// With ZeRO slices have a place of their own until they are summed: those of the window before
  /// the last give theirs back.
  bool open_window(int unit) {
    if (!waiting_.has_window(unit, schedule_.microbatches)) return false;
    while (reductions_.size() > begun_in_window_ && bucket_at(reductions_.front()).zero == 1) {
      end_oldest_reduction();
    }
    const std::size_t before = reductions_.size();
    waiting_.open_window(unit);
    begun_in_window_ = reductions_.size() - before;
    return true;
  }

  void reduce(int bucket) {
    say(Kind::reduce, bucket);
    is_open_[static_cast<std::size_t>(bucket)] = false;
    if (!bucket_at(bucket).over.empty()) reductions_.push_back(bucket);
  }

  void end_oldest_reduction() {
    say(Kind::reduced, reductions_.front());
    reductions_.pop_front();
  }

  /// What follows waits for other stages too. A message must not stand behind it.
  void finish_gradients() {
    end_sends();
    HEDDLE_CHECK(waiting_.is_empty(), "gradients wait for a window that does not come");
    if (!policy_.reduces) return finish_local_gradients();
    add_unvisited();
    const int buckets = static_cast<int>(units_.buckets.size());
    for (int bucket = 0; bucket < buckets && policy_.reduces_at_end; ++bucket) {
      if (bucket_at(bucket).trains && bucket_at(bucket).zero < 2) reduce(bucket);
    }
    while (!reductions_.empty()) end_oldest_reduction();
    for (int bucket = 0; bucket < buckets; ++bucket) {
      if (!bucket_at(bucket).sums.empty()) say(Kind::rest, bucket);
    }
    if (units_.tie != RankUnits::Tie::none) say(Kind::tie);
    say(Kind::norm);
    sums(StepSum::When::with_gradients);
  }

  /// Stages that no micro-batch went through have gradients all the same: zeros.
  void add_unvisited() {
    for (std::size_t unit = 0; unit < passes_needed_.size(); ++unit) {
      if (passes_needed_[unit] > 0) continue;
      open(static_cast<int>(unit));
      for (const int bucket : trained_of(static_cast<int>(unit))) {
        const bool waits = policy_.reduces_at_end && bucket_at(bucket).zero < 2;
        if (bucket_at(bucket).owner == static_cast<int>(unit) && !waits) reduce(bucket);
      }
    }
  }

  /// The norm is that of each rank's own gradients, so vectors are summed behind it.
  void finish_local_gradients() {
    for (int bucket = 0; bucket < static_cast<int>(units_.buckets.size()); ++bucket) {
      if (bucket_at(bucket).trains) say(Kind::local, bucket);
    }
    if (units_.tie != RankUnits::Tie::none) say(Kind::local_tie);
    say(Kind::norm);
    sums(StepSum::When::with_gradients);
    say(Kind::vectors);
  }

  void sums(StepSum::When when) {
    for (std::size_t i = 0; i < policy_.sums.size(); ++i) {
      if (policy_.sums[i].when == when) say(Kind::sum, static_cast<int>(i));
    }
  }

  void update() {
    if (!policy_.updates) return;
    say(Kind::update);
    outer();
    for (const Kind kind : {Kind::gather, Kind::gathered}) {
      for (int bucket = 0; bucket < static_cast<int>(units_.buckets.size()); ++bucket) {
        const int zero = bucket_at(bucket).zero;
        if (zero == 1 || zero == 2) say(kind, bucket);
      }
    }
  }

  /// Before values are made whole, which then are those that outer steps left.
  void outer() {
    const OuterPolicy& policy = policy_.outer;
    for (const Kind kind : {Kind::outer_begin, Kind::outer_end}) {
      for (int fragment = 0; fragment < policy.fragments; ++fragment) {
        const bool is_due = kind == Kind::outer_begin ? policy.begins(fragment, policy_.step)
                                                      : policy.ends(fragment, policy_.step);
        if (is_due && policy.has(units_, fragment)) say(kind, fragment);
      }
    }
  }

  // ---- Messages ---------------------------------------------------------------------------------

  void post_receives() {
    for (; posted_ < kReceivesPosted && next_receive_ < actions_.size(); ++next_receive_) {
      if (!is_receive(actions_[next_receive_])) continue;
      visit_({Kind::post, -1, &actions_[next_receive_]});
      ++posted_;
    }
  }

  void send() {
    auto& under_way = sends_[{action_->peer, action_->act, action_->stage}];
    if (policy_.sends_under_way > 0 &&
        under_way.size() == static_cast<std::size_t>(policy_.sends_under_way)) {
      visit_({Kind::sent, -1, under_way.front()});
      under_way.pop_front();
    }
    say(Kind::send);
    under_way.push_back(action_);
    for (const int bucket : std::exchange(behind_send_, {})) reduce(bucket);
  }

  void end_sends() {
    for (auto& [to, sends] : sends_) {
      for (const Action* send : std::exchange(sends, {})) visit_({Kind::sent, -1, send});
    }
  }

  const Schedule& schedule_;
  const std::vector<Action>& actions_;
  const RankUnits& units_;
  const StepPolicy& policy_;
  const StepVisitor& visit_;

  const Action* action_ = nullptr;  // under way
  Values values_;
  std::vector<bool> is_open_;               // by bucket: gradients have a place
  std::vector<int> passes_with_gradients_;  // by unit: how many are done
  std::vector<int> passes_needed_;          // by unit: how many micro-batches come by
  std::deque<int> reductions_;              // under way, oldest first
  WaitingSums waiting_;                     // for windows
  std::size_t begun_in_window_ = 0;         // of reductions_, in the last one
  std::vector<int> behind_send_;            // complete, to be reduced when the message has left
  std::size_t next_receive_ = 0;
  int posted_ = 0;
  std::map<std::tuple<int, Act, int>, std::deque<const Action*>> sends_;  // under way
};

}  // namespace

std::vector<StepSum> StepPolicy::usual_sums() {
  return {{.name = "targets", .over = kTokenAxes, .numbers = 1, .when = StepSum::When::first},
          {.name = "loss and norm", .over = kStepAxes, .numbers = kFirstOwn}};
}

RankUnits plain_units(const Schedule& schedule) {
  RankUnits units;
  for (int stage = 0; stage < schedule.stages(); ++stage) units.stages.push_back({stage, 1});
  units.units.resize(units.stages.size());
  return units;
}

void tell_step(const Schedule& lowered, int rank, const RankUnits& units, const StepPolicy& policy,
               const StepVisitor& visit) {
  StepTeller(lowered, rank, units, policy, visit).run();
}

void tell_forward(const RankUnits& units, std::span<const int> order, const StepVisitor& visit) {
  Values values(units, visit);
  for (std::size_t i = 0; i < order.size(); ++i) {
    values.acquire(order[i], i + 1 < order.size() ? order[i + 1] : -1, nullptr);
    visit({Kind::compute, order[i]});
    values.release(order[i], nullptr);
  }
}

}  // namespace heddle
