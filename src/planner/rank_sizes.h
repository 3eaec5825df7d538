#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "planner/candidate.h"

namespace heddle::planner {

/// Which part of the model a rank has: blocks of all its stages together, and whether it has the
/// embedding, the final norm and the head.
struct RankPart {
  std::int64_t blocks = 0;
  bool has_first = false, has_norm = false, has_last = false;
};

/// What a rank holds and exchanges over dp and cp, and of experts that are divided over edp, by
/// closed formulas for the search: units as ParamStore makes them, the mean block for every block.
/// Allocates nothing. Tests hold it against
/// the list of a step (tell_step).
class RankSizes {
 public:
  /// Of parameters of the mean block, as DryBlocks has them.
  struct Block {
    double elements = 0, expert_elements = 0;
  };
  RankSizes(const ModelSpec& spec, const Candidate& candidate, const Block& block,
            const RankPart& part, const Compression* compress = nullptr);

  /// Elements of this rank's parameters with padding; where ZeRO is at least `from_zero`, its share
  /// of them.
  double held_elements(int from_zero) const;
  /// Of the inner matrices of its blocks, which lie first in their units, what the first rank of
  /// those keeps optimizer state for; all that experts have are such.
  double held_inner_elements(double inner_elements) const;
  /// Of the largest unit: what ZeRO-3 has gathered at a time.
  double largest_unit_elements() const;
  /// Values that codecs encode and decode in one optimizer step for what travels over dp and cp.
  struct Coded {
    std::shared_ptr<const codec::Codec> gradients, weights;  ///< null: these travel plainly
    double encoded_gradients = 0, encoded_sums = 0, decoded_gradients = 0;
    double encoded_weights = 0, decoded_weights = 0;
  };
  Coded coded(std::int64_t microbatches, double element_bytes) const;
  /// Elements whose gradients are encoded, on a rank.
  double coded_elements() const;
  /// Calls and bytes of one optimizer step. Codecs are taken to have vectors too.
  CommCounts on_dp(std::int64_t microbatches, double element_bytes, double gradient_bytes) const;
  /// The same of divided experts.
  CommCounts on_edp(std::int64_t microbatches, double element_bytes, double gradient_bytes) const;

 private:
  /// Parameters that so many ranks exchange together, `times` times.
  struct Unit {
    std::int64_t elements = 0, times = 0, ranks = 1;
  };
  Unit unit(std::int64_t elements, std::int64_t times) const;
  Unit experts_unit(std::int64_t elements, std::int64_t times) const;
  int zero_of(const Unit& unit) const { return unit.ranks == 1 ? 0 : candidate_.zero; }
  /// The codec, where a unit travels by it whose elements have so many bytes.
  std::shared_ptr<const codec::Codec> codec_for(Compression::Kind kind, const Unit& unit,
                                                double element_bytes) const;
  void add_exchange(const Unit& unit, std::int64_t microbatches, double element_bytes,
                    double gradient_bytes, CommCounts& counts) const;
  std::int64_t table_elements() const;

  const ModelSpec& spec_;
  const Candidate& candidate_;
  const Compression* const compress_;  ///< null: nothing is
  bool is_tied_here_;  ///< on one rank a tied table is one parameter; in a pipeline the ends have
                       ///< two
  std::array<Unit, 5> units_;  ///< blocks, their experts, ...; the table is the last
};

}  // namespace heddle::planner
