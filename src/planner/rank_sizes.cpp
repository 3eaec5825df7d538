#include "planner/rank_sizes.h"

#include <algorithm>
#include <cmath>

#include "parallel/padding.h"

namespace heddle::planner {

RankSizes::RankSizes(const ModelSpec& spec, const Candidate& candidate, double block_elements,
                     const RankPart& part, const Compression* compress)
    : spec_(spec),
      candidate_(candidate),
      compress_(compress != nullptr && !compress->is_none() ? compress : nullptr),
      zero_(candidate.token_ranks() == 1 ? 0 : candidate.zero),
      is_tied_here_(spec.tied_embeddings && candidate.pp == 1) {
  const bool is_divided = candidate.divides_vocabulary_over_pp();
  const std::int64_t tables = (part.has_first ? 1 : 0) + (part.has_last && !is_tied_here_ ? 1 : 0);
  const std::int64_t norm = padded(spec.hidden);
  units_ = {unit(static_cast<std::int64_t>(std::ceil(block_elements)), part.blocks),
            unit(spec.max_positions * spec.hidden, part.has_first && !spec.rope ? 1 : 0),
            unit(spec.norm == ModelSpec::Norm::rms ? norm : 2 * norm, part.has_norm ? 1 : 0),
            unit(table_elements(), is_divided ? 2 : tables)};
}

RankSizes::Unit RankSizes::unit(std::int64_t elements, std::int64_t times) const {
  return {padded(elements, kParameterAlignment * candidate_.token_ranks()), times};
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
  const std::int64_t parts = zero_ >= from_zero ? candidate_.token_ranks() : 1;
  for (const Unit& unit : units_) elements += unit.times * (unit.elements / parts);
  return static_cast<double>(elements);
}

double RankSizes::held_inner_elements(double inner_elements) const {
  const Unit& blocks = units_.front();
  const double held =
      static_cast<double>(blocks.elements) / (zero_ > 0 ? candidate_.token_ranks() : 1);
  return static_cast<double>(blocks.times) * std::min(held, inner_elements);
}

double RankSizes::largest_unit_elements() const {
  std::int64_t most = 0;
  for (const Unit& unit : units_) most = std::max(most, unit.times > 0 ? unit.elements : 0);
  return static_cast<double>(most);
}

std::shared_ptr<const codec::Codec> RankSizes::codec_for(Compression::Kind kind,
                                                         double unit_bytes) const {
  if (compress_ == nullptr || candidate_.token_ranks() == 1) return nullptr;
  return unit_bytes < static_cast<double>(compress_->min_bytes) ? nullptr : compress_->codec(kind);
}

double RankSizes::coded_elements() const {
  double all = 0;
  for (const auto& [elements, times] : units_) {
    const auto count = static_cast<double>(elements);
    if (codec_for(Compression::Kind::gradients, 4.0 * count)) {
      all += static_cast<double>(times) * count;
    }
  }
  return all;
}

RankSizes::Coded RankSizes::coded(std::int64_t microbatches, double element_bytes) const {
  Coded coded;
  if (compress_ == nullptr) return coded;
  const double ranks = candidate_.token_ranks();
  for (const auto& [elements, times] : units_) {
    const auto count = static_cast<double>(elements);
    if (const auto codec = codec_for(Compression::Kind::gradients, 4.0 * count)) {
      coded.gradients = codec;
      const double values = count * static_cast<double>(times * (zero_ < 2 ? 1 : microbatches));
      coded.encoded_gradients += values;
      coded.encoded_sums += zero_ == 0 ? values / ranks : 0.0;
      coded.decoded_gradients += zero_ == 0 ? 2.0 * values : values;
    }
    if (zero_ == 0) continue;
    if (const auto codec = codec_for(Compression::Kind::weights, element_bytes * count)) {
      coded.weights = codec;
      const double values =
          count * static_cast<double>(times * (zero_ == 3 ? 2 * microbatches : 1));
      coded.encoded_weights += values / ranks;
      coded.decoded_weights += values;
    }
  }
  return coded;
}

CommCounts RankSizes::on_dp(std::int64_t microbatches, double element_bytes,
                            double gradient_bytes) const {
  CommCounts counts;
  const auto add = [&](CommOp op, std::int64_t calls, double bytes_each) {
    const std::int64_t bytes = calls * static_cast<std::int64_t>(bytes_each);
    counts.by_op[static_cast<std::size_t>(op)].add(calls, bytes, bytes);
  };
  if (candidate_.token_ranks() == 1) return counts;
  const std::int64_t axes = (candidate_.dp > 1 ? 1 : 0) + (candidate_.cp > 1 ? 1 : 0);
  add(CommOp::all_reduce, axes, 8);   // the number of targets
  add(CommOp::all_reduce, axes, 16);  // loss and norm
  const std::int64_t ranks = candidate_.token_ranks();
  const auto add_coded = [&](CommOp op, std::int64_t calls, const codec::Codec& codec,
                             std::int64_t elements, double payload) {
    const auto wire = ranks * static_cast<std::int64_t>(codec.encoded_bytes(elements / ranks));
    counts.by_op[static_cast<std::size_t>(op)].add(
        calls, calls * static_cast<std::int64_t>(payload), calls * wire);
  };
  for (const auto& [elements, times] : units_) {
    const double values = element_bytes * static_cast<double>(elements),
                 gradients = gradient_bytes * static_cast<double>(elements);
    const std::int64_t reductions = times * (zero_ < 2 ? 1 : microbatches);
    if (const auto codec = codec_for(Compression::Kind::gradients, gradients)) {
      add_coded(CommOp::all_to_all, reductions, *codec, elements, gradients);
      if (zero_ == 0) add_coded(CommOp::all_gather, reductions, *codec, elements, gradients);
    } else {
      add(zero_ == 0 ? CommOp::all_reduce : CommOp::reduce_scatter, reductions, gradients);
    }
    if (zero_ == 0) continue;
    const std::int64_t gathers = times * (zero_ == 3 ? 2 * microbatches : 1);
    if (const auto codec = codec_for(Compression::Kind::weights, values)) {
      add_coded(CommOp::all_gather, gathers, *codec, elements, values);
    } else {
      add(CommOp::all_gather, gathers, values);
    }
  }
  if (zero_ < 3) return counts;
  const double table = element_bytes * static_cast<double>(units_.back().elements);
  if (candidate_.divides_vocabulary_over_pp()) {
    // Looking up needs the table once, S once, and T only with algorithm 1.
    add(CommOp::all_gather,
        candidate_.vocabulary_algorithm == 1 ? -microbatches : -2 * microbatches, table);
  } else if (is_tied_here_) {
    add(CommOp::all_gather, 2 * microbatches, table);  // for both ends
  }
  return counts;
}

}  // namespace heddle::planner
