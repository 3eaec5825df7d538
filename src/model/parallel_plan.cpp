#include "model/parallel_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/blocks/branch_kind.h"
#include "model/cut_stages.h"

namespace heddle {
namespace {

/// "1, 2, 4": the sizes of tp that the model allows.
std::string possible_tp(const ModelSpec& spec) {
  std::string text;
  for (std::int64_t tp = 1; tp <= spec.heads; ++tp) {
    if (!refuse_tp(spec, tp).empty()) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", tp);
  }
  return text;
}

/// Heads are those of a tp rank.
ContextShape context_shape_of(const ModelSpec& spec, const ParallelRequest& request) {
  const auto of_rank = [&](std::int64_t heads) {
    return static_cast<int>(std::max<std::int64_t>(1, heads / request.tp));
  };
  return {.method = request.context,
          .order = request.context_order,
          .ranks = request.cp,
          .heads = of_rank(spec.heads),
          .key_heads = of_rank(spec.kv_heads),
          .head_dim = static_cast<int>(spec.head_dim),
          .context_heads = request.context_heads};
}

class Checker {
 public:
  Checker(const ModelSpec& spec, const ParallelRequest& request, int ranks)
      : spec_(spec), request_(request), ranks_(ranks) {}

  void check() {
    if (are_positive()) {
      for (RequestProblem& problem : problems_of(request_, ranks_)) {
        problems_.push_back(std::move(problem.message));
      }
      check_tp();
      check_pp();
      check_cp();
    }
    if (request_.zero < 0 || request_.zero > 3) {
      problems_.push_back(fmt::format("parallel.zero = {}; use 0, 1, 2 or 3", request_.zero));
    }
    if (problems_.empty()) return;
    std::string all;
    for (const std::string& problem : problems_) all += (all.empty() ? "" : "\n  ") + problem;
    throw Error(ErrorCode::usage, all, "");
  }

 private:
  bool are_positive() {
    for (const auto& [key, size] :
         {std::pair{"tp", request_.tp}, {"pp", request_.pp}, {"cp", request_.cp}}) {
      if (size < 1) problems_.push_back(fmt::format("parallel.{} = {}; use 1 or more", key, size));
    }
    return problems_.empty();
  }

  void check_tp() {
    for (const std::string& reason : refuse_tp(spec_, request_.tp)) {
      problems_.push_back(fmt::format("parallel.tp = {} {}; use one of {}", request_.tp, reason,
                                      possible_tp(spec_)));
    }
  }

  void check_pp() {
    if (request_.pp > spec_.layers) {
      problems_.push_back(
          fmt::format("parallel.pp = {} is more stages than the model's {} layers; use at most {}",
                      request_.pp, spec_.layers, spec_.layers));
    }
    try {
      step_schedule(request_, 1);
    } catch (const Error& error) {
      problems_.push_back(error.what());
    }
  }

  void check_cp() {
    if (request_.cp == 1 || !refuse_tp(spec_, request_.tp).empty()) return;
    ContextShape shape = context_shape_of(spec_, request_);
    shape.tokens = request_.cp;  // more than the ranks must have is checked with the batch
    const std::string of_tp = request_.tp > 1 ? fmt::format(" on tp = {} ranks", request_.tp) : "";
    for (const std::string& problem : problems_of(shape)) {
      problems_.push_back(fmt::format("parallel.context{}: {}", of_tp, problem));
    }
  }

  const ModelSpec& spec_;
  const ParallelRequest& request_;
  const int ranks_;
  std::vector<std::string> problems_;
};

}  // namespace

ContextShape ParallelPlan::context_shape(const ModelSpec& spec) const {
  return context_shape_of(spec, *this);
}

std::vector<int> ParallelPlan::stages_of(int pp_rank) const {
  std::vector<int> own;
  for (int stage = 0; stage < stages(); ++stage) {
    if (rank_of_stage[static_cast<std::size_t>(stage)] == pp_rank) own.push_back(stage);
  }
  return own;
}

ParallelPlan single_rank_plan(const ModelSpec& spec) {
  ParallelPlan plan;
  plan.dp = 1;
  plan.rank_of_stage = {0};
  plan.units_of_stage = {{0, unit_count(spec)}};
  return plan;
}

ParallelPlan lay_out(const ModelSpec& spec, const ParallelRequest& request,
                     std::vector<int> rank_of_stage, std::vector<DecoderPart::Units> units_of_stage,
                     bool whole_matrices) {
  ParallelPlan plan{request};
  plan.whole_matrices = whole_matrices;
  plan.sequence = request.sequence && request.tp > 1;
  plan.rank_of_stage = std::move(rank_of_stage);
  plan.units_of_stage = std::move(units_of_stage);
  const int kv_heads = static_cast<int>(spec.kv_heads);
  plan.mesh = MeshShape{}
                  .with(Axis::pp, request.pp)
                  .with(Axis::tp, request.tp)
                  .with(Axis::copy, std::max(1, request.tp / kv_heads))
                  .with(Axis::cp, request.cp)
                  .with(Axis::dp, request.dp);
  if (plan.divides_vocabulary_over_pp()) plan.mesh.lanes = kExchanges;
  plan.mesh.joins_stages = whole_matrices && plan.zero > 0;
  plan.mesh.ends = {plan.rank_of_stage.front(), plan.rank_of_stage.back()};
  return plan;
}

ParallelPlan make_plan(const ModelSpec& spec, const ParallelRequest& request, int ranks,
                       std::int64_t seq_len, bool whole_matrices) {
  Checker(spec, request, ranks).check();
  ParallelRequest whole = request;
  whole.dp = request.replicas_on(ranks);
  const auto placed = step_schedule(request, 1).rank_of_stage;
  return lay_out(spec, whole, placed, cut_stages(spec, seq_len, request.vocabulary, placed),
                 whole_matrices);
}

}  // namespace heddle
