#include "planner/step_units.h"

#include <algorithm>
#include <numeric>

#include "model/cut_stages.h"
#include "model/parallel_plan.h"
#include "nn/redistribute.h"
#include "planner/cost.h"

namespace heddle::planner {
namespace {

UnitPass pass_of(const PassCost& cost, double fraction = 1.0) {
  const double seconds = fraction * cost.seconds(), busy = cost.busy();
  if (busy <= 0.0) return {seconds};
  return {seconds, seconds * cost.comm / busy, seconds * cost.context / busy,
          seconds * cost.experts / busy};
}

/// Which units each stage has: cut by cost, or as many blocks for each.
std::vector<DecoderPart::Units> units_of_stages(const Job& job, const Candidate& plan,
                                                const std::vector<int>& rank_of_stage) {
  if (job.stack.balances_stages) {
    return cut_stages(job.spec, job.seq_len, plan.vocabulary, rank_of_stage);
  }
  std::vector<DecoderPart::Units> units;
  const int layers = static_cast<int>(job.spec.layers);
  const int stages = static_cast<int>(rank_of_stage.size());
  for (int stage = 0; stage < stages; ++stage) {
    units.push_back({1 + layers * stage / stages, 1 + layers * (stage + 1) / stages});
  }
  units.front().begin = 0;
  units.back().end = unit_count(job.spec);
  return units;
}

class UnitBuilder {
 public:
  UnitBuilder(const Machine& machine, const Job& job, const Candidate& plan, const BlockCost& block,
              const std::vector<int>& rank_of_stage)
      : machine_(machine),
        job_(job),
        candidate_(plan),
        block_(block),
        shape_(cost_shape(job, plan)),
        plan_(lay_out(job.spec, plan, rank_of_stage, units_of_stages(job, plan, rank_of_stage),
                      job.stack.whole_matrices(), job.compress)) {}

  StepUnits run() const {
    StepUnits units{.mesh = plan_.mesh, .policy = plan_.policy, .sizes = sizes(), .ranks = {}};
    for (int rank = 0; rank < candidate_.pp; ++rank) units.ranks.push_back(rank_at(rank));
    return units;
  }

 private:
  bool is_divided() const { return plan_.divides_vocabulary_over_pp(); }
  bool is_whole() const {
    return plan_.vocabulary != VocabularyPlacement::tensor && candidate_.tp > 1;
  }
  const PassCost& embedding() const {
    return is_whole() ? block_.whole_embedding : block_.embedding;
  }
  const PassCost& head_f() const {
    return is_whole() ? block_.whole_head_forward : block_.head_forward;
  }
  const PassCost& head_b() const {
    return is_whole() ? block_.whole_head_backward : block_.head_backward;
  }

  CallSizes sizes() const {
    const std::int64_t tokens = shape_.tokens(), hidden = job_.spec.hidden;
    const std::int64_t share = tokens_per_rank(tokens, candidate_.tp);
    const Stack& stack = job_.stack;
    const auto element = static_cast<std::int64_t>(stack.parameter_bytes);
    constexpr std::int64_t kStatistics = 3 * sizeof(float);
    CallSizes sizes{.element_bytes = element,
                    .gradient_bytes = static_cast<std::int64_t>(stack.sent_gradient_bytes()),
                    .head_input = element * hidden * share,
                    .statistics = kStatistics * share * candidate_.pp};
    sizes.set_message(hidden * (plan_.sequence ? share : tokens), plan_.compress);
    return sizes;
  }

  /// The rank's part of the model, without memory.
  StepRank rank_at(int pp_rank) const {
    Memory memory(Memory::Mode::dry, job_.stack.place());
    const int first = pp_rank * plan_.mesh.size(kStageAxes);
    const Mesh mesh = Mesh::recorded(plan_.mesh, first);
    const BuildOptions options{.dtype = job_.stack.compute,
                               .positions = 1,
                               .recompute_blocks = candidate_.recompute == Recompute::full,
                               .loss_chunk = job_.loss_chunk()};
    RankModel model =
        build_rank_model(job_.spec, options, plan_, mesh, ParamStore::Purpose::inference, memory);
    add_layer_calls(model, mesh, shape_);
    StepRank rank;
    rank.units = std::move(model.units);
    for (std::size_t unit = 0; unit < model.labels.size(); ++unit) {
      const UnitLabel::Kind kind = model.labels[unit].kind;
      rank.times.push_back(times_of(kind));
      if (kind == UnitLabel::Kind::head) {
        rank.units.units[unit].adds_gradients_in_forward = job_.stack.head_in_forward;
      }
    }
    rank.optimizer_seconds = optimizer_seconds(rank.units);
    if (job_.stack.whole_matrices()) {
      const auto blocks =
          std::ranges::count(model.labels, UnitLabel::Kind::block, &UnitLabel::kind);
      rank.matrices = matrix_work(machine_, job_, candidate_, block_.dry, blocks);
      rank.optimizer_seconds += rank.matrices.seconds;
    }
    return rank;
  }

  double optimizer_seconds(const RankUnits& units) const {
    const bool signs = job_.stack.sends_signs();
    const auto bytes = std::accumulate(
        units.buckets.begin(), units.buckets.end(), 0.0, [&](double sum, const auto& bucket) {
          if (!bucket.trains) return sum;
          const bool is_signed = signs && !bucket.over.empty();
          return sum + static_cast<double>(bucket.held) * machine_.software.optimizer_bytes +
                 (is_signed ? static_cast<double>(bucket.elements) * Stack::kSigningBytes : 0.0);
        });
    return machine_.software.step_s + bytes / machine_.device.memory_bytes_per_s;
  }

  UnitTimes times_of(UnitLabel::Kind kind) const {
    switch (kind) {
      case UnitLabel::Kind::embedding: return is_divided() ? UnitTimes{} : of_embedding();
      case UnitLabel::Kind::block: return of_block();
      case UnitLabel::Kind::head: return is_divided() ? of_divided_head() : of_head();
      default: return {};
    }
  }

  UnitTimes of_embedding() const {
    return {.f = pass_of(embedding()), .w = pass_of({.device = embedding().device})};
  }

  UnitTimes of_head() const {
    const UnitPass forward = pass_of(head_f()), back = pass_of(head_b());
    if (job_.stack.head_in_forward) {
      return {.f = {forward.seconds + back.seconds, forward.tp + back.tp}};
    }
    const double half = 0.5 * back.seconds;
    return {.f = forward, .b = {half, std::min(back.tp, half)}, .w = {half, 0.0}};
  }

  UnitTimes of_divided_head() const {
    const double fraction = 1.0 / candidate_.pp;
    return {.f = pass_of(head_f(), fraction), .b = pass_of(head_b(), fraction)};
  }

  UnitTimes of_block() const {
    const RankTimes times = rank_times(block_, candidate_.recompute, 1.0);
    PassCost back = block_.backward_input;
    back += block_.backward_weight;
    if (candidate_.recompute == Recompute::full) back += block_.again_full;
    if (candidate_.recompute == Recompute::selective) back += block_.again_selective;
    // What is computed again comes before backward.
    const auto window = [&](bool with_weights) {
      ExpertsWindow made = experts_window(machine_, job_, candidate_, block_.dry, with_weights);
      if (candidate_.recompute != Recompute::full) return made;
      const double again = pass_of(block_.again_full).seconds;
      made.begin += again;
      made.seconds += again;
      return made;
    };
    return {.f = pass_of(block_.forward),
            .b = {times.b, std::min(times.b, pass_of(back).tp), std::min(times.b, pass_of(back).cp),
                  std::min(times.b, pass_of(back).ep)},
            .w = {times.w, 0.0},
            .in_b = window(false),
            .in_bw = window(true)};
  }

  const Machine& machine_;
  const Job& job_;
  const Candidate& candidate_;
  const BlockCost& block_;
  const CostShape shape_;
  const ParallelPlan plan_;
};

}  // namespace

UnitTimes StepRank::of_stage(int stage) const {
  const auto [first, count] = units.stages[static_cast<std::size_t>(stage)];
  UnitTimes sum;
  const auto add = [](UnitPass& to, const UnitPass& pass) {
    to.seconds += pass.seconds;
    to.tp += pass.tp;
    to.cp += pass.cp;
    to.ep += pass.ep;
  };
  for (int unit = first; unit < first + count; ++unit) {
    const UnitTimes& own = times[static_cast<std::size_t>(unit)];
    add(sum.f, own.f);
    add(sum.b, own.b);
    add(sum.w, own.w);
  }
  return sum;
}

StepUnits step_units(const Machine& machine, const Job& job, const Candidate& plan,
                     const BlockCost& block, const std::vector<int>& rank_of_stage) {
  return UnitBuilder(machine, job, plan, block, rank_of_stage).run();
}

}  // namespace heddle::planner
