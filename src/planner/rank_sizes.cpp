#include "planner/rank_sizes.h"

#include <algorithm>
#include <cmath>

#include "parallel/padding.h"

namespace heddle::planner {

RankSizes::RankSizes(const ModelSpec& spec, const Candidate& candidate, const Block& block,
                     const RankPart& part, const Compression* compress)
    : spec_(spec),
      candidate_(candidate),
      compress_(compress != nullptr && !compress->is_none() ? compress : nullptr),
      is_tied_here_(spec.tied_embeddings && candidate.pp == 1) {
  const bool is_divided = candidate.divides_vocabulary_over_pp();
  const std::int64_t tables = (part.has_first ? 1 : 0) + (part.has_last && !is_tied_here_ ? 1 : 0);
  const std::int64_t norm = padded(spec.hidden);
  const auto whole = [](double elements) { return static_cast<std::int64_t>(std::ceil(elements)); };
  units_ = {unit(whole(block.elements), part.blocks),
            experts_unit(whole(block.expert_elements), part.blocks),
            unit(spec.max_positions * spec.hidden, part.has_first && !spec.rope ? 1 : 0),
            unit(spec.norm == ModelSpec::Norm::rms ? norm : 2 * norm, part.has_norm ? 1 : 0),
            unit(table_elements(), is_divided ? 2 : tables)};
}

RankSizes::Unit RankSizes::unit(std::int64_t elements, std::int64_t times) const {
  const std::int64_t ranks = candidate_.token_ranks();
  return {padded(elements, kParameterAlignment * ranks), times, ranks};
}

RankSizes::Unit RankSizes::experts_unit(std::int64_t elements, std::int64_t times) const {
  if (elements == 0) return {};
  const std::int64_t ranks = candidate_.expert_token_ranks();
  return {padded(elements, kParameterAlignment * ranks), times, ranks};
}

std::int64_t RankSizes::table_elements() const {
  const auto rows_of = [&](std::int64_t ranks) { return (spec_.vocab + ranks - 1) / ranks; };
  switch (candidate_.vocabulary) {
    case VocabularyPlacement::replicated: return spec_.vocab * spec_.hidden;
    case VocabularyPlacement::tensor: return rows_of(candidate_.tp) * spec_.hidden;
    case VocabularyPlacement::pipeline: break;
  }
  return rows_of(candidate_.pp) * spec_.hidden;
}

double RankSizes::held_elements(int from_zero) const {
  std::int64_t elements = 0;
  for (const Unit& unit : units_) {
    elements += unit.times * (unit.elements / (zero_of(unit) >= from_zero ? unit.ranks : 1));
  }
  return static_cast<double>(elements);
}

double RankSizes::held_inner_elements(double inner_elements) const {
  const auto held = [&](const Unit& unit) {
    return static_cast<double>(unit.elements) /
           static_cast<double>(zero_of(unit) > 0 ? unit.ranks : 1);
  };
  const auto& [blocks, experts, positions, norm, table] = units_;
  return static_cast<double>(blocks.times) * std::min(held(blocks), inner_elements) +
         static_cast<double>(experts.times) * held(experts);
}

double RankSizes::largest_unit_elements() const {
  std::int64_t most = 0;
  for (const Unit& unit : units_) most = std::max(most, unit.times > 0 ? unit.elements : 0);
  return static_cast<double>(most);
}

std::shared_ptr<const codec::Codec> RankSizes::codec_for(Compression::Kind kind, const Unit& unit,
                                                         double element_bytes) const {
  if (compress_ == nullptr || unit.ranks == 1) return nullptr;
  const double bytes = element_bytes * static_cast<double>(unit.elements);
  return bytes < static_cast<double>(compress_->min_bytes) ? nullptr : compress_->codec(kind);
}

double RankSizes::coded_elements() const {
  double all = 0;
  for (const Unit& unit : units_) {
    if (codec_for(Compression::Kind::gradients, unit, 4.0)) {
      all += static_cast<double>(unit.times) * static_cast<double>(unit.elements);
    }
  }
  return all;
}

RankSizes::Coded RankSizes::coded(std::int64_t microbatches, double element_bytes) const {
  Coded coded;
  if (compress_ == nullptr) return coded;
  for (const Unit& unit : units_) {
    const auto count = static_cast<double>(unit.elements), ranks = static_cast<double>(unit.ranks);
    const int zero = zero_of(unit);
    if (const auto codec = codec_for(Compression::Kind::gradients, unit, 4.0)) {
      coded.gradients = codec;
      const double values = count * static_cast<double>(unit.times * (zero < 2 ? 1 : microbatches));
      coded.encoded_gradients += values;
      coded.encoded_sums += zero == 0 ? values / ranks : 0.0;
      coded.decoded_gradients += zero == 0 ? 2.0 * values : values;
    }
    if (zero == 0) continue;
    if (const auto codec = codec_for(Compression::Kind::weights, unit, element_bytes)) {
      coded.weights = codec;
      const double values =
          count * static_cast<double>(unit.times * (zero == 3 ? 2 * microbatches : 1));
      coded.encoded_weights += values / ranks;
      coded.decoded_weights += values;
    }
  }
  return coded;
}

namespace {

void add(CommCounts& counts, CommOp op, std::int64_t calls, double bytes_each) {
  const std::int64_t bytes = calls * static_cast<std::int64_t>(bytes_each);
  counts.by_op[static_cast<std::size_t>(op)].add(calls, bytes, bytes);
}

}  // namespace

void RankSizes::add_exchange(const Unit& unit, std::int64_t microbatches, double element_bytes,
                             double gradient_bytes, CommCounts& counts) const {
  const auto add_coded = [&](CommOp op, std::int64_t calls, const codec::Codec& codec,
                             double payload) {
    const auto wire =
        unit.ranks * static_cast<std::int64_t>(codec.encoded_bytes(unit.elements / unit.ranks));
    counts.by_op[static_cast<std::size_t>(op)].add(
        calls, calls * static_cast<std::int64_t>(payload), calls * wire);
  };
  const int zero = zero_of(unit);
  const double values = element_bytes * static_cast<double>(unit.elements),
               gradients = gradient_bytes * static_cast<double>(unit.elements);
  const std::int64_t reductions = unit.times * (zero < 2 ? 1 : microbatches);
  if (const auto codec = codec_for(Compression::Kind::gradients, unit, gradient_bytes)) {
    add_coded(CommOp::all_to_all, reductions, *codec, gradients);
    if (zero == 0) add_coded(CommOp::all_gather, reductions, *codec, gradients);
  } else {
    add(counts, zero == 0 ? CommOp::all_reduce : CommOp::reduce_scatter, reductions, gradients);
  }
  if (zero == 0) return;
  const std::int64_t gathers = unit.times * (zero == 3 ? 2 * microbatches : 1);
  if (const auto codec = codec_for(Compression::Kind::weights, unit, element_bytes)) {
    add_coded(CommOp::all_gather, gathers, *codec, values);
  } else {
    add(counts, CommOp::all_gather, gathers, values);
  }
}

CommCounts RankSizes::on_dp(std::int64_t microbatches, double element_bytes,
                            double gradient_bytes) const {
  CommCounts counts;
  if (candidate_.token_ranks() == 1) return counts;
  const std::int64_t axes = (candidate_.dp > 1 ? 1 : 0) + (candidate_.cp > 1 ? 1 : 0);
  add(counts, CommOp::all_reduce, axes, 8);   // the number of targets
  add(counts, CommOp::all_reduce, axes, 16);  // loss and norm
  const auto& [blocks, experts, positions, norm, tables] = units_;
  for (const Unit* unit : {&blocks, &positions, &norm, &tables}) {
    add_exchange(*unit, microbatches, element_bytes, gradient_bytes, counts);
  }
  if (zero_of(tables) < 3) return counts;
  const double table = element_bytes * static_cast<double>(tables.elements);
  if (candidate_.divides_vocabulary_over_pp()) {
    // Looking up needs the table once, S once, and T only with algorithm 1.
    add(counts, CommOp::all_gather,
        candidate_.vocabulary_algorithm == 1 ? -microbatches : -2 * microbatches, table);
  } else if (is_tied_here_) {
    add(counts, CommOp::all_gather, 2 * microbatches, table);  // for both ends
  }
  return counts;
}

CommCounts RankSizes::on_edp(std::int64_t microbatches, double element_bytes,
                             double gradient_bytes) const {
  CommCounts counts;
  const Unit& experts = units_[1];
  if (experts.ranks > 1) {
    add_exchange(experts, microbatches, element_bytes, gradient_bytes, counts);
  }
  return counts;
}

}  // namespace heddle::planner
