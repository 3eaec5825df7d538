#include "planner/memory.h"

#include <algorithm>
#include <cmath>

#include "model/cut_stages.h"
#include "model/parallel_plan.h"
#include "parallel/schedule/make_schedule.h"

namespace heddle::planner {
namespace {

Activations of_megatron(const Job& job, const Candidate& candidate, const DryBlocks& dry) {
  const int tp = candidate.tp, sequences = candidate.sequences;
  const auto bytes = [&](Recompute recompute) {
    return megatron_layer_bytes(job.spec, static_cast<double>(job.seq_len), sequences, tp,
                                candidate.sequence, recompute);
  };
  const double tokens = static_cast<double>(sequences * job.seq_len);
  return {.kept_none = bytes(Recompute::none),
          .kept_selective = bytes(Recompute::selective),
          .kept_full = bytes(Recompute::full),
          .waiting = kWaitingWeight * bytes(Recompute::selective),
          .working = bytes(Recompute::none),
          .head = 10.0 * tokens * static_cast<double>(job.spec.vocab) / tp,
          .block = dry.block_sizes()};
}

Activations of_layers(const Job& job, const Candidate& candidate, const DryBlocks& dry) {
  const int tp = candidate.tp;
  const double e = job.stack.element_bytes();
  const double tokens = candidate.tokens(job), width = static_cast<double>(job.spec.hidden);
  const double kept = static_cast<double>(dry.cost.saved_bytes) / dry.kinds,
               dear = static_cast<double>(dry.cost.dear_bytes) / dry.kinds;
  const double residual = tokens * width * e / (candidate.sequence && tp > 1 ? tp : 1);
  // Until the gradients of its weights are made a linear keeps its input and its output's gradient.
  double waiting = 0.0;
  for (const WeightProduct& product : dry.cost.products) {
    if (product.trains) waiting += product.rows * (product.in + product.out) * e;
  }
  // Of what was gathered it keeps its own tokens.
  for (const LayerCall& call : dry.cost.calls_f) {
    if (call.op != CommOp::all_gather || !candidate.sequence) continue;
    waiting -= static_cast<double>(std::max(call.bytes, call.payload)) * (1.0 - 1.0 / tp);
  }
  // A chunk of logits in 32 bits and its gradient, and the gradient of the head's input.
  const double chunk = std::min(1024.0, tokens);
  return {
      .kept_none = kept,
      .kept_selective = kept,
      .kept_full = residual + dear,
      .waiting = waiting / dry.kinds,
      .working = tokens * width * e + 2.0 * residual,
      .again = static_cast<double>(dry.recomputed.moment_bytes),
      .rows = dry.cost.row_bytes == 0 ? 0.0 : static_cast<double>(dry.cost.row_bytes) + residual,
      .messages = static_cast<double>(dry.cost.working_bytes),
      .head = 8.0 * chunk * static_cast<double>(job.spec.vocab) / tp + 2.0 * residual,
      .block = dry.block_sizes(),
      .inner_elements = dry.inner_elements()};
}

/// Blocks among the units of a stage.
std::int64_t blocks_of(const DecoderPart::Units& units, std::int64_t layers) {
  const auto begin = std::max<std::int64_t>(units.begin, 1);
  const auto end = std::min<std::int64_t>(units.end, layers + 1);
  return std::max<std::int64_t>(0, end - begin);
}

}  // namespace

Split split_blocks(const Job& job, Pipeline schedule, int pp, int chunks,
                   VocabularyPlacement vocabulary) {
  Split split;
  const double layers = static_cast<double>(job.spec.layers);
  split.ends_meet = pp == 1 || ends_meet(schedule);
  split.flying = peaks_in_flight(schedule, pp, chunks);
  if (!job.stack.balances_stages) {
    split.most = split.first = split.last = layers / pp;
    return split;
  }
  const auto parts = parts_by_rank(
      job,
      make_schedule(schedule,
                    {.ranks = pp, .microbatches = 1, .chunks = is_v_shaped(schedule) ? 1 : chunks}),
      vocabulary);
  for (const RankPart& part : parts) {
    const double blocks = static_cast<double>(part.blocks);
    if (part.has_first) split.first = blocks;
    if (part.has_norm) split.last = blocks;
    if (!part.has_norm) split.most = std::max(split.most, blocks);
  }
  return split;
}

std::vector<RankPart> parts_by_rank(const Job& job, const Schedule& schedule,
                                    VocabularyPlacement vocabulary) {
  const auto& placed = schedule.rank_of_stage;
  const auto cuts = cut_stages(job.spec, job.seq_len, vocabulary, placed);
  std::vector<RankPart> parts(static_cast<std::size_t>(schedule.ranks()));
  for (std::size_t stage = 0; stage < placed.size(); ++stage) {
    parts[static_cast<std::size_t>(placed[stage])].blocks +=
        blocks_of(cuts[stage], job.spec.layers);
  }
  RankPart& last = parts[static_cast<std::size_t>(placed.back())];
  parts[static_cast<std::size_t>(placed.front())].has_first = true;
  last.has_norm = last.has_last = true;
  return parts;
}

InFlight peaks_in_flight(Pipeline schedule, int pp, int chunks) {
  const double p = pp, v = chunks;
  if (pp == 1) return {};
  switch (schedule) {
    case Pipeline::gpipe: return {1e9, 0.0, 1e9};  // all there are
    case Pipeline::one_f_one_b: return {p, 0.0, p};
    case Pipeline::interleaved: {
      const double most = p * (1.0 + (p - 1.0) / (p * v));
      return {most, 0.0, most};
    }
    default: break;
  }
  InFlight peaks;
  for (const InFlight& of_rank : in_flight_by_rank(
           make_schedule(schedule, {.ranks = pp, .microbatches = 3 * pp, .chunks = 1}))) {
    peaks.forward = std::max(peaks.forward, of_rank.forward);
    peaks.waiting = std::max(peaks.waiting, of_rank.waiting);
    peaks.both = std::max(peaks.both, of_rank.both);
  }
  return peaks;
}

std::vector<InFlight> in_flight_by_rank(const Schedule& schedule) {
  std::vector<InFlight> all;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const double part = 1.0 / static_cast<double>(stages_of(schedule, rank).size());
    InFlight& peaks = all.emplace_back(InFlight{0.0, 0.0, 0.0});
    double forward = 0.0, waiting = 0.0;
    for (const Action& action : schedule.by_rank[static_cast<std::size_t>(rank)]) {
      if (action.act == Act::f) forward += part;
      if (action.act == Act::b || action.act == Act::bw) forward -= part;
      if (action.act == Act::b) waiting += part;
      if (action.act == Act::w) waiting -= part;
      peaks.forward = std::max(peaks.forward, forward);
      peaks.waiting = std::max(peaks.waiting, waiting);
      peaks.both = std::max(peaks.both, forward + kWaitingWeight * waiting);
    }
  }
  return all;
}

double megatron_layer_bytes(const ModelSpec& spec, double seq_len, double sequences, double tp,
                            bool sequence, Recompute recompute) {
  const double h = static_cast<double>(spec.hidden), f = static_cast<double>(spec.ffn);
  const double sbh = seq_len * sequences * h;
  if (recompute == Recompute::full) return 2.0 * sbh;
  // 34 = 10 of what lies on the residual and 24 of what is divided: 8 of q, k, v and the
  // projection's input, 4 f / h of the MLP.
  const double scores =
      recompute == Recompute::selective ? 0.0 : 5.0 * static_cast<double>(spec.heads) * seq_len / h;
  const double divided = 8.0 + 4.0 * f / h + scores;
  return sbh * (sequence ? (10.0 + divided) / tp : 10.0 + divided / tp);
}

Activations activations(const Job& job, const Candidate& candidate, const DryBlocks& dry) {
  return job.stack.stores_scores ? of_megatron(job, candidate, dry)
                                 : of_layers(job, candidate, dry);
}

Activations activations(const Job& job, const Candidate& candidate) {
  return activations(job, candidate, dry_blocks(job, candidate));
}

namespace {

/// What one rank holds.
class RankMemory {
 public:
  RankMemory(const Machine& machine, const Job& job, const Candidate& candidate,
             const Activations& kept)
      : machine_(machine), job_(job), candidate_(candidate), kept_(kept) {}

  /// With `flying` micro-batches in flight, or all there are.
  MemoryEstimate of(const RankPart& part, const InFlight& flying) const {
    const RankSizes sizes(job_.spec, candidate_, kept_.block, part, &job_.compress);
    const Stack& stack = job_.stack;
    const double unit = sizes.largest_unit_elements();
    const int zero = candidate_.token_ranks() > 1 ? candidate_.zero : 0;
    MemoryEstimate memory;
    // Two units are gathered at a time, and two have all their gradients.
    memory.parameters =
        stack.parameter_bytes * (sizes.held_elements(3) + (zero == 3 ? 2.0 * unit : 0.0));
    memory.gradients =
        stack.gradient_bytes * (sizes.held_elements(2) + (zero >= 2 ? 2.0 * unit : 0.0));
    memory.optimizer = stack.state_bytes * sizes.held_elements(1);
    if (stack.inner_state_bytes != stack.state_bytes) {
      memory.optimizer += (stack.inner_state_bytes - stack.state_bytes) *
                          sizes.held_inner_elements(kept_.inner_elements);
    }
    if (stack.sends_signs() && candidate_.token_ranks() > 1) {
      // What either encoding loses, and with ZeRO the whole momentum beside the part of it.
      constexpr int kNever = 4;
      const double all = sizes.held_elements(kNever);
      memory.optimizer += 4.0 * (all + all / candidate_.token_ranks() + (zero > 0 ? all : 0.0));
    }
    if (const double coded = sizes.coded_elements(); coded > 0.0) {
      // Residuals of whole parameters, and of a rank's part of the sums.
      const double of_sums = zero == 0 ? 1.0 / candidate_.token_ranks() : 0.0;
      if (job_.compress.feeds_back()) memory.optimizer += 4.0 * coded * (1.0 + of_sums);
      // What is sent and received of two units that are under way, rarely more than their values.
      memory.gradients += 4.0 * unit;
    }
    memory.kept = static_cast<double>(part.blocks) * of_block(flying);
    memory.activations = memory.kept + of_one(part);
    memory.reserved = machine_.software.reserved_bytes;
    return memory;
  }

 private:
  double of_block(const InFlight& flying) const {
    const auto most = static_cast<double>(candidate_.microbatches(job_));
    if (candidate_.recompute == Recompute::full) {
      // What was computed again stays until the weights' gradients are made.
      return kept_.kept_full * std::min(most, flying.forward) +
             kept_.waiting * std::min(most, flying.waiting);
    }
    const double kept = kept_.kept(candidate_.recompute);
    if (flying.waiting == 0.0) return kept * std::min(most, flying.both);
    return std::max(kept, kept_.waiting / kWaitingWeight) *
           std::min(kWaitingWeight * most, flying.both);
  }

  /// Of the block or head that is being computed.
  double of_one(const RankPart& part) const {
    double working = kept_.messages + kept_.rows;
    if (candidate_.recompute == Recompute::full) {
      working = kept_.messages + kept_.again + std::max(kept_.working, kept_.rows);
    }
    const bool has_head = part.has_last || candidate_.divides_vocabulary_over_pp();
    return has_head ? std::max(working, kept_.head) : working;
  }

  const Machine& machine_;
  const Job& job_;
  const Candidate& candidate_;
  const Activations& kept_;
};

}  // namespace

MemoryEstimate estimate_memory(const Machine& machine, const Job& job, const Candidate& candidate,
                               const Split& split, const Activations& kept) {
  InFlight flying = split.flying;
  if (candidate.divides_vocabulary_over_pp()) {
    // The passes over a divided vocabulary keep micro-batches longer: one by algorithm 2, two by 1.
    const double longer = 3.0 - candidate.vocabulary_algorithm;
    flying.forward += longer;
    flying.both += longer;
  }
  const auto whole = [](double blocks) { return static_cast<std::int64_t>(std::ceil(blocks)); };
  const auto larger = [](const MemoryEstimate& a, const MemoryEstimate& b) {
    return a.total() >= b.total() ? a : b;
  };
  const RankMemory rank(machine, job, candidate, kept);
  MemoryEstimate most = rank.of({.blocks = whole(split.first),
                                 .has_first = true,
                                 .has_norm = split.ends_meet,
                                 .has_last = split.ends_meet},
                                flying);
  if (candidate.pp == 1) return most;
  // Along a pipeline of 1F1B each rank holds one less; other schedules may hold as many anywhere.
  const bool falls = candidate.schedule == Pipeline::one_f_one_b;
  if (!split.ends_meet) {
    const double at_end = flying.forward - candidate.pp + 1.0;
    most = larger(most, rank.of({.blocks = whole(split.last), .has_norm = true, .has_last = true},
                                falls ? InFlight{at_end, 0.0, at_end} : flying));
  }
  const double second = flying.forward - 1.0;
  return larger(
      most, rank.of({.blocks = whole(split.most)}, falls ? InFlight{second, 0.0, second} : flying));
}

std::vector<MemoryEstimate> memory_by_rank(const Machine& machine, const Job& job,
                                           const Candidate& candidate) {
  // Behind the start-up a schedule repeats itself, unless it keeps all there are.
  const std::int64_t microbatches = candidate.microbatches(job);
  const Schedule schedule =
      step_schedule(candidate, candidate.schedule == Pipeline::gpipe
                                   ? microbatches
                                   : std::min<std::int64_t>(microbatches, 4 * candidate.pp));
  const auto parts = parts_by_rank(job, schedule, candidate.vocabulary);
  const auto flying = in_flight_by_rank(schedule);
  const Activations kept = activations(job, candidate);
  const RankMemory memory(machine, job, candidate, kept);
  std::vector<MemoryEstimate> all;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    all.push_back(memory.of(parts[rank], flying[rank]));
  }
  return all;
}

}  // namespace heddle::planner
