#include "parity/volumes.h"

#include <algorithm>

namespace heddle::planner {
namespace {

std::int64_t round_up(std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; }

}  // namespace

struct Volumes::Tally {
  MessageSizes* sizes = nullptr;  ///< may be absent
  CommCounts total = {};

  void add(CommOp op, std::int64_t calls, std::int64_t bytes_each) {
    total.by_op[static_cast<std::size_t>(op)].add(calls, calls * bytes_each, calls * bytes_each);
    if (sizes != nullptr) sizes->add(op, calls, bytes_each);
  }
  /// Once per step on every axis with several ranks.
  /// And whether a rank asks for something, and what a block takes each of them.
  void add_loss_and_norm(std::int64_t ranks) { add(CommOp::all_reduce, 1, 24 + 8 * ranks); }
};

Volumes::Volumes(const ModelSpec& spec, const Candidate& candidate, const StepShape& step,
                 const RankPart& part, int pp_rank, int dp_rank)
    : spec_(spec),
      candidate_(candidate),
      part_(part),
      tokens_(candidate.sequences * step.seq_len),
      m_(step.microbatches),
      loss_chunk_(step.loss_chunk),
      e_(step.element_bytes),
      e_grad_(step.gradient_bytes),
      t_(candidate.tp),
      p_(candidate.pp),
      d_(candidate.dp),
      zero_(candidate.dp == 1 ? 0 : candidate.zero),
      pp_rank_(pp_rank),
      dp_rank_(dp_rank),
      splits_tokens_(candidate.sequence && candidate.tp > 1),
      units_(units()) {}

// ---- Parameters -------------------------------------------------------------------------------

void Volumes::Unit::push(std::int64_t size, bool is_replicated, std::int64_t copied) {
  sizes[static_cast<std::size_t>(count++)] = {size, is_replicated, copied};
  elements += round_up(size, 16);
}

Volumes::Unit Volumes::padded(Unit unit) const {
  unit.elements = round_up(unit.elements, 16 * d_);
  return unit;
}

Volumes::Unit Volumes::block() const {
  const std::int64_t h = spec_.hidden, f = spec_.ffn / t_;
  const std::int64_t q = spec_.heads / t_ * spec_.head_dim;
  const std::int64_t kv = std::max<std::int64_t>(1, spec_.kv_heads / t_) * spec_.head_dim;
  const bool has_copies = t_ > spec_.kv_heads;
  const std::int64_t ups = spec_.mlp == ModelSpec::Mlp::swiglu ? 2 : 1;
  Unit unit;
  unit.push((q + 2 * kv) * h, false, has_copies ? 2 * kv * h : 0);
  unit.push(q * h);
  unit.push(ups * f * h);
  unit.push(f * h);
  unit.inner = unit.count;
  if (spec_.qkv_bias) unit.push(q + 2 * kv, false, has_copies ? 2 * kv : 0);
  if (spec_.attention_out_bias) unit.push(h);
  if (spec_.mlp_bias) {
    unit.push(ups * f);
    unit.push(h);
  }
  // Norms of the residual see other tokens on every rank, norms of heads other heads. In the order
  // of the layer, those that are summed last.
  const int norms = spec_.norm == ModelSpec::Norm::rms ? 2 : 4;
  const bool heads_between = splits_tokens_ && spec_.qk_norm;
  const auto push_norms_of_heads = [&] {
    for (int i = 0; i < 2; ++i) unit.push(spec_.head_dim, t_ > 1);
  };
  for (int i = 0; i < norms; ++i) {
    unit.push(h, splits_tokens_);
    if (heads_between && i == 0) push_norms_of_heads();
  }
  if (spec_.qk_norm && !heads_between) push_norms_of_heads();
  return unit;
}

Volumes::Unit Volumes::norm() const {
  Unit unit;
  const int vectors = spec_.norm == ModelSpec::Norm::rms ? 1 : 2;
  for (int i = 0; i < vectors; ++i) unit.push(spec_.hidden, splits_tokens_);
  return unit;
}

bool Volumes::divides_over_pp() const {
  return candidate_.vocabulary == VocabularyPlacement::pipeline;
}

Volumes::Unit Volumes::table() const {
  Unit unit;
  if (divides_over_pp()) {
    unit.push((spec_.vocab + p_ - 1) / p_ * spec_.hidden, t_ > 1);
    return unit;
  }
  const bool is_whole = t_ == 1 || candidate_.vocabulary == VocabularyPlacement::replicated;
  const std::int64_t rows = is_whole ? spec_.vocab : (spec_.vocab + t_ - 1) / t_;
  unit.push(rows * spec_.hidden, is_whole && t_ > 1);
  return unit;
}

/// On one rank a tied table is one parameter; in a pipeline the two ends have one each.
bool Volumes::is_tied_here() const { return spec_.tied_embeddings && p_ == 1; }

Volumes::Units Volumes::units() const {
  Units units;
  if (part_.blocks > 0) {
    Unit blocks = block();
    blocks.times = part_.blocks;
    units.push(padded(blocks));
  }
  if (part_.has_first && !spec_.rope) {
    Unit positions;
    positions.push(spec_.max_positions * spec_.hidden, splits_tokens_);
    units.push(padded(positions));
  }
  if (part_.has_norm) units.push(padded(norm()));
  // The embedding and the head.
  Unit tables = padded(table());
  tables.times = divides_over_pp()
                     ? 2
                     : (part_.has_first ? 1 : 0) + (part_.has_last && !is_tied_here() ? 1 : 0);
  if (tables.times > 0) units.push(tables);
  return units;
}

Volumes::Stretch Volumes::held(const Unit& unit) const {
  const std::int64_t size = unit.elements;
  if (zero_ == 0) return {0, size};
  return {size / d_ * dp_rank_, size / d_ * (dp_rank_ + 1)};
}

std::int64_t Volumes::held_elements(int from_zero) const {
  std::int64_t elements = 0;
  for (const Unit& unit : units_) {
    elements += unit.times * (unit.elements / (zero_ >= from_zero ? d_ : 1));
  }
  return elements;
}

std::int64_t Volumes::held_inner_elements() const {
  std::int64_t elements = 0;
  for (const Unit& unit : units_) {
    std::int64_t inner = 0;
    for (int i = 0; i < unit.inner; ++i) {
      inner += round_up(unit.sizes[static_cast<std::size_t>(i)].count, 16);
    }
    const auto [begin, end] = held(unit);
    elements += unit.times * std::max<std::int64_t>(0, std::min(end, inner) - begin);
  }
  return elements;
}

std::int64_t Volumes::largest_unit_elements() const {
  std::int64_t most = 0;
  for (const Unit& unit : units_) most = std::max(most, unit.elements);
  return most;
}

// ---- Data parallelism -------------------------------------------------------------------------

CommCounts Volumes::on_dp(MessageSizes* sizes) const {
  Tally counts{sizes};
  if (d_ == 1) return counts.total;
  counts.add(CommOp::all_reduce, 1, 8);  // the number of targets
  counts.add_loss_and_norm(d_ * t_ * p_);
  for (const Unit& unit : units_) {
    const std::int64_t size = unit.elements, n = unit.times;
    const std::int64_t values = e_ * size, gradients = e_grad_ * size;
    switch (zero_) {
      case 0: counts.add(CommOp::all_reduce, n, gradients); break;
      case 1:
        counts.add(CommOp::reduce_scatter, n, gradients);
        counts.add(CommOp::all_gather, n, values);
        break;
      case 2:
        counts.add(CommOp::reduce_scatter, n * m_, gradients);
        counts.add(CommOp::all_gather, n, values);
        break;
      default:
        counts.add(CommOp::reduce_scatter, n * m_, gradients);
        counts.add(CommOp::all_gather, n * 2 * m_, values);
    }
  }
  if (zero_ == 3 && divides_over_pp()) {
    // Looking up needs the table once, S once, and T only with algorithm 1.
    const std::int64_t spared = candidate_.vocabulary_algorithm == 1 ? m_ : 2 * m_;
    counts.add(CommOp::all_gather, -spared, e_ * padded(table()).elements);
  }
  // A table that is both ends' is gathered for both.
  if (zero_ == 3 && is_tied_here()) {
    counts.add(CommOp::all_gather, 2 * m_, e_ * padded(table()).elements);
  }
  return counts.total;
}

// ---- Tensor parallelism -----------------------------------------------------------------------

CommCounts Volumes::on_tp(MessageSizes* sizes) const {
  Tally counts{sizes};
  if (t_ == 1) return counts.total;
  counts.add_loss_and_norm(d_ * t_ * p_);
  const std::int64_t h = spec_.hidden;
  const std::int64_t whole = e_ * tokens_ * h, padded = e_ * round_up(tokens_, t_) * h;
  // Two branches per block: into the divided products and out of them, forward and backward.
  const std::int64_t passes = candidate_.recompute == Recompute::full ? 3 : 2,
                     branches = 2 * part_.blocks * m_;
  if (splits_tokens_) {
    counts.add(CommOp::all_gather, passes * branches, padded);
    counts.add(CommOp::reduce_scatter, passes * branches, padded);
  } else {
    counts.add(CommOp::all_reduce, passes * branches, whole);
  }
  const bool divides = candidate_.vocabulary == VocabularyPlacement::tensor;
  const std::int64_t first = part_.has_first ? m_ : 0, last = part_.has_last ? m_ : 0;
  if (divides && splits_tokens_) {
    // Forward of the embedding and backward of the head; and the other way round.
    counts.add(CommOp::reduce_scatter, first + last, padded);
    counts.add(CommOp::all_gather, first + last, padded);
  } else if (divides) {
    counts.add(CommOp::all_reduce, first + last, whole);
  } else if (!splits_tokens_) {
    // Each rank looks up its tokens and has the loss of its tokens.
    counts.add(CommOp::all_gather, first + last, padded);
  }
  if (divides) {
    for (std::int64_t begin = 0; begin < tokens_; begin += loss_chunk_) {
      const std::int64_t rows = std::min(loss_chunk_, tokens_ - begin);
      counts.add(CommOp::all_reduce, 3 * last, 4 * rows);  // maximum, sum, target
    }
  }
  // Once per step, what is replicated, unit by unit: it lies together.
  for (const Unit& unit : units_) {
    Stretch stretch;
    std::int64_t at = 0;
    for (const Size& parameter : unit) {
      if (parameter.is_replicated) {
        if (stretch.end == 0) stretch.begin = at;
        stretch.end = at + parameter.count;
      }
      at += round_up(parameter.count, 16);
    }
    add_overlap(counts, unit, stretch);
  }
  return counts.total;
}

/// A sum over the elements of `stretch` that this rank holds.
void Volumes::add_overlap(Tally& counts, const Unit& unit, Stretch stretch) const {
  const auto [begin, end] = held(unit);
  const std::int64_t elements = std::min(end, stretch.end) - std::max(begin, stretch.begin);
  if (elements > 0) counts.add(CommOp::all_reduce, unit.times, e_grad_ * elements);
}

CommCounts Volumes::between_copies(MessageSizes* sizes) const {
  Tally counts{sizes};
  for (const Unit& unit : units_) {
    std::int64_t at = 0;
    for (const Size& parameter : unit) {
      const std::int64_t end = at + parameter.count;
      if (parameter.copied > 0) add_overlap(counts, unit, {end - parameter.copied, end});
      at += round_up(parameter.count, 16);
    }
  }
  return counts.total;
}

// ---- Pipelines --------------------------------------------------------------------------------

std::int64_t Volumes::message_bytes() const {
  const std::int64_t rows = splits_tokens_ ? round_up(tokens_, t_) / t_ : tokens_;
  return e_ * rows * spec_.hidden;
}

CommCounts Volumes::on_pp(MessageSizes* sizes) const {
  Tally counts{sizes};
  if (p_ == 1) return counts.total;
  counts.add_loss_and_norm(d_ * t_ * p_);
  const bool is_v = is_v_shaped(candidate_.schedule);
  const std::int64_t v = is_v ? 2 : candidate_.chunks;
  const bool is_round = candidate_.schedule == Pipeline::routes;
  const bool is_edge = !is_round && (pp_rank_ == 0 || pp_rank_ == p_ - 1);
  // An inner rank passes on every activation and every gradient of its v stages. At the edges of a
  // straight placement one of the two ends; at those of a V the data turns, or begins and ends.
  // Routes of all stages have no edges: they come back to the first rank.
  std::int64_t sends = 2 * m_ * v;
  if (is_edge) sends = is_v ? m_ * v : m_ * v + m_ * (v - 1);
  counts.add(CommOp::send, sends, message_bytes());
  counts.add(CommOp::recv, sends, message_bytes());
  return counts.total;
}

CommCounts Volumes::on_lanes(MessageSizes* sizes) const {
  Tally counts{sizes};
  if (!divides_over_pp()) return counts.total;
  const std::int64_t tokens = round_up(tokens_, t_) / t_, bytes = e_ * tokens * spec_.hidden;
  counts.add(CommOp::broadcast, 2 * m_, bytes);   // the head's input, the embedding's gradient
  counts.add(CommOp::all_reduce, 2 * m_, bytes);  // what is looked up, the head's gradient
  counts.add(CommOp::all_gather, m_, 4 * 3 * tokens * p_);
  return counts.total;
}

CommCounts Volumes::between_ends(MessageSizes* sizes) const {
  Tally counts{sizes};
  if (divides_over_pp()) return counts.total;
  const bool has_two_ends = spec_.tied_embeddings && p_ > 1 && !ends_meet(candidate_.schedule);
  if (has_two_ends && (part_.has_first || part_.has_last)) {
    const auto [begin, end] = held(padded(table()));
    counts.add(CommOp::all_reduce, 1, e_grad_ * (end - begin));
  }
  return counts.total;
}

TrafficBySize Volumes::by_size() const {
  TrafficBySize traffic;
  on_tp(&traffic.tp);
  on_dp(&traffic.dp);
  on_pp(&traffic.pp);
  between_copies(&traffic.copies);
  between_ends(&traffic.ends);
  on_lanes(&traffic.lanes);
  return traffic;
}

}  // namespace heddle::planner
