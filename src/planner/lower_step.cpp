#include "planner/lower_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "planner/codec_time.h"
#include "planner/cost.h"

namespace heddle::planner {
namespace {

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
        gather_calls_(gather_calls(machine, job, plan)),
        gradient_codec_(job.compress.codec(Compression::Kind::gradients)),
        weight_codec_(job.compress.codec(Compression::Kind::weights)),
        message_codec_(job.compress.codec(Compression::Kind::pipeline)),
        keeps_residuals_(job.compress.feeds_back()),
        overlaps_(plan.overlap && job.stack.overlaps_gathers),
        sums_targets_(job.stack.sums_targets),
        policy_(policy_of(options, units_)),
        message_bytes_(static_cast<double>(units_.sizes.message)) {
    policy_.reduces_at_end = !job.stack.overlaps_gathers;
    policy_.reduces = !job.stack.sends_signs();
    policy_.windows = job.windows;
    if (job.stack.splits_messages && plan.tp > 1 && !block.sequence) {
      // Every rank of tp sends its share, and what has arrived is gathered.
      message_bytes_ /= plan.tp;
      gather_seconds_ = collective_seconds(machine, CommOp::all_gather,
                                           group_shape(machine, plan.tp, 1), block.stride_bytes);
    }
  }

  LoweredStep run() {
    const auto count = static_cast<std::size_t>(ranks_.count());
    program_.by_rank.resize(count);
    lowered_.tp_in_compute.resize(count, 0.0);
    lowered_.tp_in_work.resize(count, 0.0);
    lowered_.cp_in_compute.resize(count, 0.0);
    lowered_.ep_in_compute.resize(count, 0.0);
    lowered_.traffic.resize(at(ranks_.pp));
    sums_.resize(ranks_.replicas.size() * policy_.sums.size(), kNone);
    add_channels();
    for (int rank = 0; rank < ranks_.count(); ++rank) lower_rank(rank);
    refuse_unmatched();
    program_.capacities = paths_.take_capacities();
    program_.paths = paths_.take_paths();
    lowered_.program = std::move(program_);
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
    double pending = 0.0;  ///< computation that is not written down yet
    /// By bucket: what was begun and is waited for later; kNone: nothing. Values and gradients may
    /// be under way at a time, and several of the latter.
    std::vector<std::uint32_t> values = {};
    std::vector<std::deque<std::uint32_t>> gradients = {};
    /// Sums that begin in the next computation: beside its experts, and behind them.
    std::vector<StepOp> beside_experts = {}, beside_rest = {};
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

  /// One over dp and cp for every pp rank, and the lanes of every replica.
  void add_channels() {
    const int replicas = static_cast<int>(ranks_.replicas.size());
    const GroupShape group = group_shape(machine_, plan_.token_ranks(), plan_.tp);
    const double contention = contention_on(machine_, group);
    for (int pp_rank = 0; pp_rank < ranks_.pp; ++pp_rank) {
      StepProgram::Channel channel{.at_once = calls_at_once(machine_, group),
                                   .contention = overlaps_ ? contention : 0.0};
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
    lowered_.cp_in_compute[at(now_.rank)] += pass.cp * now_.scale;
    lowered_.ep_in_compute[at(now_.rank)] += pass.ep * now_.scale;
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

  // ---- Over dp and cp
  // ----------------------------------------------------------------------------------

  /// Begins the next exchange; all replicas have them in the same order. kNone when it is done at
  /// once, as without overlap.
  std::uint32_t begin_on_dp(const StepCall& call, bool follows = false) {
    auto& all = dp_transfers_[at(now_.pp_rank)];
    if (now_.dp_calls == all.size()) {
      all.push_back(add(on_dp(call)));
      program_.transfers.back().follows = follows;
    }
    const std::uint32_t transfer = all[now_.dp_calls++];
    issue(transfer);
    if (overlaps_) return transfer;
    wait(transfer);
    return kNone;
  }

  StepProgram::Transfer on_dp(const StepCall& call) {
    const auto bytes = static_cast<double>(call.bytes);
    const bool is_of_experts = call.axes.contains(Axis::edp);
    const GroupShape group =
        is_of_experts ? group_shape(machine_, plan_.expert_token_ranks(), plan_.ep * plan_.etp)
                      : group_shape(machine_, plan_.token_ranks(), plan_.tp);
    return {.path = paths_.collective(program_.channels[at(now_.pp_rank)].ranks, group, call.op,
                                      bytes, StepPaths::Joins::context, gather_calls_),
            .channel = now_.pp_rank,
            .needed = static_cast<int>(ranks_.replicas.size()),
            .traffic = Traffic::dp,
            .op = call.op,
            .bytes = bytes};
  }

  /// What the model's step sums of itself, and then what else is asked for.
  static StepPolicy policy_of(const StepOptions& options, const StepUnits& units) {
    StepPolicy policy = options.policy;
    policy.sums = units.policy.sums;
    for (const StepSum& sum : options.policy.sums) {
      const auto has_its_name = [&](const StepSum& own) {
        return std::string_view(own.name) == sum.name;
      };
      if (std::ranges::none_of(policy.sums, has_its_name)) policy.sums.push_back(sum);
    }
    return policy;
  }

  /// Of a unit with ZeRO-3, as StepPaths wants them: 0 where whole units were measured.
  static double gather_calls(const Machine& machine, const Job& job, const Candidate& plan) {
    if (plan.token_ranks() == 1 || plan.zero < 3) return 0.0;
    const bool is_measured = job.stack.overlaps_gathers &&
                             has_table(machine, group_shape(machine, plan.token_ranks(), plan.tp));
    return is_measured ? 0.0 : gathers_per_unit(job.stack);
  }

  /// The one call of an op.
  StepCall call_of(const StepOp& op) const {
    StepCall made;
    calls().of(op, [&](const StepCall& call) { made = call; });
    return made;
  }
  /// Begins all its calls, which follow each other; the last.
  std::uint32_t begin_on_dp(const StepOp& op) {
    std::uint32_t last = kNone;
    bool follows = false;
    calls().of(
        op, [&](const StepCall& call) { last = begin_on_dp(call, std::exchange(follows, true)); });
    return last;
  }

  // ---- Codecs -----------------------------------------------------------------------------------

  const RankUnits::Bucket& bucket_of(const StepOp& op) const {
    return here().units.buckets[at(op.what)];
  }
  void encode(const codec::Codec* codec, double values, bool keeps_residual = false) {
    if (codec != nullptr) compute({encode_seconds(machine_, codec, values, keeps_residual)});
  }
  void decode(const codec::Codec* codec, double values) {
    if (codec != nullptr) compute({decode_seconds(machine_, codec, values)});
  }
  void encode_values(const StepOp& op) {
    const RankUnits::Bucket& bucket = bucket_of(op);
    if (bucket.coded_values == 0) return;
    encode(weight_codec_.get(),
           static_cast<double>(bucket.elements) / units_.mesh.size(bucket.over));
  }
  void decode_values(const StepOp& op) {
    const RankUnits::Bucket& bucket = bucket_of(op);
    if (bucket.coded_values > 0) decode(weight_codec_.get(), static_cast<double>(bucket.elements));
  }
  void encode_gradients(const StepOp& op) {
    const RankUnits::Bucket& bucket = bucket_of(op);
    if (bucket.coded_gradients == 0) return;
    encode(gradient_codec_.get(), static_cast<double>(bucket.elements), keeps_residuals_);
  }
  /// Without ZeRO the sum is encoded once more, and decoded by all.
  void decode_gradients(const StepOp& op) {
    const RankUnits::Bucket& bucket = bucket_of(op);
    if (bucket.coded_gradients == 0) return;
    const auto values = static_cast<double>(bucket.elements);
    decode(gradient_codec_.get(), values);
    if (bucket.zero > 0) return;
    encode(gradient_codec_.get(), values / units_.mesh.size(bucket.over), keeps_residuals_);
    decode(gradient_codec_.get(), values);
  }
  double message_values() const {
    const CallSizes& sizes = units_.sizes;
    return static_cast<double>(sizes.message_stands_for) / static_cast<double>(sizes.element_bytes);
  }

  // ---- Ops --------------------------------------------------------------------------------------

  void lower(const StepOp& op) {
    const auto bucket = static_cast<std::size_t>(op.what);
    switch (op.kind) {
      case StepOp::Kind::action: return begin_action();
      case StepOp::Kind::compute: return compute(op);
      case StepOp::Kind::fetch:
      case StepOp::Kind::gather:
        encode_values(op);
        now_.values[bucket] = begin_on_dp(op);
        return;
      case StepOp::Kind::values:
      case StepOp::Kind::gathered:
        wait_unless_done(std::exchange(now_.values[bucket], kNone));
        return decode_values(op);
      case StepOp::Kind::reduce:
        if (!here().units.buckets[bucket].over.empty()) {
          encode_gradients(op);
          begin_sum(op);
        }
        return;
      case StepOp::Kind::beside_experts: now_.beside_experts.push_back(op); return;
      case StepOp::Kind::beside_rest: now_.beside_rest.push_back(op); return;
      case StepOp::Kind::reduced:
        wait_unless_done(now_.gradients[bucket].front());
        decode_gradients(op);
        return now_.gradients[bucket].pop_front();
      case StepOp::Kind::rest:
      case StepOp::Kind::local:
        return calls().of(op, [this](const StepCall& call) { sum_over_tp(call); });
      case StepOp::Kind::tie:
      case StepOp::Kind::local_tie:
        if (here().units.tie == RankUnits::Tie::ends) sum_ends(op);
        return;
      case StepOp::Kind::sum: return sum(op);
      case StepOp::Kind::vectors: return exchange(op);
      case StepOp::Kind::update: exchange(op); return work(here().optimizer_seconds);
      case StepOp::Kind::receive: return receive(*op.action);
      case StepOp::Kind::send: return send(*op.action);
      case StepOp::Kind::begin: return begin_exchange(op);
      case StepOp::Kind::end: return wait(ensure(op));
      // What costs no time: memory, and messages that have room. What sites exchange lasts for
      // several steps: site_times.
      case StepOp::Kind::outer_begin:
      case StepOp::Kind::outer_end:
      case StepOp::Kind::drop:
      case StepOp::Kind::open:
      case StepOp::Kind::norm:
      case StepOp::Kind::post:
      case StepOp::Kind::sent: return;
    }
  }

  void begin_action() {
    now_.scale = now_.slowdown;
    if (options_.variation > 0.0) {
      now_.scale *= std::max(0.1, 1.0 + options_.variation * random_normal(key_, drawn_++));
    }
    flush();
    out().push_back({Kind::action, 0, 0.0});
  }

  void compute(const StepOp& op) {
    const UnitTimes& times = here().times[at(op.what)];
    switch (op.action->act) {
      case Act::f:
      case Act::vocab_s:
      case Act::embed_f: return compute(times.f);
      case Act::w: return compute(times.w);
      case Act::bw: return compute_with_sums(together(times.b, times.w), times.in_bw);
      default: return compute_with_sums(times.b, times.in_b);
    }
  }

  static UnitPass together(const UnitPass& a, const UnitPass& b) {
    return {a.seconds + b.seconds, a.tp + b.tp, a.cp + b.cp, a.ep + b.ep};
  }

  /// What was offered to the pass begins where experts leave the network idle, and behind them. A
  /// sum that takes longer than that holds the rows' way home up.
  void compute_with_sums(const UnitPass& pass, const ExpertsWindow& window) {
    if (now_.beside_experts.empty() && now_.beside_rest.empty()) return compute(pass);
    double done = 0.0;
    const auto compute_to = [&](double until) {
      const double part = std::clamp(until, done, pass.seconds) - done;
      done += part;
      const double share = pass.seconds > 0.0 ? part / pass.seconds : 1.0;
      compute(UnitPass{part, share * pass.tp, share * pass.cp, share * pass.ep});
    };
    compute_to(window.begin);
    const std::vector<StepOp> beside = std::exchange(now_.beside_experts, {});
    std::vector<std::uint32_t> begun;
    for (const StepOp& op : beside) begun.push_back(begin_on_dp(op));
    compute_to(window.begin + window.idle);
    for (std::size_t i = 0; i < beside.size(); ++i) {
      wait_unless_done(begun[i]);
      now_.gradients[at(beside[i].what)].push_back(kNone);
    }
    compute_to(window.seconds);
    for (const StepOp& op : std::exchange(now_.beside_rest, {})) begin_sum(op);
    compute_to(pass.seconds);
  }

  void begin_sum(const StepOp& op) { now_.gradients[at(op.what)].push_back(begin_on_dp(op)); }

  void wait_unless_done(std::uint32_t transfer) {
    if (transfer != kNone) wait(transfer);
  }

  /// One call after the other, over dp and cp.
  void exchange(const StepOp& op) {
    calls().of(op, [&](const StepCall& call) { wait_unless_done(begin_on_dp(call)); });
  }

  void sum_over_tp(const StepCall& call) {
    const int ranks = units_.mesh.size(call.axes);
    const double seconds = collective_seconds(machine_, call.op, group_shape(machine_, ranks, 1),
                                              static_cast<double>(call.bytes));
    lowered_.tp_in_work[at(now_.rank)] += seconds * now_.scale;
    work(seconds);
  }

  /// Numbers that are summed before a step's first computation are summed behind its last here: one
  /// step follows another.
  void sum_first_numbers() {
    for (int i = 0; i < static_cast<int>(policy_.sums.size()); ++i) {
      if (policy_.sums[at(i)].when == StepSum::When::first) sum({StepOp::Kind::sum, i});
    }
  }

  /// One axis after the other; in the end all have waited for each other.
  void sum(const StepOp& op) {
    calls().of(op, [&](const StepCall& call) {
      if (call.axes.contains(Axis::tp)) return sum_over_tp(call);
      if (!call.axes.contains(Axis::pp)) return wait_unless_done(begin_on_dp(call));
      std::uint32_t& transfer = sums_[at(place()) * policy_.sums.size() + at(op.what)];
      if (transfer == kNone) transfer = add(on_pp(call));
      issue(transfer);
      wait(transfer);
    });
  }

  StepProgram::Transfer on_pp(const StepCall& call) {
    std::vector<int> members;
    for (int pp_rank = 0; pp_rank < ranks_.pp; ++pp_rank) members.push_back(neighbour(pp_rank));
    const GroupShape group = group_shape(machine_, plan_.pp, plan_.tp * plan_.token_ranks());
    const auto bytes = static_cast<double>(call.bytes);
    return {.path = paths_.collective(members, group, call.op, bytes), .needed = plan_.pp};
  }

  void sum_ends(const StepOp& op) {
    std::uint32_t& transfer = ends_[at(place())];
    if (transfer == kNone) {
      const int first = neighbour(schedule_.rank_of_stage.front()),
                last = neighbour(schedule_.rank_of_stage.back());
      const bool is_near = ranks_.device(first) / machine_.server_size() ==
                           ranks_.device(last) / machine_.server_size();
      const StepCall call = call_of(op);
      const auto bytes = static_cast<double>(call.bytes);
      program_.channels.push_back({.ranks = {first, last}});
      transfer =
          add({.path = paths_.collective({first, last}, {2, is_near ? 2 : 1}, call.op, bytes),
               .channel = static_cast<int>(program_.channels.size()) - 1,
               .needed = 2,
               .traffic = Traffic::ends,
               .op = call.op,
               .bytes = bytes});
    }
    issue(transfer);
    wait(transfer);
  }

  // ---- Between stages ---------------------------------------------------------------------------

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
    if (units_.sizes.message_stands_for > 0) encode(message_codec_.get(), message_values());
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
    const int mb = action.microbatch;
    Message& received =
        message(action, is_act,
                is_act ? schedule_.before(action.stage, mb) : schedule_.behind(action.stage, mb));
    if (received.sender < 0) received.action = action;
    received.receiver = now_.pp_rank;
    wait(transfer_of(received, action));
    if (units_.sizes.message_stands_for > 0) decode(message_codec_.get(), message_values());
  }

  // ---- Lanes of a divided vocabulary ------------------------------------------------------------

  /// The last transfer of an exchange of one micro-batch.
  std::uint32_t& lane(const Action& action) {
    const std::size_t kind = static_cast<std::size_t>(action.collective) - 1;
    return lanes_[(at(place()) * kExchanges + kind) * at(schedule_.microbatches) +
                  at(action.microbatch)];
  }

  std::uint32_t on_lane(const Action& action, CommOp op, double bytes) {
    const int channel =
        first_lane_ + place() * kExchanges + static_cast<int>(action.collective) - 1;
    const GroupShape group = group_shape(machine_, plan_.pp, plan_.tp * plan_.token_ranks());
    return add({.path = paths_.collective(program_.channels[at(channel)].ranks, group, op, bytes),
                .channel = channel,
                .needed = has_one_source(action.collective) ? 1 : plan_.pp,
                .traffic = Traffic::lanes,
                .op = op,
                .bytes = bytes,
                .action = action});
  }

  void begin_exchange(const StepOp& op) {
    const Action& action = *op.action;
    if (has_one_source(action.collective) && action.peer != now_.pp_rank) return;
    const std::uint32_t last = ensure(op);
    // An exchange of several calls makes them one after the other.
    for (std::uint32_t id = last + 1 - calls_of(op); id <= last; ++id) issue(id);
  }

  std::uint32_t calls_of(const StepOp& op) const {
    std::uint32_t count = 0;
    calls().of({StepOp::Kind::begin, -1, op.action}, [&](const StepCall&) { ++count; });
    return count;
  }

  std::uint32_t ensure(const StepOp& op) {
    std::uint32_t& last = lane(*op.action);
    if (last != kNone) return last;
    calls().of({StepOp::Kind::begin, -1, op.action}, [&](const StepCall& call) {
      last = on_lane(*op.action, call.op, static_cast<double>(call.bytes));
    });
    return last;
  }

  // ---- A rank -----------------------------------------------------------------------------------

  double slowdown_of(int rank) const {
    double most = 1.0;
    bool is_given = false;
    for (int i = 0; i < ranks_.group_size(); ++i) {
      const auto given = options_.stragglers.find(ranks_.device(rank) + i);
      if (given == options_.stragglers.end()) continue;
      most = is_given ? std::max(most, given->second) : given->second;
      is_given = true;
    }
    // The others of its group wait for the slowest; a fast one alone gains nothing.
    return ranks_.group_size() > 1 ? std::max(1.0, most) : most;
  }

  void lower_rank(int rank) {
    now_ = {.rank = rank, .pp_rank = ranks_.pp_rank(rank), .slowdown = slowdown_of(rank)};
    const RankUnits& units = here().units;
    now_.values.assign(units.buckets.size(), kNone);
    now_.gradients.resize(units.buckets.size());
    key_ = rng_key(rng_key(options_.seed, "variation"),
                   static_cast<std::uint64_t>(ranks_.device(rank)));
    drawn_ = 0;
    calls_.emplace(units, policy_, units_.mesh, units_.sizes, schedule_.vocabulary);
    tell_step(schedule_, now_.pp_rank, units, policy_, [&](const StepOp& op) {
      if (place() == 0) count(op);
      const bool comes_later =
          op.kind == StepOp::Kind::sum && policy_.sums[at(op.what)].when == StepSum::When::first;
      if (!comes_later) lower(op);
    });
    if (sums_targets_) sum_first_numbers();
    flush();
  }

  const StepCalls& calls() const { return *calls_; }

  void count(const StepOp& op) {
    TrafficBySize& traffic = lowered_.traffic[at(now_.pp_rank)];
    calls().of(op, [&](const StepCall& call) { traffic.of(call).add(call.op, 1, call.bytes); });
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
  const double gather_calls_;
  const std::shared_ptr<const codec::Codec> gradient_codec_, weight_codec_, message_codec_;
  const bool keeps_residuals_;
  const bool overlaps_, sums_targets_;
  StepPolicy policy_;
  double message_bytes_, gather_seconds_ = 0.0;

  StepProgram program_;
  LoweredStep lowered_;
  Now now_;
  std::optional<StepCalls> calls_;     ///< of the rank that is being lowered
  std::uint64_t key_ = 0, drawn_ = 0;  ///< of its variation
  std::vector<std::uint32_t> sums_;    ///< over pp, by replica and sum
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
