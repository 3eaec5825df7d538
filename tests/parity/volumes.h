#pragma once

#include <array>
#include <cstdint>

#include "comm/communicator.h"
#include "planner/candidate.h"
#include "planner/message_sizes.h"
#include "planner/rank_sizes.h"

namespace heddle::planner {

/// The sizes of a step that a candidate does not have.
struct StepShape {
  std::int64_t seq_len = 1, microbatches = 1;
  std::int64_t loss_chunk = 1024;   ///< tokens per chunk of the output projection
  std::int64_t element_bytes = 4;   ///< of activations and parameters
  std::int64_t gradient_bytes = 4;  ///< per parameter
};

/// What travels in one optimizer step of a transformer and what a rank holds, by closed formulas:
/// calls and payloads (of the whole tensor) exactly as the runtime's communicators count them.
/// Written from the sizes of the model, not from the code that communicates: what that code is
/// checked against.
///
/// t, p, d: ranks on tp, pp, dp; m: micro-batches of a data-parallel rank; v: stages of a pipeline
/// rank.
class Volumes {
 public:
  /// `dp_rank` matters under ZeRO, where ranks hold different stretches.
  Volumes(const ModelSpec& spec, const Candidate& candidate, const StepShape& step,
          const RankPart& part, int pp_rank, int dp_rank = 0);

  // Each also adds to `sizes`, where that is given.
  CommCounts on_tp(MessageSizes* sizes = nullptr) const;
  CommCounts on_dp(MessageSizes* sizes = nullptr) const;
  CommCounts on_pp(MessageSizes* sizes = nullptr) const;
  /// Between tp ranks that hold the same key heads.
  CommCounts between_copies(MessageSizes* sizes = nullptr) const;
  /// Between the two ends of a pipeline, which both hold a tied embedding.
  CommCounts between_ends(MessageSizes* sizes = nullptr) const;
  /// Of a vocabulary that is divided over the pipeline, on the communicators it has for itself.
  CommCounts on_lanes(MessageSizes* sizes = nullptr) const;

  /// All of them.
  TrafficBySize by_size() const;

  /// Elements of this rank's parameters with padding; where ZeRO is at least `from_zero`, its
  /// share of them.
  std::int64_t held_elements(int from_zero) const;
  /// Of the inner matrices in it, with padding, what optimizers keep state for.
  std::int64_t held_inner_elements() const;
  /// Of the largest unit: what ZeRO-3 has gathered at a time.
  std::int64_t largest_unit_elements() const;
  /// Bytes of one message between stages.
  std::int64_t message_bytes() const;

 private:
  /// A parameter on this rank, in elements. Without initial values: many are made and few used.
  struct Size {
    std::int64_t count;
    bool is_replicated;   ///< its gradient is summed over tp
    std::int64_t copied;  ///< the last so many are summed over the copies
  };
  /// Parameters that are exchanged together, `times` times. In memory: matrices, then vectors, and
  /// of each first those that are not summed over tp.
  struct Unit {
    std::array<Size, 16> sizes;
    int count = 0;
    std::int64_t times = 1;
    std::int64_t elements = 0;  ///< with padding
    int inner = 0;              ///< so many of the first are inner matrices

    void push(std::int64_t size, bool is_replicated = false, std::int64_t copied = 0);
    const Size* begin() const { return sizes.data(); }
    const Size* end() const { return sizes.data() + count; }
  };
  struct Units {
    std::array<Unit, 5> units;
    int count = 0;

    void push(const Unit& unit) { units[static_cast<std::size_t>(count++)] = unit; }
    const Unit* begin() const { return units.data(); }
    const Unit* end() const { return units.data() + count; }
  };
  struct Tally;
  struct Stretch {
    std::int64_t begin = 0, end = 0;
  };

  Unit block() const;
  Unit norm() const;
  Unit table() const;
  Unit padded(Unit unit) const;
  Units units() const;
  Stretch held(const Unit& unit) const;
  void add_overlap(Tally& counts, const Unit& unit, Stretch stretch) const;
  bool is_tied_here() const;
  bool divides_over_pp() const;

  const ModelSpec& spec_;
  const Candidate candidate_;
  const RankPart part_;
  const std::int64_t tokens_, m_, loss_chunk_, e_, e_grad_;
  const std::int64_t t_, p_, d_;
  const int zero_, pp_rank_, dp_rank_;
  const bool splits_tokens_;
  const Units units_;
};

}  // namespace heddle::planner
