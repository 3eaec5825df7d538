#pragma once

#include "nn/layer.h"
#include "planner/candidate.h"
#include "planner/rank_sizes.h"

namespace heddle::planner {

/// One of each kind of block that a model repeats, on one rank of tp and for one micro-batch: what
/// their layers say of themselves, which are built for this without memory. All that the planner
/// knows of blocks.
struct DryBlocks {
  /// Where a parameter with inner matrices (Parameter::is_inner) lies in its block's buffer. The
  /// last `copied` elements are on several ranks of tp.
  struct InnerParameter {
    int kind = 0;
    std::int64_t at = 0, count = 0, copied = 0;
  };
  /// An inner matrix, as the Hugging Face model has it, and how many ranks hold each element.
  struct InnerMatrix {
    int kind = 0;
    Shape shape;
    std::int64_t holders = 1;
  };

  /// A collective of experts that are divided over ranks.
  struct ExpertCall {
    Axis over = Axis::ep;  ///< or etp
    LayerCall call = {};
  };

  Cost cost;        ///< of all kinds together; collectives are over tp, messages over cp
  Cost recomputed;  ///< the same where blocks are recomputed
  std::vector<ExpertCall> experts_f = {}, experts_b = {};  ///< beside those; rows in one piece
  std::int64_t elements = 0;         ///< of their parameters, padded as ParamStore does
  std::int64_t expert_elements = 0;  ///< beside those, of experts that are divided over ranks
  int kinds = 1;
  int copies = 1;  ///< ranks of tp that hold the same key heads
  std::vector<InnerParameter> inner_parameters = {};
  std::vector<InnerMatrix> inner_matrices = {};

  /// Of the mean block.
  double block_elements() const { return static_cast<double>(elements) / kinds; }
  RankSizes::Block block_sizes() const {
    return {block_elements(), static_cast<double>(expert_elements) / kinds};
  }
  /// Of its inner matrices, padded; they lie first.
  double inner_elements() const;
};

/// The sizes that costs of layers depend on, for the first rank of cp.
CostShape cost_shape(const Job& job, const Candidate& candidate);

/// Depends on nothing of the candidate but tp, sequence, micro-batch, cp with its method, ep, etp
/// and r of their exchange. `expert_rows`: that the rank receives for its experts, in multiples of
/// an even share. Allocates: once for each of these.
DryBlocks dry_blocks(const Job& job, const Candidate& candidate, double expert_rows = 1);

}  // namespace heddle::planner
