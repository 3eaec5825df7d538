#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "model/decoder.h"
#include "model/spec.h"
#include "parallel/schedule/schedule.h"
#include "parallel/step/tell_step.h"

namespace heddle {

/// What a run asks for on its axes (the run file's section `parallel`).
struct ParallelRequest {
  int dp = 0;  ///< 0: what the number of ranks leaves
  int tp = 1, pp = 1;
  int zero = 0;
  bool sequence = false;
  VocabularyPlacement vocabulary = VocabularyPlacement::tensor;
  int vocabulary_algorithm = 2;  ///< 1 or 2, of a vocabulary divided over the pipeline
  std::string schedule = "1f1b";
  int chunks = 1;
  bool overlap = true;
  bool whole_matrices = false;  ///< the optimizer brings matrices together (WholeMatrices)
};

/// How a model lies on a mesh: what was asked for, with nothing left open, and which rank has which
/// units.
struct ParallelPlan : ParallelRequest {
  MeshShape mesh = {};
  std::vector<int> rank_of_stage = {};
  std::vector<DecoderShare::Units> units_of_stage = {};
  StepPolicy policy = {};

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  bool divides_vocabulary_over_pp() const { return vocabulary == VocabularyPlacement::pipeline; }
  /// The computations and messages of one step, for every pipeline rank.
  Schedule step_schedule(int microbatches) const;
  /// The stages of a pipeline rank, ascending.
  std::vector<int> stages_of(int pp_rank) const;
};

/// Everything on one rank.
ParallelPlan single_rank_plan(const ModelSpec& spec);

/// The request on a mesh, with `dp` said and stages cut.
ParallelPlan lay_out(const ModelSpec& spec, const ParallelRequest& request,
                     std::vector<int> rank_of_stage,
                     std::vector<DecoderShare::Units> units_of_stage);

/// Throws one Error(usage) that names everything in the request that the model or the number of
/// ranks does not allow, each with what to change.
ParallelPlan make_plan(const ModelSpec& spec, const ParallelRequest& request, int ranks,
                       std::int64_t seq_len);

}  // namespace heddle
