#include "parity/volume_formulas.h"

#include <algorithm>

namespace heddle {
namespace {

std::int64_t round_up(std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; }

void add(CommCounts& counts, CommOp op, std::int64_t calls, std::int64_t bytes_each) {
  auto& entry = counts.by_op[static_cast<std::size_t>(op)];
  entry.calls += calls;
  entry.payload_bytes += calls * bytes_each;
}

/// Loss and squared norm, once per step on every axis.
void add_loss_and_norm(CommCounts& counts) { add(counts, CommOp::all_reduce, 1, 16); }

}  // namespace

VolumeFormulas::VolumeFormulas(const ModelSpec& spec, const MeshCase& mesh, const BatchShape& batch,
                               std::int64_t loss_chunk, const RankPart& part, int rank)
    : spec_(spec),
      request_(mesh.request),
      recompute_(mesh.recompute),
      tokens_(batch.sequences * batch.seq_len),
      m_(batch.microbatches),
      loss_chunk_(loss_chunk),
      part_(part),
      t_(request_.tp),
      p_(request_.pp),
      d_(request_.dp),
      zero_(request_.dp == 1 ? 0 : request_.zero),
      dp_rank_(static_cast<int>(rank / t_ % d_)),
      pp_rank_(static_cast<int>(rank / t_ / d_)) {}

// ---- Parameters -------------------------------------------------------------------------------

VolumeFormulas::Unit VolumeFormulas::block() const {
  const std::int64_t h = spec_.hidden, f = spec_.ffn / t_;
  const std::int64_t q = spec_.heads / t_ * spec_.head_dim;
  const std::int64_t kv = std::max<std::int64_t>(1, spec_.kv_heads / t_) * spec_.head_dim;
  const bool has_copies = t_ > spec_.kv_heads;
  const std::int64_t ups = spec_.mlp == ModelSpec::Mlp::swiglu ? 2 : 1;
  Unit unit = {
      {(q + 2 * kv) * h, false, has_copies ? 2 * kv * h : 0}, {q * h}, {ups * f * h}, {f * h}};
  if (spec_.qkv_bias) unit.push_back({q + 2 * kv, false, has_copies ? 2 * kv : 0});
  if (spec_.attention_out_bias) unit.push_back({h});
  if (spec_.mlp_bias) {
    unit.push_back({ups * f});
    unit.push_back({h});
  }
  // Norms of the stream see other tokens on every rank, norms of heads other heads.
  const bool splits = request_.sequence && t_ > 1;
  const int norms = spec_.norm == ModelSpec::Norm::rms ? 2 : 4;
  Unit of_stream(static_cast<std::size_t>(norms), Size{h, splits});
  Unit of_heads(spec_.qk_norm ? 2 : 0, Size{spec_.head_dim, t_ > 1});
  // In the order of the layer, those that are summed last.
  const auto append = [&](const Unit& more) { unit.insert(unit.end(), more.begin(), more.end()); };
  if (splits && !of_heads.empty()) {
    append({of_stream[0]});
    append(of_heads);
    append({of_stream[1]});
  } else {
    append(of_stream);
    append(of_heads);
  }
  return unit;
}

VolumeFormulas::Unit VolumeFormulas::norm() const {
  const std::size_t vectors = spec_.norm == ModelSpec::Norm::rms ? 1 : 2;
  return Unit(vectors, Size{spec_.hidden, request_.sequence && t_ > 1});
}

bool VolumeFormulas::divides_over_pp() const {
  return request_.vocabulary == VocabularyPlacement::pipeline;
}

VolumeFormulas::Unit VolumeFormulas::table() const {
  if (divides_over_pp()) return {{(spec_.vocab + p_ - 1) / p_ * spec_.hidden, t_ > 1}};
  if (t_ == 1) return {{spec_.vocab * spec_.hidden}};
  if (request_.vocabulary == VocabularyPlacement::replicated) {
    return {{spec_.vocab * spec_.hidden, true}};
  }
  return {{(spec_.vocab + t_ - 1) / t_ * spec_.hidden}};
}

/// On one rank a tied table is one parameter; in a pipeline the two ends have one each.
bool VolumeFormulas::is_tied_here() const { return spec_.tied_embeddings && p_ == 1; }

std::vector<VolumeFormulas::Unit> VolumeFormulas::units() const {
  std::vector<Unit> units(static_cast<std::size_t>(part_.blocks), block());
  if (part_.has_first && !spec_.rope) {
    units.push_back({{spec_.max_positions * spec_.hidden, request_.sequence && t_ > 1}});
  }
  if (part_.has_norm) units.push_back(norm());
  for (int i = 0; i < tables(); ++i) units.push_back(table());
  return units;
}

/// How many of the embedding and the head are here.
int VolumeFormulas::tables() const {
  if (divides_over_pp()) return 2;
  return (part_.has_first ? 1 : 0) + (part_.has_last && !is_tied_here() ? 1 : 0);
}

std::int64_t VolumeFormulas::size_of(const Unit& unit) const {
  std::int64_t size = 0;
  for (const Size& parameter : unit) size += round_up(parameter.count, 16);
  return round_up(size, 16 * d_);
}

VolumeFormulas::Stretch VolumeFormulas::held(const Unit& unit) const {
  const std::int64_t size = size_of(unit);
  if (zero_ == 0) return {0, size};
  return {size / d_ * dp_rank_, size / d_ * (dp_rank_ + 1)};
}

std::int64_t VolumeFormulas::held_elements(int from_zero) const {
  std::int64_t elements = 0;
  for (const Unit& unit : units()) elements += size_of(unit) / (zero_ >= from_zero ? d_ : 1);
  return elements;
}

std::int64_t VolumeFormulas::parameter_bytes() const { return e * held_elements(3); }
std::int64_t VolumeFormulas::gradient_bytes() const { return e * held_elements(2); }
std::int64_t VolumeFormulas::optimizer_bytes() const { return 2 * e * held_elements(1); }

// ---- Data parallelism -------------------------------------------------------------------------

CommCounts VolumeFormulas::on_dp() const {
  CommCounts counts;
  add(counts, CommOp::all_reduce, 1, 8);  // the number of targets
  add_loss_and_norm(counts);
  if (d_ == 1) return counts;
  for (const Unit& unit : units()) {
    const std::int64_t bytes = e * size_of(unit);
    switch (zero_) {
      case 0: add(counts, CommOp::all_reduce, 1, bytes); break;
      case 1:
        add(counts, CommOp::reduce_scatter, 1, bytes);
        add(counts, CommOp::all_gather, 1, bytes);
        break;
      case 2:
        add(counts, CommOp::reduce_scatter, m_, bytes);
        add(counts, CommOp::all_gather, 1, bytes);
        break;
      default:
        add(counts, CommOp::reduce_scatter, m_, bytes);
        add(counts, CommOp::all_gather, 2 * m_, bytes);
    }
  }
  if (zero_ == 3 && divides_over_pp()) {
    // Looking up needs the table once, S once, and T only with algorithm 1.
    const std::int64_t spared = request_.vocabulary_algorithm == 1 ? m_ : 2 * m_;
    add(counts, CommOp::all_gather, -spared, e * size_of(table()));
  }
  // A table that is both ends' is gathered for both.
  if (zero_ == 3 && is_tied_here()) add(counts, CommOp::all_gather, 2 * m_, e * size_of(table()));
  return counts;
}

// ---- Tensor parallelism -----------------------------------------------------------------------

CommCounts VolumeFormulas::on_tp() const {
  CommCounts counts;
  add_loss_and_norm(counts);
  if (t_ == 1) return counts;
  const std::int64_t h = spec_.hidden;
  const std::int64_t whole = e * tokens_ * h, padded = e * round_up(tokens_, t_) * h;
  // Two branches per block: into the divided products and out of them, forward and backward.
  const std::int64_t passes = recompute_ ? 3 : 2, branches = 2 * part_.blocks * m_;
  if (request_.sequence) {
    add(counts, CommOp::all_gather, passes * branches, padded);
    add(counts, CommOp::reduce_scatter, passes * branches, padded);
  } else {
    add(counts, CommOp::all_reduce, passes * branches, whole);
  }
  const bool divides = request_.vocabulary == VocabularyPlacement::tensor;
  const std::int64_t first = part_.has_first ? m_ : 0, last = part_.has_last ? m_ : 0;
  if (divides && request_.sequence) {
    // Forward of the embedding and backward of the head; and the other way round.
    add(counts, CommOp::reduce_scatter, first + last, padded);
    add(counts, CommOp::all_gather, first + last, padded);
  } else if (divides) {
    add(counts, CommOp::all_reduce, first + last, whole);
  } else if (!request_.sequence) {
    // Each rank looks up its tokens and has the loss of its tokens.
    add(counts, CommOp::all_gather, first + last, padded);
  }
  if (divides) {
    for (std::int64_t begin = 0; begin < tokens_; begin += loss_chunk_) {
      const std::int64_t rows = std::min(loss_chunk_, tokens_ - begin);
      add(counts, CommOp::all_reduce, 3 * last, e * rows);  // maximum, sum, target
    }
  }
  // Once per step, what is replicated, unit by unit: it lies together.
  for (const Unit& unit : units()) {
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
  return counts;
}

/// A sum over the elements of `stretch` that this rank holds.
void VolumeFormulas::add_overlap(CommCounts& counts, const Unit& unit, Stretch stretch) const {
  const auto [begin, end] = held(unit);
  const std::int64_t elements = std::min(end, stretch.end) - std::max(begin, stretch.begin);
  if (elements > 0) add(counts, CommOp::all_reduce, 1, e * elements);
}

CommCounts VolumeFormulas::between_copies() const {
  CommCounts counts;
  for (const Unit& unit : units()) {
    std::int64_t at = 0;
    for (const Size& parameter : unit) {
      const std::int64_t end = at + parameter.count;
      if (parameter.copied > 0) add_overlap(counts, unit, {end - parameter.copied, end});
      at += round_up(parameter.count, 16);
    }
  }
  return counts;
}

// ---- Pipelines --------------------------------------------------------------------------------

bool VolumeFormulas::is_v_shaped() const {
  return request_.schedule == "zb-v" || request_.schedule == "v-min" ||
         request_.schedule == "v-half";
}

CommCounts VolumeFormulas::on_pp() const {
  CommCounts counts;
  add_loss_and_norm(counts);
  if (p_ == 1) return counts;
  const std::int64_t rows = request_.sequence && t_ > 1 ? round_up(tokens_, t_) / t_ : tokens_;
  const std::int64_t bytes = e * rows * spec_.hidden;
  const std::int64_t v = is_v_shaped() ? 2 : request_.chunks;
  const bool is_edge = pp_rank_ == 0 || pp_rank_ == p_ - 1;
  // An inner rank passes on every activation and every gradient of its v stages. At the edges of a
  // straight placement one of the two ends; at those of a V the data turns, or begins and ends.
  std::int64_t sends = 2 * m_ * v;
  if (is_edge) sends = is_v_shaped() ? m_ * v : m_ * v + m_ * (v - 1);
  add(counts, CommOp::send, sends, bytes);
  add(counts, CommOp::recv, sends, bytes);
  return counts;
}

bool VolumeFormulas::has_two_ends() const {
  return spec_.tied_embeddings && p_ > 1 && !is_v_shaped();
}

CommCounts VolumeFormulas::on_lanes() const {
  CommCounts counts;
  if (!divides_over_pp()) return counts;
  const std::int64_t tokens = round_up(tokens_, t_) / t_, bytes = e * tokens * spec_.hidden;
  add(counts, CommOp::broadcast, 2 * m_, bytes);   // the head's input, the embedding's gradient
  add(counts, CommOp::all_reduce, 2 * m_, bytes);  // what is looked up, the head's gradient
  add(counts, CommOp::all_gather, m_, e * 3 * tokens * p_);
  return counts;
}

CommCounts VolumeFormulas::between_ends() const {
  CommCounts counts;
  if (divides_over_pp()) return counts;
  if (has_two_ends() && (part_.has_first || part_.has_last)) {
    const auto [begin, end] = held(table());
    add(counts, CommOp::all_reduce, 1, e * (end - begin));
  }
  return counts;
}

}  // namespace heddle
