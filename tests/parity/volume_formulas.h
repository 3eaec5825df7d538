#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "engine/memory_plan.h"
#include "parity/mesh_cases.h"

namespace heddle {

/// What travels in one optimizer step and what a rank holds, by closed formulas: those of the
/// literature's tables (calls and payloads per scheme) with our choices for buckets and edges.
/// Written from the formulas and the sizes of the model, not from the code that communicates.
///
/// Elements have `e` bytes. t, p, d: ranks on tp, pp, dp; m: micro-batches of a data-parallel rank;
/// v: stages of a pipeline rank.
class VolumeFormulas {
 public:
  /// `blocks`: transformer blocks of the rank, of all its stages together; `has_first`,
  /// `has_norm`, `has_last`: whether it has the embedding, the final norm and the head.
  struct RankPart {
    std::int64_t blocks = 0;
    bool has_first = false, has_norm = false, has_last = false;
  };

  VolumeFormulas(const ModelSpec& spec, const MeshCase& mesh, const BatchShape& batch,
                 std::int64_t loss_chunk, const RankPart& part, int rank);

  CommCounts on_tp() const;
  CommCounts on_dp() const;
  CommCounts on_pp() const;
  /// Between tp ranks that hold the same key heads.
  CommCounts between_copies() const;
  /// Between the two ends of a pipeline, which both hold a tied embedding.
  CommCounts between_ends() const;
  CommCounts on_lanes() const;

  /// Bytes that stay between steps, without rope tables.
  std::int64_t parameter_bytes() const;
  std::int64_t gradient_bytes() const;
  std::int64_t optimizer_bytes() const;

 private:
  static constexpr std::int64_t e = 4;

  /// A parameter on this rank, in elements.
  struct Size {
    std::int64_t count = 0;
    bool is_replicated = false;  ///< its gradient is summed over tp
    std::int64_t copied = 0;     ///< the last so many are summed over the copies
  };
  /// Parameters that are exchanged together. In memory: matrices, then vectors, and of each first
  /// those that are not summed over tp.
  using Unit = std::vector<Size>;
  struct Stretch {
    std::int64_t begin = 0, end = 0;
  };

  Unit block() const;
  Unit norm() const;
  Unit table() const;
  std::vector<Unit> units() const;
  /// Elements of a unit: every parameter padded to 16, the sum to 16 d.
  std::int64_t size_of(const Unit& unit) const;
  /// Elements of a unit of which this data-parallel rank has moments and reduced gradients.
  Stretch held(const Unit& unit) const;
  void add_overlap(CommCounts& counts, const Unit& unit, Stretch stretch) const;
  std::int64_t held_elements(int from_zero) const;
  bool is_tied_here() const;
  bool has_two_ends() const;
  bool is_v_shaped() const;
  bool divides_over_pp() const;
  int tables() const;

  const ModelSpec& spec_;
  const ParallelRequest& request_;
  const bool recompute_;
  const std::int64_t tokens_, m_, loss_chunk_;
  const RankPart part_;
  const std::int64_t t_, p_, d_;
  const int zero_;
  int dp_rank_ = 0, pp_rank_ = 0;
};

}  // namespace heddle
