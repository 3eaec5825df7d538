#pragma once

#include <vector>

#include "comm/communicator.h"
#include "nn/context.h"
#include "nn/layer.h"

namespace heddle {

/// Takes rows of experts to the ranks that have those experts, and back: dispatch and combine of a
/// mixture whose experts are divided over ranks (docs/design/040-experts.md). Rank r has the
/// experts [r, r + 1) * experts / ranks. All ranks make the same calls, however many rows each has.
class ExpertExchange {
 public:
  /// `ranks` outlives it.
  ExpertExchange(Communicator& ranks, std::int64_t experts);

  std::int64_t own_experts() const { return experts_ / ranks_.size(); }

  /// Rows of every expert on every rank, [ranks * experts], from where a rank's own begin.
  Tensor gather_counts(const Tensor& offsets_E1, Ctx& ctx) const;

  /// How R rows here become N of own experts.
  struct Ways {
    std::vector<std::int64_t> sent, received;  ///< rows, by rank
    Tensor offsets_O1;  ///< rows of own experts, sorted by expert, then rank, then as there
    Tensor arrived_N;   ///< where each of those is in what arrives, which is sorted by rank first
    Tensor sorted_N;    ///< and the other way around
    Tensor each_N1;     ///< 0, 1, ...: every one of them
    std::int64_t rows() const { return sorted_N.count(); }
  };
  /// The counts are all that it depends on. In a dry run every rank has as many rows for each one.
  Ways ways(const Tensor& counts, std::int64_t rows, Ctx& ctx) const;

  /// Rows sorted by expert to rows of own experts, and back.
  Tensor dispatch(const Tensor& rows_RD, const Ways& ways, Ctx& ctx) const;
  Tensor combine(const Tensor& rows_ND, const Ways& ways, Ctx& ctx) const;

  /// Of rows of so many elements: one way, as a dry run has it.
  LayerCall call(std::int64_t rows, std::int64_t width, DType dtype) const;
  LayerCall counts_call() const;

 private:
  Communicator& ranks_;
  const std::int64_t experts_;
};

}  // namespace heddle
