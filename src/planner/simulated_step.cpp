#include "planner/simulated_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "planner/finalists.h"
#include "planner/lower_step.h"
#include "simulator/play_step.h"

namespace heddle::planner {
namespace {

/// Ends of flows in a topology that are this near are taken together (FlowNetwork).
constexpr double kTopologyTolerance = 1e-3;

void check(const Candidate& plan, const StepOptions& options, const Schedule& schedule,
           std::int64_t microbatches) {
  for (const auto& [device, factor] : options.stragglers) {
    if (device < 0 || device >= plan.gpus()) {
      throw Error(ErrorCode::usage, fmt::format("there is no device {} that could be slow", device),
                  fmt::format("the plan has devices 0 to {}", plan.gpus() - 1));
    }
    if (!(std::isfinite(factor) && factor > 0.0)) {
      throw Error(ErrorCode::usage,
                  fmt::format("device {} cannot take {} times as long", device, factor),
                  "1 is as fast as the others, 2 takes twice as long");
    }
  }
  const auto has_stages =
      std::all_of(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(),
                  [&](int rank) { return rank >= 0 && rank < schedule.ranks(); });
  if (schedule.ranks() != plan.pp || schedule.microbatches != microbatches || !has_stages) {
    throw Error(ErrorCode::usage,
                fmt::format("a schedule of {} ranks and {} micro-batches was given for {} and {}",
                            schedule.ranks(), schedule.microbatches, plan.pp, microbatches),
                "make it for the plan's pp and micro-batches");
  }
}

/// Those that may differ from each other, and one of the others.
PlayedRanks played_ranks(const Machine& machine, const Candidate& plan,
                         const StepOptions& options) {
  PlayedRanks ranks{.tp = plan.tp, .pp = plan.pp, .dp = plan.dp, .cp = plan.cp, .replicas = {}};
  const bool all_differ =
      options.variation > 0.0 || options.topology != nullptr || !machine.pairs.empty();
  std::set<int> slow;
  for (const auto& [device, factor] : options.stragglers) {
    slow.insert(device / ranks.group_size() % plan.dp);
  }
  bool has_plain = false;
  for (int replica = 0; replica < plan.dp; ++replica) {
    const bool is_plain = !all_differ && !slow.contains(replica);
    if (is_plain && has_plain) continue;
    has_plain |= is_plain;
    ranks.replicas.push_back(replica);
  }
  return ranks;
}

[[noreturn]] void refuse_stuck(const PlayedStep& played, const StepProgram& program,
                               const Schedule& schedule, const PlayedRanks& ranks) {
  std::string text;
  int named = 0;
  for (const auto& [rank, index, transfer] : played.stuck) {
    if (++named > 4) break;
    const int pp_rank = ranks.pp_rank(rank);
    const Action& action = schedule.by_rank[static_cast<std::size_t>(pp_rank)][index];
    text += fmt::format("{}rank {} waits in {} of stage {}", text.empty() ? "" : "; ", pp_rank,
                        to_text(action), action.stage);
    const StepProgram::Transfer& awaited = program.transfers[transfer];
    if (awaited.traffic == Traffic::pp) {
      text += fmt::format(" for {} of rank {}", to_text(awaited.action), action.peer);
    } else if (awaited.needed > 1) {
      text += " for the others";
    }
  }
  throw Error(ErrorCode::data, "the schedule never ends: " + text,
              "`validate` names everything that is wrong with a schedule");
}

class Result {
 public:
  Result(const LoweredStep& lowered, const PlayedStep& played, const Schedule& schedule,
         const PlayedRanks& ranks)
      : lowered_(lowered), played_(played), schedule_(schedule), ranks_(ranks) {
    step_.seconds = played.seconds;
    step_.transfers = played.transfers.size();
  }

  SimulatedStep run(bool keeps_spans) {
    add_ranks();
    add_bubble();
    if (keeps_spans) {
      add_actions();
      add_transfers();
    }
    return std::move(step_);
  }

 private:
  void add_ranks() {
    // The first replica that is played stands for all that are not.
    const double left_out = ranks_.dp - static_cast<double>(ranks_.replicas.size());
    for (int rank = 0; rank < ranks_.count(); ++rank) {
      const StepTimes times = times_of(rank);
      step_.ranks.push_back({.device = ranks_.device(rank),
                             .pp_rank = ranks_.pp_rank(rank),
                             .replica = ranks_.replica(rank),
                             .times = times});
      const double weight =
          (rank / ranks_.pp == plain() ? 1.0 + left_out : 1.0) / (ranks_.dp * ranks_.pp);
      add(step_.mean, times, weight);
    }
  }

  /// Of the replicas that are played, the one that stands for others: those that are left out come
  /// behind it, so it is the last before the first gap.
  int plain() const {
    for (std::size_t i = 0; i < ranks_.replicas.size(); ++i) {
      const int next = i + 1 < ranks_.replicas.size() ? ranks_.replicas[i + 1] : ranks_.dp;
      if (next > ranks_.replicas[i] + 1) return static_cast<int>(i);
    }
    return 0;
  }

  StepTimes times_of(int index) const {
    const auto at = static_cast<std::size_t>(index);
    const PlayedStep::Rank& rank = played_.ranks[at];
    StepTimes times;
    times.tp = lowered_.tp_in_compute[at] + lowered_.tp_in_work[at];
    times.cp = lowered_.cp_in_compute[at];
    times.ep = lowered_.ep_in_compute[at];
    times.compute = rank.busy - lowered_.tp_in_compute[at] - times.cp - times.ep;
    times.optimizer = rank.work - lowered_.tp_in_work[at];
    times.bubble = rank.bubble + (played_.seconds - rank.end);
    times.exposed = rank.exposed;
    for (std::size_t i = 0; i < times.hidden.size(); ++i) {
      times.hidden[i] = std::max(0.0, rank.transferring[i] - rank.exposed[i]);
    }
    return times;
  }

  static void add(StepTimes& to, const StepTimes& from, double weight) {
    to.compute += weight * from.compute;
    to.tp += weight * from.tp;
    to.cp += weight * from.cp;
    to.ep += weight * from.ep;
    to.bubble += weight * from.bubble;
    to.optimizer += weight * from.optimizer;
    for (std::size_t i = 0; i < to.exposed.size(); ++i) {
      to.exposed[i] += weight * from.exposed[i];
      to.hidden[i] += weight * from.hidden[i];
    }
  }

  void add_bubble() {
    double all_busy = 0.0, cost = 0.0, ideal = 0.0;
    for (const PlayedStep::Rank& rank : played_.ranks) {
      all_busy += rank.busy;
      step_.makespan = std::max(step_.makespan, rank.last_compute);
      cost = std::max(cost, rank.last_compute - std::max(0.0, rank.first_compute));
      ideal = std::max(ideal, rank.busy);
    }
    if (step_.makespan <= 0.0) return;
    const double all = step_.makespan * ranks_.count();
    step_.bubble_fraction = (all - all_busy) / all;
    step_.bubble_over_ideal = (all - all_busy) / all_busy;
    step_.bubble_cost_rate = (cost - ideal) / cost;
  }

  void add_actions() {
    for (int rank = 0; rank < ranks_.count(); ++rank) {
      const auto& [begins, end, busy, work, first, last, bubble, exposed, transferring] =
          played_.ranks[static_cast<std::size_t>(rank)];
      const auto& actions = schedule_.by_rank[static_cast<std::size_t>(ranks_.pp_rank(rank))];
      for (std::size_t i = 0; i < actions.size(); ++i) {
        const double until = i + 1 < begins.size() ? begins[i + 1] : end;
        step_.spans.push_back({.name = to_text(actions[i], schedule_),
                               .category = "action",
                               .rank = ranks_.device(rank),
                               .stream = 0,
                               .begin_seconds = begins[i],
                               .duration_seconds = until - begins[i]});
      }
    }
  }

  void add_transfers() {
    const StepProgram& program = lowered_.program;
    for (std::size_t id = 0; id < program.transfers.size(); ++id) {
      const StepProgram::Transfer& transfer = program.transfers[id];
      if (transfer.traffic == Traffic::none) continue;
      const bool is_message = transfer.traffic == Traffic::pp;
      observe::Span span{
          .name = is_message ? to_text(transfer.action) : std::string(heddle::name_of(transfer.op)),
          .category = is_message ? "message" : "collective",
          .stream = 1 + static_cast<int>(transfer.traffic),
          .begin_seconds = played_.transfers[id].begin,
          .duration_seconds = played_.transfers[id].end - played_.transfers[id].begin,
          .bytes = static_cast<std::uint64_t>(transfer.bytes)};
      if (is_message) {
        span.rank = ranks_.device(transfer.rank);
        step_.spans.push_back(std::move(span));
        continue;
      }
      for (const int rank : program.channels[static_cast<std::size_t>(transfer.channel)].ranks) {
        span.rank = ranks_.device(rank);
        step_.spans.push_back(span);
      }
    }
  }

  const LoweredStep& lowered_;
  const PlayedStep& played_;
  const Schedule& schedule_;
  const PlayedRanks& ranks_;
  SimulatedStep step_;
};

}  // namespace

double StepTimes::sum() const {
  return compute + tp + cp + ep + bubble + optimizer +
         std::accumulate(exposed.begin(), exposed.end(), 0.0);
}

double simulated_passes(const Machine& machine, const Job& job, const Candidate& plan,
                        const StepOptions& options) {
  const double stages = plan.pp * (is_v_shaped(plan.schedule) ? 2.0 : plan.chunks);
  const bool is_cut = plan.token_ranks() > 1 && plan.zero >= 2;
  return static_cast<double>(plan.microbatches(job)) *
         (is_cut ? static_cast<double>(job.spec.layers) + stages : stages) *
         static_cast<double>(played_ranks(machine, plan, options).replicas.size());
}

SimulatedStep simulate_step(const Machine& machine, const Job& job, const Candidate& plan,
                            const StepOptions& options) {
  const std::int64_t microbatches = plan.microbatches(job);
  const double passes = simulated_passes(machine, job, plan, options);
  if (passes > kMostPasses) {
    throw Error(
        ErrorCode::usage,
        fmt::format("{} with {} micro-batches has {:.3g} passes to simulate, more than {:.3g}",
                    describe(plan), microbatches, passes, kMostPasses),
        "use larger micro-batches or a smaller batch: the steady state shows with a few "
        "micro-batches per stage");
  }
  Schedule own;
  if (options.schedule == nullptr) own = step_schedule(plan, microbatches);
  const Schedule& schedule = options.schedule == nullptr ? own : *options.schedule;
  check(plan, options, schedule, microbatches);
  const PlayedRanks ranks = played_ranks(machine, plan, options);
  const BlockCost block = block_cost(machine, job, plan);
  const LoweredStep lowered = lower_step(machine, job, plan, schedule, block, ranks, options);
  const PlayedStep played = play_step(
      lowered.program, options.topology == nullptr ? 0.0 : kTopologyTolerance, options.progress);
  if (!played.stuck.empty()) refuse_stuck(played, lowered.program, schedule, ranks);
  SimulatedStep step = Result(lowered, played, schedule, ranks).run(options.keeps_spans);
  step.messages = lowered.traffic;
  return step;
}

observe::Trace trace_of(const SimulatedStep& step) {
  observe::Trace trace;
  std::set<std::pair<int, int>> used;
  for (const observe::Span& span : step.spans) {
    trace.add(span);
    used.insert({span.rank, span.stream});
  }
  for (const auto& [rank, stream] : used) {
    trace.name_stream(rank, stream, kStepStreams[static_cast<std::size_t>(stream)]);
  }
  return trace;
}

}  // namespace heddle::planner
