#include "planner/predicted_step.h"

#include <limits>
#include <utility>

#include "planner/context_cost.h"
#include "planner/experts_cost.h"
#include "planner/experts_schedule.h"
#include "planner/finalists.h"
#include "planner/planned_windows.h"

namespace heddle::planner {
namespace {

Candidate candidate_of(const ParallelPlan& plan, const RunBatches& batches) {
  return {plan.request(), batches.recompute ? Recompute::full : Recompute::none,
          static_cast<int>(batches.sequences)};
}

Job job_of(const ModelSpec& spec, const ParallelPlan& plan, const RunBatches& batches,
           DType dtype) {
  Job job{.spec = spec,
          .seq_len = batches.seq_len,
          .batch = batches.sequences * batches.microbatches * plan.request().dp,
          .stack = Stack::heddle(dtype, plan.whole_matrices   ? Updates::muon
                                        : batches.sends_signs ? Updates::onebit_adam
                                                              : Updates::adamw)};
  job.stack.newton_schulz_steps = batches.newton_schulz_steps;
  job.compress = plan.compress;
  job.windows = plan.policy.windows;
  return job;
}

std::pair<int, int> degrees_of(const ExchangeRequest& exchange, int etp) {
  const ExchangePlan plan = exchange.plan(etp);
  return {plan.degree_forward, plan.degree_backward};
}

/// Of one site.
double inner_seconds(const Machine& at_work, const Job& job, const Candidate& candidate) {
  const Split split =
      split_blocks(job, candidate.schedule, candidate.pp, candidate.chunks, candidate.vocabulary);
  const BlockCost block = block_cost(at_work, job, candidate);
  Found found{.candidate = candidate, .time = {}, .memory = {}};
  found.time = estimate_time(at_work, job, candidate, split, block);
  return simulate_plan(at_work, job, found).seconds;
}

}  // namespace

double predicted_step_seconds(const Machine& machine, const ModelSpec& spec,
                              const ParallelPlan& plan, const RunBatches& batches, DType dtype) {
  const auto sites = predicted_sites(machine, spec, plan, batches, dtype);
  if (sites) return sites->step_seconds;
  const Candidate candidate = candidate_of(plan, batches);
  return inner_seconds(machine.at_work(candidate.gpus()), job_of(spec, plan, batches, dtype),
                       without_sites(candidate));
}

std::optional<SiteTimes> predicted_sites(const Machine& machine, const ModelSpec& spec,
                                         const ParallelPlan& plan, const RunBatches& batches,
                                         DType dtype) {
  if (plan.sites == 1 || plan.policy.outer.every == 0) return std::nullopt;
  const Candidate candidate = candidate_of(plan, batches);
  Job job = job_of(spec, plan, batches, dtype);
  job.outer = plan.policy.outer;
  const Machine at_work = machine.at_work(candidate.gpus());
  return site_times(at_work, job, candidate, inner_seconds(at_work, job, without_sites(candidate)));
}

PlannedExchange planned_exchange(const Machine& machine, const ModelSpec& spec,
                                 const ParallelPlan& plan, const RunBatches& batches, DType dtype) {
  Candidate candidate = without_sites(candidate_of(plan, batches));
  const Job job = job_of(spec, plan, batches, dtype);
  const Machine at_work = machine.at_work(static_cast<int>(plan.request().ranks()));
  PlannedExchange planned{.exchange = plan.ep_exchange};
  if (plan.ep_exchange.leaves_degrees()) {
    planned.exchange = with_fastest_degrees(at_work, job, candidate, dry_blocks(job, candidate));
  }
  if (!plan.ep_exchange.plans_windows()) return planned;
  // With sums in them passes back may be shortest with other pieces.
  const auto [forward, backward] = degrees_of(planned.exchange, candidate.etp);
  const std::vector<int> degrees =
      plan.ep_exchange.leaves_degrees()
          ? std::vector<int>(std::begin(kExpertsDegrees), std::end(kExpertsDegrees))
          : std::vector<int>{backward};
  double least = std::numeric_limits<double>::infinity();
  for (const int degree : degrees) {
    candidate.ep_exchange = planned.exchange.with_degrees(forward, degree);
    PlannedWindows windows = plan_windows(at_work, job, candidate, plan.rank_of_stage);
    if (windows.seconds >= least) continue;
    least = windows.seconds;
    planned.exchange = candidate.ep_exchange;
    planned.windows = std::move(windows.windows);
  }
  return planned;
}

namespace {

AttentionByRank played_attention(const ContextPlan& plan, const ContextTimes& times, double again) {
  const PlayedContext forward = play_forward(plan, times), backward = play_backward(plan, times);
  AttentionByRank by_rank;
  for (std::size_t rank = 0; rank < forward.by_rank.size(); ++rank) {
    PredictedAttention& own = by_rank.emplace_back(PredictedAttention{.exposed_f = again});
    const auto add = [&](const PlayedContext& played, double& exposed) {
      for (const PlayedRound& round : played.by_rank[rank]) {
        own.computed += round.computed - round.begin;
        exposed += round.end - round.computed;
      }
    };
    add(forward, own.exposed_f);
    add(backward, own.exposed_b);
  }
  return by_rank;
}

}  // namespace

std::vector<AttentionByRank> predicted_attention(const Machine& machine, const ModelSpec& spec,
                                                 const ParallelPlan& plan,
                                                 const RunBatches& batches, DType dtype) {
  const Candidate candidate = without_sites(candidate_of(plan, batches));
  std::vector<AttentionByRank> by_block;
  if (candidate.cp == 1) return by_block;
  const Job job = job_of(spec, plan, batches, dtype);
  const Machine at_work = machine.at_work(static_cast<int>(plan.request().ranks()));
  const ContextTimes times = context_times(at_work, job, candidate);
  // Heads are exchanged again whatever the window.
  const double again = batches.recompute ? context_cost(at_work, job, candidate).again : 0.0;
  for (const ContextShape& shape : context_shapes(job, candidate)) {
    by_block.push_back(played_attention(make_context_plan(shape), times, again));
  }
  return by_block;
}

}  // namespace heddle::planner
