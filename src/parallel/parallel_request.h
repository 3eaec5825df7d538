#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/experts/exchange_plan.h"
#include "parallel/schedule/make_schedule.h"
#include "parallel/sequence/context_shape.h"

namespace heddle {

/// How the rows of the embedding and of the output projection lie: all on every rank of the first
/// and of the last stage, divided over their tp ranks, or divided over all ranks of the pipeline.
enum class VocabularyPlacement : std::uint8_t { replicated, tensor, pipeline };
/// As the run file spells them, in the order of VocabularyPlacement.
std::span<const std::string_view> vocabulary_names();
std::string_view name_of(VocabularyPlacement vocabulary);

/// How work is to be divided over ranks: the section `parallel` of the run file, what the planner
/// varies, and what a plan resolves. One that says nothing divides nothing; the run file's defaults
/// are RunConfig's.
struct ParallelRequest {
  int sites = 1;  ///< replicas of all that follows that meet seldom (OuterPolicy)
  int dp = 0;     ///< 0: what the number of ranks leaves
  int tp = 1, pp = 1;
  int cp = 1;
  ContextMethod context = ContextMethod::automatic;  ///< of these, nothing where cp is 1
  ContextOrder context_order = ContextOrder::automatic;
  int context_heads = 0;  ///< of usp; 0: as many as can be
  int ep = 1;             ///< ranks of a stage that divide experts, whatever their axes
  int etp = 1;            ///< ranks that divide each of those experts
  float ep_rows = 0;      ///< rows that a rank may receive, in multiples of an even share; 0: any
  ExchangeRequest ep_exchange = {};  ///< how rows and weights of experts meet
  int zero = 0;
  bool sequence = false;  ///< norms are split along the sequence over tp; nothing where tp is 1
  Pipeline schedule = Pipeline::one_f_one_b;
  int chunks = 1;  ///< stages of a pipeline rank
  /// Of schedule routes: what make_routes is given.
  double skip = 0.0;
  std::string routes = {};
  VocabularyPlacement vocabulary = VocabularyPlacement::tensor;
  std::int8_t vocabulary_algorithm = 2;  ///< 1 or 2, of a vocabulary divided over the pipeline
  bool overlap = true;                   ///< exchange over dp runs under the computation
  bool operator==(const ParallelRequest&) const = default;

  /// Experts lie in a view of their own: not as MLPs that tp divides.
  bool divides_experts() const { return ep > 1 || etp > 1; }
  bool divides_vocabulary_over_pp() const { return vocabulary == VocabularyPlacement::pipeline; }
  /// Micro-batches go through the pipeline on ways of their own.
  bool takes_routes() const { return schedule == Pipeline::routes && pp > 1; }
  /// dp, or what so many ranks leave for it.
  int replicas_on(int ranks) const;
  /// Of one replica in each site where dp is left open. Sizes that keys allow do not overflow it.
  std::int64_t ranks() const { return std::int64_t{sites} * (dp == 0 ? 1 : dp) * cp * tp * pp; }
};

/// Something in a request that no model can be trained with on so many ranks.
struct RequestProblem {
  std::vector<std::string> keys;  ///< of the run file, that it is about
  std::string message;            ///< what is wrong and what to change
};
std::vector<RequestProblem> problems_of(const ParallelRequest& request, int ranks);

/// The computations and messages of one step, for every pipeline rank (`lower`). Error(usage) for
/// what the schedule does not have.
Schedule step_schedule(const ParallelRequest& request, std::int64_t microbatches);

}  // namespace heddle
