#include "planner/lower_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "base/rng.h"
#include "planner/cost.h"

namespace heddle::planner {
namespace {

/// As many as ParamStore lets be under way.
constexpr std::size_t kReductionsUnderWay = 2;
constexpr std::uint32_t kNone = static_cast<std::uint32_t>(-1);

class StepLowering {
 public:
  StepLowering(const Machine& machine, const Job& job, const Candidate& plan,
               const Schedule& schedule, const BlockCost& block, const PlayedRanks& ranks,
               const StepOptions& options)
      : machine_(machine),
        plan_(plan),
        schedule_(schedule),
        ranks_(ranks),
        options_(options),
        units_(step_units(machine, job, plan, block, schedule.rank_of_stage)),
        paths_(machine, ranks, options),
        zero_(plan.dp == 1 ? 0 : plan.zero),
        gather_calls_(gather_calls(machine, job, plan)),
        overlaps_(options.overlap && job.stack.overlaps_gathers),
        reduces_behind_(!job.stack.overlaps_gathers && zero_ < 2),
        message_bytes_(
            static_cast<double>(Volumes(job.spec, plan, units_.shape, {}, 0).message_bytes())) {
    if (job.stack.splits_messages && plan.tp > 1 && !block.sequence) {
      // Every rank of tp sends its share, and what has arrived is gathered.
      message_bytes_ /= plan.tp;
      gather_seconds_ = collective_seconds(machine, CommOp::all_gather,
                                           group_shape(machine, plan.tp, 1), block.stride_bytes);
    }
    const std::int64_t tokens = plan.sequences * job.seq_len;
    lane_tokens_ = static_cast<double>((tokens + plan.tp - 1) / plan.tp);
    lane_bytes_ = static_cast<double>(units_.shape.element_bytes) * lane_tokens_ *
                  static_cast<double>(job.spec.hidden);
  }

  LoweredStep run() {
    const auto count = static_cast<std::size_t>(ranks_.count());
    program_.by_rank.resize(count);
    lowered_.tp_in_compute.resize(count, 0.0);
    lowered_.tp_in_work.resize(count, 0.0);
    barrier_ = add({.needed = ranks_.count()});
    add_channels();
    for (int rank = 0; rank < ranks_.count(); ++rank) lower_rank(rank);
    refuse_unmatched();
    program_.capacities = paths_.take_capacities();
    program_.paths = paths_.take_paths();
    lowered_.program = std::move(program_);
    lowered_.units = std::move(units_);
    return std::move(lowered_);
  }

 private:
  using Instruction = StepProgram::Instruction;
  using Kind = Instruction::Kind;

  /// What is known of the rank that is being lowered.
  struct Now {
    int rank = 0, pp_rank = 0;
    std::size_t dp_calls = 0;
    double slowdown = 1.0, scale = 1.0;
    double pending = 0.0;                       ///< computation that is not written down yet
    std::vector<std::uint32_t> gathered = {};   ///< by bucket: the transfer; kNone: it is not here
    std::vector<std::int64_t> grads = {};       ///< by bucket: micro-batches whose gradients are in
    std::deque<std::uint32_t> reductions = {};  ///< under way
  };
  struct Message {
    std::uint32_t transfer = kNone;
    int sender = -1, receiver = -1;  ///< -1: nobody yet
    Action action = {};
  };

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  std::vector<Instruction>& out() { return program_.by_rank[at(now_.rank)]; }
  const StepRank& here() const { return units_.ranks[at(now_.pp_rank)]; }
  int place() const { return now_.rank / ranks_.pp; }  // of the replica, among those played
  int neighbour(int pp_rank) const { return place() * ranks_.pp + pp_rank; }

  std::uint32_t add(const StepProgram::Transfer& transfer) {
    program_.transfers.push_back(transfer);
    return static_cast<std::uint32_t>(program_.transfers.size()) - 1;
  }

  /// One over dp for every pp rank, and the lanes of every replica.
  void add_channels() {
    const int replicas = static_cast<int>(ranks_.replicas.size());
    for (int pp_rank = 0; pp_rank < ranks_.pp; ++pp_rank) {
      StepProgram::Channel channel{.contention = overlaps_ ? machine_.software.contention : 0.0};
      for (int i = 0; i < replicas; ++i) channel.ranks.push_back(i * ranks_.pp + pp_rank);
      program_.channels.push_back(std::move(channel));
    }
    first_lane_ = static_cast<int>(program_.channels.size());
    for (int i = 0; i < replicas; ++i) {
      StepProgram::Channel channel;
      for (int pp_rank = 0; pp_rank < ranks_.pp; ++pp_rank) {
        channel.ranks.push_back(i * ranks_.pp + pp_rank);
      }
      program_.channels.insert(program_.channels.end(), kExchanges, channel);
    }
    dp_transfers_.resize(at(ranks_.pp));
    messages_.resize(at(replicas) * 2 * at(schedule_.stages()) * at(schedule_.microbatches));
    lanes_.resize(at(replicas) * kExchanges * at(schedule_.microbatches), kNone);
    ends_.resize(at(replicas), kNone);
  }

  // ---- Instructions -----------------------------------------------------------------------------

  void flush() {
    if (now_.pending > 0.0) out().push_back({Kind::compute, 0, now_.pending});
    now_.pending = 0.0;
  }
  void compute(const UnitPass& pass) {
    now_.pending += pass.seconds * now_.scale;
    lowered_.tp_in_compute[at(now_.rank)] += pass.tp * now_.scale;
  }
  void work(double seconds) {
    flush();
    out().push_back({Kind::work, 0, seconds * now_.scale});
  }
  void issue(std::uint32_t transfer) {
    flush();
    out().push_back({Kind::issue, transfer, 0.0});
  }
  void wait(std::uint32_t transfer) {
    flush();
    out().push_back({Kind::wait, transfer, 0.0});
  }

  // ---- Over dp: ParamStore ----------------------------------------------------------------------

  /// Begins the next exchange; all replicas have them in the same order. kNone when it is done at
  /// once, as without overlap.
  std::uint32_t begin_on_dp(CommOp op, std::int64_t bytes) {
    auto& all = dp_transfers_[at(now_.pp_rank)];
    if (now_.dp_calls == all.size()) all.push_back(add(on_dp(op, static_cast<double>(bytes))));
    const std::uint32_t transfer = all[now_.dp_calls++];
    issue(transfer);
    if (overlaps_) return transfer;
    wait(transfer);
    return kNone;
  }

  StepProgram::Transfer on_dp(CommOp op, double bytes) {
    const GroupShape group = group_shape(machine_, plan_.dp, plan_.tp);
    return {.path = paths_.collective(program_.channels[at(now_.pp_rank)].ranks, group, op, bytes,
                                      gather_calls_),
            .channel = now_.pp_rank,
            .needed = static_cast<int>(ranks_.replicas.size()),
            .traffic = Traffic::dp,
            .op = op,
            .bytes = bytes};
  }

  /// Of a unit with ZeRO-3, as StepPaths wants them: 0 where whole units were measured.
  static double gather_calls(const Machine& machine, const Job& job, const Candidate& plan) {
    if (plan.dp == 1 || plan.zero < 3) return 0.0;
    const bool is_measured =
        job.stack.overlaps_gathers && has_table(machine, group_shape(machine, plan.dp, plan.tp));
    return is_measured ? 0.0 : gathers_per_unit(job.stack);
  }

  std::int64_t value_bytes(int bucket) const {
    return units_.shape.element_bytes * here().buckets[at(bucket)];
  }
  std::int64_t grad_bytes(int bucket) const {
    return units_.shape.gradient_bytes * here().buckets[at(bucket)];
  }

  void fetch(const StepUnit& unit) {
    if (unit.bucket < 0 || is_here_[at(unit.bucket)]) return;
    is_here_[at(unit.bucket)] = true;
    now_.gathered[at(unit.bucket)] = begin_on_dp(CommOp::all_gather, value_bytes(unit.bucket));
  }
  void acquire(const StepUnit& unit, const StepUnit* next) {
    if (zero_ < 3) return;
    fetch(unit);
    if (unit.bucket >= 0) {
      const std::uint32_t transfer = std::exchange(now_.gathered[at(unit.bucket)], kNone);
      if (transfer != kNone) wait(transfer);
    }
    if (next != nullptr) fetch(*next);
  }
  void release(const StepUnit& unit) {
    if (unit.bucket >= 0) is_here_[at(unit.bucket)] = false;
  }
  void end_grads(const StepUnit& unit) {
    if (plan_.dp == 1 || unit.bucket < 0 || !unit.owns_bucket) return;
    const bool is_last = ++now_.grads[at(unit.bucket)] == schedule_.microbatches;
    if ((zero_ < 2 && !is_last) || reduces_behind_) return;
    const std::uint32_t transfer = begin_reduction(unit.bucket);
    if (transfer == kNone) return;
    now_.reductions.push_back(transfer);
    while (zero_ >= 2 && now_.reductions.size() > kReductionsUnderWay) finish_oldest();
  }
  std::uint32_t begin_reduction(int bucket) {
    const CommOp op = zero_ == 0 ? CommOp::all_reduce : CommOp::reduce_scatter;
    return begin_on_dp(op, grad_bytes(bucket));
  }
  void finish_oldest() {
    wait(now_.reductions.front());
    now_.reductions.pop_front();
  }

  // ---- Stages: TrainStep ------------------------------------------------------------------------

  void forward(const std::vector<StepUnit>& stage) {
    for (std::size_t i = 0; i < stage.size(); ++i) {
      acquire(stage[i], i + 1 < stage.size() ? &stage[i + 1] : nullptr);
      compute(stage[i].f);
      release(stage[i]);
      if (stage[i].makes_grads_in_f) end_grads(stage[i]);
    }
  }

  void backward(const std::vector<StepUnit>& stage, bool has_b, bool has_w) {
    for (std::size_t i = stage.size(); i-- > 0;) {
      const StepUnit& unit = stage[i];
      if (has_b) {
        acquire(unit, i > 0 ? &stage[i - 1] : nullptr);
        compute(unit.b);
      }
      if (has_w) compute(unit.w);
      if (has_b) release(unit);
      if (has_w && !unit.makes_grads_in_f) end_grads(unit);
    }
  }

  void vocabulary_pass(const Action& action) {
    const bool is_head = action.act == Act::vocab_s || action.act == Act::vocab_t;
    const StepUnit& unit = is_head ? here().head : here().embedding;
    const bool makes_grads = action.act == Act::vocab_t || action.act == Act::embed_b;
    const bool needs_weights =
        !makes_grads || (action.act == Act::vocab_t && plan_.vocabulary_algorithm == 1);
    if (needs_weights) acquire(unit, nullptr);
    compute(makes_grads ? unit.b : unit.f);
    if (needs_weights) release(unit);
    if (makes_grads) end_grads(unit);
  }

  void reduce_grads() {
    while (!now_.reductions.empty()) finish_oldest();
    for (std::size_t i = 0; reduces_behind_ && plan_.dp > 1 && i < here().buckets.size(); ++i) {
      begin_reduction(static_cast<int>(i));
    }
    if (here().once_tp_seconds > 0.0) {
      lowered_.tp_in_work[at(now_.rank)] += here().once_tp_seconds * now_.scale;
      work(here().once_tp_seconds);
    }
    if (here().ends_bytes > 0.0) sum_ends();
    issue(barrier_);
    wait(barrier_);
  }

  void sum_ends() {
    std::uint32_t& transfer = ends_[at(place())];
    if (transfer == kNone) {
      const int first = neighbour(schedule_.rank_of_stage.front()),
                last = neighbour(schedule_.rank_of_stage.back());
      const bool is_near = ranks_.device(first) / machine_.server_size() ==
                           ranks_.device(last) / machine_.server_size();
      program_.channels.push_back({.ranks = {first, last}});
      transfer = add({.path = paths_.collective({first, last}, {2, is_near ? 2 : 1},
                                                CommOp::all_reduce, here().ends_bytes),
                      .channel = static_cast<int>(program_.channels.size()) - 1,
                      .needed = 2,
                      .traffic = Traffic::ends,
                      .op = CommOp::all_reduce,
                      .bytes = here().ends_bytes});
    }
    issue(transfer);
    wait(transfer);
  }

  void step() {
    work(here().optimizer_seconds);
    if (zero_ != 1 && zero_ != 2) return;
    std::vector<std::uint32_t> gathers;
    for (int bucket = 0; bucket < static_cast<int>(here().buckets.size()); ++bucket) {
      const std::uint32_t transfer = begin_on_dp(CommOp::all_gather, value_bytes(bucket));
      if (transfer != kNone) gathers.push_back(transfer);
    }
    for (const std::uint32_t transfer : gathers) wait(transfer);
  }

  // ---- Between stages: the executor -------------------------------------------------------------

  /// The message that a send begins or a receive waits for, by its sender's stage.
  Message& message(const Action& action, bool is_act, int stage) {
    if (stage < 0 || stage >= schedule_.stages() || action.microbatch < 0 ||
        action.microbatch >= schedule_.microbatches) {
      refuse(fmt::format("rank {}: {} on stage {} has no other end", now_.pp_rank, to_text(action),
                         action.stage));
    }
    const std::size_t line =
        (at(place()) * 2 + (is_act ? 0 : 1)) * at(schedule_.stages()) + at(stage);
    return messages_[line * at(schedule_.microbatches) + at(action.microbatch)];
  }

  std::uint32_t transfer_of(Message& message, const Action& action) {
    if (message.transfer == kNone) {
      message.transfer = add({.traffic = Traffic::pp, .bytes = message_bytes_, .action = action});
    }
    return message.transfer;
  }

  void send(const Action& action) {
    Message& sent = message(action, action.act == Act::send_act, action.stage);
    const std::uint32_t id = transfer_of(sent, action);
    sent.sender = now_.pp_rank;
    sent.action = action;
    program_.transfers[id].action = action;
    program_.transfers[id].rank = now_.rank;
    program_.transfers[id].path =
        paths_.message(now_.rank, neighbour(action.peer), message_bytes_, gather_seconds_);
    issue(id);
  }

  void receive(const Action& action) {
    const bool is_act = action.act == Act::recv_act;
    Message& received = message(action, is_act, is_act ? action.stage - 1 : action.stage + 1);
    if (received.sender < 0) received.action = action;
    received.receiver = now_.pp_rank;
    wait(transfer_of(received, action));
  }

  // ---- Lanes: VocabularyPasses ------------------------------------------------------------------

  /// The last transfer of an exchange of one micro-batch.
  std::uint32_t& lane(const Action& action) {
    const std::size_t kind = static_cast<std::size_t>(action.collective) - 1;
    return lanes_[(at(place()) * kExchanges + kind) * at(schedule_.microbatches) +
                  at(action.microbatch)];
  }

  std::uint32_t on_lane(const Action& action, CommOp op, double bytes) {
    const int channel =
        first_lane_ + place() * kExchanges + static_cast<int>(action.collective) - 1;
    const GroupShape group = group_shape(machine_, plan_.pp, plan_.tp * plan_.dp);
    return add({.path = paths_.collective(program_.channels[at(channel)].ranks, group, op, bytes),
                .channel = channel,
                .needed = has_one_source(action.collective) ? 1 : plan_.pp,
                .traffic = Traffic::lanes,
                .op = op,
                .bytes = bytes,
                .action = action});
  }

  void begin_exchange(const Action& action) {
    if (has_one_source(action.collective) && action.peer != now_.pp_rank) return;
    std::uint32_t& last = ensure(action);
    // Statistics are gathered before what they scale is summed.
    if (sums_behind(action)) issue(last - 1);
    issue(last);
  }

  std::uint32_t& ensure(const Action& action) {
    std::uint32_t& last = lane(action);
    if (last != kNone) return last;
    if (has_one_source(action.collective)) {
      last = on_lane(action, CommOp::broadcast, lane_bytes_);
    } else if (action.collective == Exchange::softmax) {
      last = on_lane(action, CommOp::all_gather, 4.0 * 3.0 * lane_tokens_ * plan_.pp);
      if (sums_behind(action)) last = on_lane(action, CommOp::all_reduce, lane_bytes_);
    } else {
      last = on_lane(action, CommOp::all_reduce, lane_bytes_);
    }
    return last;
  }
  bool sums_behind(const Action& action) const {
    return action.collective == Exchange::softmax && schedule_.vocabulary == 2;
  }

  // ---- A rank -----------------------------------------------------------------------------------

  double slowdown_of(int rank) const {
    double most = 1.0;
    bool is_given = false;
    for (int i = 0; i < plan_.tp; ++i) {
      const auto given = options_.stragglers.find(ranks_.device(rank) + i);
      if (given == options_.stragglers.end()) continue;
      most = is_given ? std::max(most, given->second) : given->second;
      is_given = true;
    }
    // The others of its group wait for the slowest; a fast one alone gains nothing.
    return plan_.tp > 1 ? std::max(1.0, most) : most;
  }

  void lower_rank(int rank) {
    const std::size_t buckets = units_.ranks[at(ranks_.pp_rank(rank))].buckets.size();
    now_ = {.rank = rank, .pp_rank = ranks_.pp_rank(rank), .slowdown = slowdown_of(rank)};
    now_.gathered.assign(buckets, kNone);
    now_.grads.assign(buckets, 0);
    is_here_.assign(buckets, false);
    const std::uint64_t key = rng_key(rng_key(options_.seed, "variation"),
                                      static_cast<std::uint64_t>(ranks_.device(rank)));
    std::uint64_t index = 0;
    for (const Action& action : schedule_.by_rank[at(now_.pp_rank)]) {
      now_.scale = now_.slowdown;
      if (options_.variation > 0.0) {
        now_.scale *= std::max(0.1, 1.0 + options_.variation * random_normal(key, index++));
      }
      flush();
      out().push_back({Kind::action, 0, 0.0});
      lower(action);
    }
    flush();
  }

  void lower(const Action& action) {
    switch (action.act) {
      case Act::f: return forward(units_.stages[at(action.stage)]);
      case Act::b: return backward(units_.stages[at(action.stage)], true, false);
      case Act::w: return backward(units_.stages[at(action.stage)], false, true);
      case Act::bw: return backward(units_.stages[at(action.stage)], true, true);
      case Act::vocab_s:
      case Act::vocab_t:
      case Act::embed_f:
      case Act::embed_b: return vocabulary_pass(action);
      case Act::send_act:
      case Act::send_grad: return send(action);
      case Act::recv_act:
      case Act::recv_grad: return receive(action);
      case Act::begin: return begin_exchange(action);
      case Act::end: return wait(ensure(action));
      case Act::reduce_grads: return reduce_grads();
      case Act::step: return step();
    }
  }

  [[noreturn]] static void refuse(const std::string& what) {
    throw Error(ErrorCode::data, "the schedule cannot be played: " + what,
                "every send needs its receive on the other rank, and the other way round");
  }

  void refuse_unmatched() const {
    for (const Message& message : messages_) {
      if (message.transfer == kNone || (message.sender >= 0 && message.receiver >= 0)) continue;
      const bool is_sent = message.sender >= 0;
      refuse(fmt::format("rank {}: {} of stage {} {} rank {}, which never {} it",
                         is_sent ? message.sender : message.receiver, to_text(message.action),
                         message.action.stage, is_sent ? "goes to" : "waits for",
                         message.action.peer, is_sent ? "receives" : "sends"));
    }
  }

  const Machine& machine_;
  const Candidate& plan_;
  const Schedule& schedule_;
  const PlayedRanks& ranks_;
  const StepOptions& options_;
  StepUnits units_;
  StepPaths paths_;
  const int zero_;
  const double gather_calls_;
  const bool overlaps_;
  const bool reduces_behind_;  ///< all gradients when the pipeline is empty, as Megatron does
  double message_bytes_, gather_seconds_ = 0.0, lane_tokens_ = 0.0, lane_bytes_ = 0.0;

  StepProgram program_;
  LoweredStep lowered_;
  Now now_;
  std::vector<bool> is_here_;  ///< of the rank's buckets, those that are gathered or on their way
  std::uint32_t barrier_ = kNone;
  int first_lane_ = 0;
  std::vector<std::vector<std::uint32_t>> dp_transfers_;  ///< by pp rank
  std::vector<Message> messages_;  ///< by replica, kind, sender's stage and micro-batch
  std::vector<std::uint32_t> lanes_, ends_;
};

}  // namespace

LoweredStep lower_step(const Machine& machine, const Job& job, const Candidate& plan,
                       const Schedule& schedule, const BlockCost& block, const PlayedRanks& ranks,
                       const StepOptions& options) {
  return StepLowering(machine, job, plan, schedule, block, ranks, options).run();
}

}  // namespace heddle::planner
