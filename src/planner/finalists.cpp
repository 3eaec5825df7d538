#include "planner/finalists.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "model/parallel_plan.h"
#include "parallel/schedule/make_schedule.h"
#include "planner/evaluate.h"
#include "simulator/play.h"

namespace heddle::planner {
namespace {

/// Stages times micro-batches that are played in about a second.
constexpr double kMostPasses = 2e5;

auto shape_of(const Candidate& c) {
  return std::tuple(c.tp, c.pp, c.dp, static_cast<int>(c.schedule), c.chunks, c.sequences,
                    c.vocabulary == VocabularyPlacement::pipeline);
}

/// The times of one stage: its blocks, and the ends of the model where it has them.
StageTimes stage_times(const BlockCost& block, const Candidate& candidate,
                       const DecoderShare::Units& units, const ModelSpec& spec) {
  const bool is_whole = candidate.vocabulary != VocabularyPlacement::tensor && candidate.tp > 1;
  const bool is_shared = candidate.vocabulary == VocabularyPlacement::pipeline;
  const int last = unit_count(spec) - 1;
  const int blocks = std::max(0, std::min(units.end, last - 1) - std::max(units.begin, 1));
  const RankTimes of_blocks = rank_times(block, candidate.recompute, blocks);
  StageTimes times{of_blocks.f, of_blocks.b, of_blocks.w, 0.0};
  if (units.begin == 0 && units.end > 0 && !is_shared) {
    times.f += (is_whole ? block.whole_embedding : block.embedding).seconds();
  }
  if (units.end == last + 1 && units.begin <= last && !is_shared) {
    times.f += (is_whole ? block.whole_head_forward : block.head_forward).seconds();
    const double back = (is_whole ? block.whole_head_backward : block.head_backward).seconds();
    times.b += 0.5 * back;
    times.w += 0.5 * back;
  }
  return times;
}

}  // namespace

Finalist simulate_plan(const Machine& machine, const Job& job, const Found& found) {
  const Candidate& plan = found.candidate;
  Finalist finalist{.found = found};
  const double microbatches = static_cast<double>(plan.microbatches(job));
  finalist.seconds = found.time.total;
  if (microbatches * plan.pp * std::max(2, plan.chunks) > kMostPasses) return finalist;
  const bool is_shared = plan.vocabulary == VocabularyPlacement::pipeline;
  const PipeShape shape{.ranks = plan.pp,
                        .microbatches = static_cast<int>(microbatches),
                        .chunks = plan.chunks,
                        .vocabulary = is_shared ? plan.vocabulary_algorithm : 0};
  const Schedule schedule = lower(make_schedule(name_of(plan.schedule), shape));
  const BlockCost block = block_cost(machine, job, plan.tp, plan.sequence, plan.sequences);
  const double hop = hop_seconds(machine, job, plan, block);
  std::vector<StageTimes> times;
  std::vector<double> costs = unit_costs(job.spec, job.seq_len);
  VocabularyTimes vocabulary;
  if (is_shared) {
    costs.back() = 0.0;
    vocabulary = {.s = block.whole_head_forward.seconds() / plan.pp,
                  .t = block.whole_head_backward.seconds() / plan.pp};
  }
  for (const auto& units : cut_stages(costs, schedule.stages())) {
    times.push_back(stage_times(block, plan, units, job.spec));
    times.back().hop = hop;
  }
  const Played played = play(schedule, times, vocabulary);
  finalist.is_simulated = true;
  finalist.makespan = played.makespan;
  finalist.bubble_fraction = played.bubble_fraction;
  finalist.seconds = played.makespan + found.time.dp + found.time.step + found.time.stragglers;
  return finalist;
}

std::vector<Finalist> choose_finalists(const Machine& machine, const Job& job,
                                       const SearchResult& result, int count) {
  std::vector<Finalist> finalists;
  std::set<decltype(shape_of(Candidate{}))> seen;
  const auto add = [&](const Found& found) {
    if (static_cast<int>(finalists.size()) == count) return;
    if (!seen.insert(shape_of(found.candidate)).second) return;
    finalists.push_back(simulate_plan(machine, job, found));
  };
  // One of every mesh that is near, so that the closed form's order of schedules does not decide.
  for (const Found& found : result.by_mesh) {
    if (found.time.total <= 1.05 * result.best.front().time.total) add(found);
  }
  for (const Found& found : result.best) add(found);
  std::sort(finalists.begin(), finalists.end(),
            [](const Finalist& a, const Finalist& b) { return a.seconds < b.seconds; });
  auto chosen = finalists.begin();
  for (auto one = finalists.begin(); one != finalists.end(); ++one) {
    if (one->seconds > finalists.front().seconds * (1.0 + kTie)) break;
    if (is_simpler(one->found.candidate, chosen->found.candidate)) chosen = one;
  }
  std::rotate(finalists.begin(), chosen, chosen + 1);
  return finalists;
}

std::string why_slower(const TimeEstimate& loser, const TimeEstimate& winner) {
  struct Part {
    const char* name;
    double more;
  };
  std::array parts = {Part{"computation", loser.compute - winner.compute},
                      Part{"collectives over tp", loser.tp - winner.tp},
                      Part{"bubble", loser.bubble - winner.bubble},
                      Part{"messages between stages", loser.pp - winner.pp},
                      Part{"exchange over dp", loser.dp - winner.dp},
                      Part{"optimizer step", loser.step - winner.step},
                      Part{"waiting for the slowest", loser.stragglers - winner.stragglers}};
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.more > b.more; });
  std::string text;
  for (const Part& part : parts) {
    if (part.more < 0.2 * parts.front().more || part.more <= 0.0) break;
    text += fmt::format("{}{} +{:.3g} s", text.empty() ? "" : ", ", part.name, part.more);
  }
  return text.empty() ? "as fast, within the model's error" : text;
}

std::string describe(const Candidate& plan) {
  std::string text = fmt::format("tp {}, pp {}, dp {}", plan.tp, plan.pp, plan.dp);
  if (plan.pp > 1) text += fmt::format(", {}", name_of(plan.schedule));
  if (plan.chunks > 1) text += fmt::format(" x {}", plan.chunks);
  text += fmt::format(", micro-batch {}", plan.sequences);
  if (plan.dp > 1) text += fmt::format(", ZeRO {}", plan.zero);
  if (plan.sequence) text += ", sequence";
  if (plan.tp > 1 && plan.vocabulary == VocabularyPlacement::replicated)
    text += ", whole vocabulary";
  if (plan.vocabulary == VocabularyPlacement::pipeline) text += ", vocabulary over the pipeline";
  if (plan.recompute != Recompute::none) text += ", recompute";
  return text;
}

}  // namespace heddle::planner
