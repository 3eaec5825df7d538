#include "train/rank_speeds.h"

#include <algorithm>
#include <map>

#include "base/quantile.h"
#include "model/given_cut.h"
#include "parallel/sequence/context_plan.h"
#include "train/context_choices.h"

namespace heddle {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

std::vector<int> blocks_by_pipeline_rank(const ModelSpec& spec, const ParallelPlan& plan) {
  const std::vector<int> of_stages = blocks_of(spec, plan.units_of_stage);
  std::vector<int> blocks(at(plan.pp), 0);
  for (int stage = 0; stage < plan.stages(); ++stage) {
    blocks[at(plan.rank_of_stage[at(stage)])] += of_stages[at(stage)];
  }
  return blocks;
}

bool are_blocks_alike(const ModelSpec& spec, std::int64_t seq_len) {
  const std::vector<double> costs = unit_costs(spec, seq_len);
  return std::all_of(costs.begin() + 1, costs.begin() + 1 + spec.layers,
                     [&](double cost) { return cost == costs[1]; });
}

/// Whether ranks of cp attend to equally many pairs, as near as orders get there.
bool is_context_even(const config::RunConfig& config, const ModelSpec& spec,
                     const ParallelPlan& plan) {
  if (plan.cp == 1) return true;
  if (config.data.documents == config::Documents::mask) return false;
  const ContextPlan made = make_context_plan(microbatch_shape(config, spec, plan));
  const auto counts = count_by_rank(made.forward, made.shape);
  const auto [least, most] = std::ranges::minmax(counts, {}, &RankCounts::head_pairs);
  constexpr double kNearly = 1.05;
  return static_cast<double>(most.head_pairs) <= kNearly * static_cast<double>(least.head_pairs);
}

}  // namespace

RankWork rank_work(const config::RunConfig& config, const ModelSpec& spec,
                   const ParallelPlan& plan) {
  const bool has_equal_stages = are_blocks_alike(spec, config.data.seq_len);
  const bool is_even = is_context_even(config, spec, plan);
  const std::vector<int> blocks = blocks_by_pipeline_rank(spec, plan);
  RankWork work{.microbatches = static_cast<int>(config.accumulation())};
  for (int rank = 0; rank < plan.mesh.size(kStepAxes); ++rank) {
    const int stage = plan.mesh.coord(Axis::pp, rank);
    int group = has_equal_stages ? 0 : stage;
    group = group * plan.cp + (is_even ? 0 : plan.mesh.coord(Axis::cp, rank));
    group = group * plan.ep + plan.mesh.coord(Axis::ep, rank);
    work.group.push_back(group);
    work.stage.push_back(stage);
    work.blocks.push_back(blocks[at(stage)]);
  }
  return work;
}

std::vector<double> usual_of_others(const RankWork& work, std::span<const double> seconds) {
  std::map<int, std::vector<double>> groups;
  for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
    if (seconds[rank] > 0) groups[work.group[rank]].push_back(seconds[rank]);
  }
  for (auto& [group, values] : groups) std::ranges::sort(values);
  std::vector<double> usual(seconds.size(), 0.0);
  for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
    const std::vector<double>& all = groups[work.group[rank]];
    if (seconds[rank] <= 0 || all.size() < 2) continue;
    // The median of the sorted ones without this rank's.
    const auto own =
        static_cast<std::size_t>(std::ranges::lower_bound(all, seconds[rank]) - all.begin());
    const auto other = [&](std::size_t i) { return all[i < own ? i : i + 1]; };
    const std::size_t others = all.size() - 1;
    usual[rank] = (other((others - 1) / 2) + other(others / 2)) / 2;
  }
  return usual;
}

RankSpeeds::RankSpeeds(RankWork work) : work_(std::move(work)), said_(work_.group.size()) {}

double RankSpeeds::median_of(std::size_t rank) const {
  std::vector<double> values;
  for (const std::vector<double>& step : window_) {
    if (step[rank] > 0) values.push_back(step[rank]);
  }
  return values.empty() ? 0.0 : quantile(std::move(values), 0.5);
}

std::vector<double> RankSpeeds::recent() const {
  std::vector<double> medians;
  for (std::size_t rank = 0; rank < work_.group.size(); ++rank) medians.push_back(median_of(rank));
  return medians;
}

bool RankSpeeds::is_steadily_slow(std::size_t rank) const {
  const auto slow = std::ranges::count_if(window_, [&](const std::vector<double>& step) {
    const double usual = usual_of_others(work_, step)[rank];
    return usual > 0 && step[rank] >= kRecovered * usual;
  });
  return slow >= kSteady;
}

observe::PacesChanged RankSpeeds::add(std::int64_t step, std::span<const double> block_seconds,
                                      double step_seconds) {
  observe::PacesChanged changed{.step = step};
  const auto is_told = [](double seconds) { return seconds > 0; };
  if (block_seconds.size() != work_.group.size() || std::ranges::none_of(block_seconds, is_told)) {
    return changed;
  }
  window_.emplace_back(block_seconds.begin(), block_seconds.end());
  if (window_.size() > kWindow) window_.pop_front();
  for (Said& said : said_) ++said.since;
  if (!is_known()) return changed;
  const std::vector<double> seconds = recent(), usual = usual_of_others(work_, seconds);
  for (std::size_t rank = 0; rank < said_.size(); ++rank) {
    Said& said = said_[rank];
    if (usual[rank] <= 0 || said.since < said.needed) continue;
    const double longer =
        (seconds[rank] - usual[rank]) * work_.blocks[rank] * work_.microbatches / step_seconds;
    const double ratio = seconds[rank] / usual[rank];
    const bool is_slow = said.is_slow ? ratio >= kRecovered : ratio >= kSlow && longer >= kFelt;
    if (is_slow == said.is_slow || (is_slow && !is_steadily_slow(rank))) continue;
    said = {.is_slow = is_slow, .since = 0, .needed = 2 * said.needed};
    const auto others = std::ranges::count(work_.group, work_.group[rank]) - 1;
    (is_slow ? changed.slow : changed.recovered)
        .push_back({.rank = static_cast<int>(rank),
                    .seconds = seconds[rank],
                    .usual = usual[rank],
                    .others = static_cast<int>(others)});
  }
  return changed;
}

std::vector<observe::RankSpeedRow> speed_rows(const RankWork& work,
                                              const observe::History& history) {
  std::vector<double> seconds(work.group.size(), 0.0);
  for (const auto& [rank, curve] : history.block_seconds) {
    if (at(rank) >= seconds.size()) continue;  // of a mesh before the last
    std::vector<double> values;
    for (const observe::CurvePoint& point : curve) values.push_back(point.value);
    seconds[at(rank)] = quantile(std::move(values), 0.5);
  }
  const std::vector<double> usual = usual_of_others(work, seconds);
  std::vector<observe::RankSpeedRow> rows;
  for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
    if (seconds[rank] <= 0) continue;
    rows.push_back({.rank = static_cast<int>(rank),
                    .stage = work.stage[rank],
                    .group = work.group[rank],
                    .blocks = work.blocks[rank],
                    .seconds = seconds[rank],
                    .usual = usual[rank]});
  }
  return rows;
}

}  // namespace heddle
