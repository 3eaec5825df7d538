#include "planner/memory.h"

#include <algorithm>
#include <cmath>

#include "mesh/mesh.h"
#include "model/parallel_plan.h"
#include "parallel/schedule/make_schedule.h"

namespace heddle::planner {
namespace {

/// The layers of one block on a mesh of `tp` ranks on which nothing travels.
class DryBlock {
 public:
  DryBlock(const Job& job, int tp, bool sequence) : mesh_(Mesh::recorded(shape(job.spec, tp), 0)) {
    DecoderShare share;
    if (tp > 1) share.tensor = TensorRules(mesh_.comm(Axis::tp), sequence);
    share.stages = {{1, 2}};
    // Only sizes matter; `cost` is asked for those of the dtype that computes.
    const BuildOptions options{.positions = job.seq_len};
    decoder_ = build_decoder(job.spec, options, memory_, share);
  }

  Cost cost(const CostShape& shape) const {
    Cost sum;
    for (const Layer* unit : decoder_.unit_pointers()) sum += unit->cost(shape);
    return sum;
  }

 private:
  static MeshShape shape(const ModelSpec& spec, int tp) {
    MeshShape shape = MeshShape{}.with(Axis::tp, tp);
    const int kv_heads = static_cast<int>(spec.kv_heads);
    shape.copies = tp > kv_heads ? tp / kv_heads : 1;
    return shape;
  }

  Memory memory_{Memory::Mode::dry};
  Mesh mesh_;
  Decoder decoder_;
};

Activations of_megatron(const Job& job, int tp, bool sequence, int sequences) {
  const auto bytes = [&](Recompute recompute) {
    return megatron_layer_bytes(job.spec, static_cast<double>(job.seq_len), sequences, tp, sequence,
                                recompute);
  };
  const double tokens = static_cast<double>(sequences * job.seq_len);
  return {.kept_none = bytes(Recompute::none),
          .kept_selective = bytes(Recompute::selective),
          .kept_full = bytes(Recompute::full),
          .working = bytes(Recompute::none),
          .head = 10.0 * tokens * static_cast<double>(job.spec.vocab) / tp};
}

Activations of_layers(const Job& job, int tp, bool sequence, int sequences) {
  const double e = job.stack.element_bytes();
  const double tokens = static_cast<double>(sequences * job.seq_len),
               width = static_cast<double>(job.spec.hidden);
  const double kept = static_cast<double>(
      DryBlock(job, tp, sequence)
          .cost({.sequences = sequences, .seq_len = job.seq_len, .dtype = job.stack.compute})
          .saved_bytes);
  const double stream = tokens * width * e / (sequence && tp > 1 ? tp : 1);
  // A chunk of logits in 32 bits and its gradient, and the gradient of the head's input.
  const double chunk = std::min(1024.0, tokens);
  return {.kept_none = kept,
          .kept_selective = kept,
          .kept_full = stream,
          .working = kept + 2.0 * stream,
          .head = 8.0 * chunk * static_cast<double>(job.spec.vocab) / tp + 2.0 * stream};
}

/// Blocks among the units of a stage.
double blocks_of(const DecoderShare::Units& units, std::int64_t layers) {
  const auto begin = std::max<std::int64_t>(units.begin, 1);
  const auto end = std::min<std::int64_t>(units.end, layers + 1);
  return static_cast<double>(std::max<std::int64_t>(0, end - begin));
}

}  // namespace

Split split_blocks(const Job& job, Pipeline schedule, int pp, int chunks,
                   VocabularyPlacement vocabulary) {
  Split split;
  const double layers = static_cast<double>(job.spec.layers);
  split.ends_meet = pp == 1 || is_v_shaped(schedule);
  if (!job.stack.balances_stages) {
    split.most = split.first = split.last = layers / pp;
    return split;
  }
  const auto placed =
      make_schedule(name_of(schedule),
                    {.ranks = pp, .microbatches = 1, .chunks = is_v_shaped(schedule) ? 1 : chunks})
          .rank_of_stage;
  std::vector<double> costs = unit_costs(job.spec, job.seq_len);
  if (vocabulary == VocabularyPlacement::pipeline) costs.back() = 0.0;
  const auto cuts = cut_stages(costs, static_cast<int>(placed.size()));
  std::vector<double> of_rank(static_cast<std::size_t>(pp), 0.0);
  for (std::size_t stage = 0; stage < placed.size(); ++stage) {
    of_rank[static_cast<std::size_t>(placed[stage])] += blocks_of(cuts[stage], job.spec.layers);
  }
  split.first = of_rank[static_cast<std::size_t>(placed.front())];
  split.last = of_rank[static_cast<std::size_t>(placed.back())];
  for (int rank = 0; rank < pp; ++rank) {
    if (rank != placed.back())
      split.most = std::max(split.most, of_rank[static_cast<std::size_t>(rank)]);
  }
  return split;
}

double in_flight(Pipeline schedule, int pp, int chunks, double microbatches) {
  const double p = pp, v = chunks;
  const double most = [&] {
    switch (schedule) {
      case Pipeline::gpipe: return microbatches;
      case Pipeline::interleaved: return p * (1.0 + (p - 1.0) / (p * v));
      case Pipeline::zb_h2: return 2.0 * p - 1.0;
      case Pipeline::v_min: return (p + 4.0) / 3.0;
      case Pipeline::v_half: return p / 2.0 + 1.0;
      default: return p;
    }
  }();
  return std::min(pp == 1 ? 1.0 : most, microbatches);
}

double megatron_layer_bytes(const ModelSpec& spec, double seq_len, double sequences, double tp,
                            bool sequence, Recompute recompute) {
  const double h = static_cast<double>(spec.hidden), f = static_cast<double>(spec.ffn);
  const double sbh = seq_len * sequences * h;
  if (recompute == Recompute::full) return 2.0 * sbh;
  // 34 = 10 of what lies on the stream and 24 of what is divided: 8 of q, k, v and the projection's
  // input, 4 f / h of the MLP.
  const double scores =
      recompute == Recompute::selective ? 0.0 : 5.0 * static_cast<double>(spec.heads) * seq_len / h;
  const double divided = 8.0 + 4.0 * f / h + scores;
  return sbh * (sequence ? (10.0 + divided) / tp : 10.0 + divided / tp);
}

Activations activations(const Job& job, int tp, bool sequence, int sequences) {
  return job.stack.stores_scores ? of_megatron(job, tp, sequence, sequences)
                                 : of_layers(job, tp, sequence, sequences);
}

MemoryEstimate estimate_memory(const Machine& machine, const Job& job, const Candidate& candidate,
                               const Split& split, const Activations& kept) {
  const StepShape step{.seq_len = job.seq_len, .microbatches = candidate.microbatches(job)};
  const bool divides_over_pp = candidate.vocabulary == VocabularyPlacement::pipeline;
  // The passes over a divided vocabulary keep micro-batches longer: one by algorithm 2, two by 1.
  const double longer = divides_over_pp ? 3.0 - candidate.vocabulary_algorithm : 0.0;
  const double flying =
      std::min(static_cast<double>(step.microbatches),
               longer + in_flight(candidate.schedule, candidate.pp, candidate.chunks,
                                  static_cast<double>(step.microbatches)));
  const auto of_rank = [&](const RankPart& part, int pp_rank, double in_flight_here) {
    const Volumes volumes(job.spec, candidate, step, part, pp_rank);
    const Stack& stack = job.stack;
    const double gathered = candidate.zero == 3 && candidate.dp > 1
                                ? 2.0 * static_cast<double>(volumes.largest_unit_elements())
                                : 0.0;
    MemoryEstimate memory;
    memory.parameters =
        stack.parameter_bytes * (static_cast<double>(volumes.held_elements(3)) + gathered);
    memory.gradients = stack.gradient_bytes * static_cast<double>(volumes.held_elements(2));
    memory.optimizer = stack.state_bytes * static_cast<double>(volumes.held_elements(1));
    memory.activations =
        static_cast<double>(part.blocks) * kept.kept(candidate.recompute) * in_flight_here;
    const double working = candidate.recompute == Recompute::full ? kept.working : 0.0;
    const bool has_head = part.has_last || divides_over_pp;
    memory.activations += has_head ? std::max(working, kept.head) : working;
    memory.reserved = machine.software.reserved_bytes;
    return memory;
  };
  const auto whole = [](double blocks) { return static_cast<std::int64_t>(std::ceil(blocks)); };
  const RankPart first{.blocks = whole(split.first),
                       .has_first = true,
                       .has_norm = split.ends_meet,
                       .has_last = split.ends_meet};
  const MemoryEstimate of_first = of_rank(first, 0, flying);
  if (split.ends_meet) return of_first;
  const RankPart last{
      .blocks = whole(split.last), .has_first = false, .has_norm = true, .has_last = true};
  // 1F1B and its kin hold one micro-batch at the end, the others as many as at the start.
  const bool falls = candidate.schedule == Pipeline::one_f_one_b;
  const MemoryEstimate of_last = of_rank(last, candidate.pp - 1, falls ? 1.0 + longer : flying);
  // The second rank of the pipeline has no table, but maybe more blocks.
  const RankPart inner{.blocks = whole(split.most)};
  const MemoryEstimate of_inner =
      of_rank(inner, 1, falls ? std::min(flying, candidate.pp - 1.0) : flying);
  const MemoryEstimate& ends = of_first.total() >= of_last.total() ? of_first : of_last;
  return candidate.pp > 2 && of_inner.total() > ends.total() ? of_inner : ends;
}

}  // namespace heddle::planner
