#pragma once

#include <cstdint>
#include <vector>

#include "mesh/mesh.h"
#include "model/decoder.h"
#include "model/spec.h"
#include "parallel/compression.h"
#include "parallel/parallel_request.h"
#include "parallel/step/tell_step.h"

namespace heddle {

/// How a model lies on a mesh: what was asked for, with nothing left open, and which rank has which
/// units.
struct ParallelPlan : ParallelRequest {
  MeshShape mesh = {};
  std::vector<int> rank_of_stage = {};
  std::vector<DecoderPart::Units> units_of_stage = {};
  StepPolicy policy = {};
  bool whole_matrices = false;  ///< the optimizer brings matrices together (WholeMatrices)
  Compression compress = {};
  bool retakes_steps = false;  ///< ParamStore::Options
  /// Rows that a rank receives for its experts in dry runs, in multiples of an even share.
  double planned_expert_rows = 1;

  const ParallelRequest& request() const { return *this; }
  /// The attention that the ranks of axis cp share, but for its tokens and documents.
  ContextShape context_shape(const ModelSpec& spec) const;
  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  /// The stages of a pipeline rank, ascending.
  std::vector<int> stages_of(int pp_rank) const;
};

/// The most rows that a rank can receive for its experts, in multiples of an even share: what
/// parallel.ep_rows allows, or all tokens choosing experts of the same rank.
double most_expert_rows(const ModelSpec& spec, const ParallelRequest& request);

/// Everything on one rank.
ParallelPlan single_rank_plan(const ModelSpec& spec);

/// The request on a mesh, with `dp` said and stages cut.
ParallelPlan lay_out(const ModelSpec& spec, const ParallelRequest& request,
                     std::vector<int> rank_of_stage, std::vector<DecoderPart::Units> units_of_stage,
                     bool whole_matrices, const Compression& compress = {});

/// Everything in the request that the model or the number of ranks does not allow.
std::vector<RequestProblem> problems_of(const ModelSpec& spec, const ParallelRequest& request,
                                        int ranks);

/// Throws one Error(usage) with all problems.
ParallelPlan make_plan(const ModelSpec& spec, const ParallelRequest& request, int ranks,
                       std::int64_t seq_len, bool whole_matrices = false,
                       const Compression& compress = {});

}  // namespace heddle
