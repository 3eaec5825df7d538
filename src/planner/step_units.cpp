#include "planner/step_units.h"

#include <algorithm>

#include "model/cut_stages.h"
#include "model/parallel_plan.h"
#include "planner/collectives.h"
#include "planner/cost.h"
#include "planner/matrix_work.h"

namespace heddle::planner {
namespace {

std::int64_t round_up(std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; }

UnitPass pass_of(const PassCost& cost, double share = 1.0) {
  const double seconds = share * cost.seconds(), busy = cost.device + cost.comm;
  return {seconds, busy > 0.0 ? seconds * cost.comm / busy : 0.0};
}

/// Which units each stage has: cut by cost, or as many blocks for each.
std::vector<DecoderShare::Units> units_of_stages(const Job& job, const Candidate& plan,
                                                 const std::vector<int>& rank_of_stage) {
  if (job.stack.balances_stages) {
    return cut_stages(job.spec, job.seq_len, plan.vocabulary, rank_of_stage);
  }
  std::vector<DecoderShare::Units> units;
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
  UnitBuilder(const Machine& machine, const Job& job, const Candidate& plan, const BlockCost& block)
      : machine_(machine), job_(job), plan_(plan), block_(block) {
    units_.shape = step_shape(job, plan);
  }

  StepUnits run(const std::vector<int>& rank_of_stage) {
    units_.ranks.resize(static_cast<std::size_t>(plan_.pp));
    for (const auto& units : units_of_stages(job_, plan_, rank_of_stage)) {
      add_stage(units, rank_of_stage[units_.stages.size()]);
    }
    for (int rank = 0; rank < plan_.pp; ++rank) finish_rank(rank);
    return std::move(units_);
  }

 private:
  bool is_divided() const { return plan_.vocabulary == VocabularyPlacement::pipeline; }
  bool is_whole() const { return plan_.vocabulary != VocabularyPlacement::tensor && plan_.tp > 1; }
  bool is_tied_here() const { return job_.spec.tied_embeddings && plan_.pp == 1; }
  const PassCost& embedding() const {
    return is_whole() ? block_.whole_embedding : block_.embedding;
  }
  const PassCost& head_f() const {
    return is_whole() ? block_.whole_head_forward : block_.head_forward;
  }
  const PassCost& head_b() const {
    return is_whole() ? block_.whole_head_backward : block_.head_backward;
  }

  Volumes volumes(const RankPart& part, int rank = 0) const {
    return {job_.spec, plan_, units_.shape, part, rank};
  }
  /// All elements of a part, whatever ZeRO divides.
  std::int64_t elements(const RankPart& part) const { return volumes(part).held_elements(4); }
  /// Of a vocabulary over the pipeline every part has two tables.
  std::int64_t tables() const { return elements({}); }
  std::int64_t positions() const {
    return job_.spec.rope
               ? 0
               : round_up(round_up(job_.spec.max_positions * job_.spec.hidden, 16), 16 * plan_.dp);
  }
  std::int64_t table() const {
    return is_divided() ? tables() / 2 : elements({.has_first = true}) - positions();
  }

  static int place(StepRank& rank, std::int64_t elements) {
    rank.buckets.push_back(elements);
    return static_cast<int>(rank.buckets.size()) - 1;
  }

  void add_stage(const DecoderShare::Units& range, int rank_index) {
    StepRank& rank = units_.ranks[static_cast<std::size_t>(rank_index)];
    std::vector<StepUnit> stage;
    const int last = unit_count(job_.spec) - 1;
    for (int unit = range.begin; unit < range.end; ++unit) {
      if (unit == 0) {
        rank.part.has_first = true;
        if (!is_divided()) stage.push_back(embedding_unit(rank));
        if (positions() > 0) stage.push_back({.bucket = place(rank, positions())});
      } else if (unit == last) {
        rank.part.has_last = true;
        if (!is_divided()) stage.push_back(head_unit(rank));
      } else if (unit == last - 1) {
        rank.part.has_norm = true;
        stage.push_back({.bucket = place(rank, elements({.has_norm = true}) - tables())});
      } else {
        ++rank.part.blocks;
        stage.push_back(block_unit(rank));
      }
    }
    units_.stages.push_back(std::move(stage));
  }

  StepUnit embedding_unit(StepRank& rank) const {
    StepUnit unit{.f = pass_of(embedding()), .bucket = place(rank, table())};
    unit.w = pass_of({.device = embedding().device});
    return unit;
  }

  StepUnit head_unit(StepRank& rank) const {
    StepUnit unit;
    unit.f = pass_of(head_f());
    const UnitPass back = pass_of(head_b());
    unit.makes_grads_in_f = job_.stack.head_in_forward;
    if (unit.makes_grads_in_f) {
      unit.f.seconds += back.seconds;
      unit.f.tp += back.tp;
    } else {
      unit.b = {0.5 * back.seconds, std::min(back.tp, 0.5 * back.seconds)};
      unit.w = {0.5 * back.seconds, 0.0};
    }
    unit.owns_bucket = !is_tied_here();
    // The first to be placed is the embedding's table.
    unit.bucket = unit.owns_bucket ? place(rank, table()) : 0;
    return unit;
  }

  StepUnit block_unit(StepRank& rank) const {
    const RankTimes times = rank_times(block_, plan_.recompute, 1.0);
    PassCost back = block_.backward_input;
    back += block_.backward_weight;
    if (plan_.recompute == Recompute::full) back += block_.again_full;
    if (plan_.recompute == Recompute::selective) back += block_.again_selective;
    StepUnit unit{.f = pass_of(block_.forward),
                  .b = {times.b, std::min(times.b, pass_of(back).tp)},
                  .w = {times.w, 0.0}};
    unit.bucket = place(rank, elements({.blocks = 1}) - tables());
    return unit;
  }

  void finish_rank(int index) {
    StepRank& rank = units_.ranks[static_cast<std::size_t>(index)];
    if (is_divided()) {
      const double share = 1.0 / plan_.pp;
      rank.embedding = {.bucket = place(rank, table())};
      rank.head = {.f = pass_of(head_f(), share),
                   .b = pass_of(head_b(), share),
                   .bucket = place(rank, table())};
    }
    const Volumes all = volumes(rank.part, index);
    rank.optimizer_seconds = machine_.software.step_s + static_cast<double>(all.held_elements(1)) *
                                                            machine_.software.optimizer_bytes /
                                                            machine_.device.memory_bytes_per_s;
    if (job_.stack.whole_matrices) {
      rank.optimizer_seconds += matrix_work(machine_, job_, plan_, rank.part.blocks).seconds;
    }
    rank.ends_bytes = payload(all.between_ends()).bytes;
    rank.once_tp_seconds = once_over_tp(rank.part, index);
  }

  struct Payload {
    double calls = 0, bytes = 0;
  };
  static Payload payload(const CommCounts& counts) {
    const auto& entry = counts.by_op[static_cast<std::size_t>(CommOp::all_reduce)];
    return {static_cast<double>(entry.calls), static_cast<double>(entry.payload_bytes)};
  }

  /// A step without micro-batches has what is done once in it; loss and norm are no part of this.
  double once_over_tp(const RankPart& part, int rank) const {
    if (plan_.tp == 1) return 0.0;
    StepShape empty = units_.shape;
    empty.microbatches = 0;
    const Volumes once(job_.spec, plan_, empty, part, rank);
    const auto seconds = [&](Payload sums, int ranks) {
      if (sums.calls < 1.0) return 0.0;
      return sums.calls * collective_seconds(machine_, CommOp::all_reduce,
                                             group_shape(machine_, ranks, 1),
                                             sums.bytes / sums.calls);
    };
    Payload on_tp = payload(once.on_tp());
    on_tp.calls -= 1.0;
    on_tp.bytes -= 16.0;
    const int copies =
        plan_.tp / static_cast<int>(std::min<std::int64_t>(plan_.tp, job_.spec.kv_heads));
    return seconds(on_tp, plan_.tp) + seconds(payload(once.between_copies()), copies);
  }

  const Machine& machine_;
  const Job& job_;
  const Candidate& plan_;
  const BlockCost& block_;
  StepUnits units_;
};

}  // namespace

StepShape step_shape(const Job& job, const Candidate& plan) {
  const Stack& stack = job.stack;
  return {.seq_len = job.seq_len,
          .microbatches = plan.microbatches(job),
          .element_bytes = static_cast<std::int64_t>(stack.parameter_bytes),
          .gradient_bytes =
              static_cast<std::int64_t>(stack.stores_scores ? 2.0 : stack.gradient_bytes)};
}

StepUnits step_units(const Machine& machine, const Job& job, const Candidate& plan,
                     const BlockCost& block, const std::vector<int>& rank_of_stage) {
  return UnitBuilder(machine, job, plan, block).run(rank_of_stage);
}

}  // namespace heddle::planner
