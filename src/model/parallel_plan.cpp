#include "model/parallel_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/blocks/branch_kind.h"
#include "model/cut_stages.h"
#include "parallel/step/rank_times.h"

namespace heddle {
namespace {

/// "1, 2, 4": the sizes of tp that the model allows beside what else is asked for.
std::string possible_tp(const ModelSpec& spec, ParallelRequest request) {
  std::string text;
  for (request.tp = 1; request.tp <= spec.heads; ++request.tp) {
    if (!refuse_tp(spec, request).empty()) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", request.tp);
  }
  return text;
}

/// "1, 2, 4".
std::string divisors(std::int64_t number) {
  std::string text;
  for (std::int64_t i = 1; i <= number; ++i) {
    if (number % i == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", i);
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

  std::vector<RequestProblem> find() {
    if (are_positive()) {
      problems_ = problems_of(request_, ranks_);
      check_tp();
      check_pp();
      check_cp();
      check_vocabulary();
      check_experts();
    }
    if (request_.zero < 0 || request_.zero > 3) {
      add({"parallel.zero"}, "parallel.zero = {}; use 0, 1, 2 or 3", request_.zero);
    }
    return std::move(problems_);
  }

 private:
  template <class... Args>
  void add(std::vector<std::string> keys, fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back({std::move(keys), fmt::format(format, std::forward<Args>(args)...)});
  }

  bool are_positive() {
    for (const auto& [key, size] : {std::pair{"tp", request_.tp},
                                    {"pp", request_.pp},
                                    {"cp", request_.cp},
                                    {"ep", request_.ep},
                                    {"etp", request_.etp},
                                    {"sites", request_.sites}}) {
      if (size < 1) {
        add({fmt::format("parallel.{}", key)}, "parallel.{} = {}; use 1 or more", key, size);
      }
    }
    return problems_.empty();
  }

  void check_tp() {
    for (const std::string& reason : refuse_tp(spec_, request_)) {
      add({"parallel.tp"}, "parallel.tp = {} {}; use one of {}", request_.tp, reason,
          possible_tp(spec_, request_));
    }
  }

  void check_pp() {
    // Where micro-batches take routes, the first rank may have embedding and head alone.
    const std::int64_t most = spec_.layers + (request_.takes_routes() ? 1 : 0);
    if (request_.pp > most) {
      add({"parallel.pp"},
          "parallel.pp = {} is more stages than the model's {} layers; use at most {}", request_.pp,
          spec_.layers, most);
    }
    try {
      step_schedule(request_, 1);
    } catch (const Error& error) {
      add({"parallel.schedule", "parallel.chunks", "parallel.pp"}, "{}", error.what());
    }
  }

  void check_cp() {
    if (request_.cp == 1 || !refuse_tp(spec_, request_).empty()) return;
    ContextShape shape = context_shape_of(spec_, request_);
    shape.tokens = request_.cp;  // more than the ranks must have is checked with the batch
    for (const std::string& problem :
         problems_of(shape, {.are_run_file = true, .tp = request_.tp})) {
      add({"parallel.context", "parallel.context_heads", "parallel.cp"}, "{}", problem);
    }
  }

  void check_vocabulary() {
    if (request_.vocabulary != VocabularyPlacement::pipeline || spec_.logits_cap == 0.0) return;
    add({"parallel.vocabulary"},
        "parallel.vocabulary = \"pipeline\" knows no cap of logits, and this {} model has one of "
        "{}; use \"tensor\" or \"replicated\"",
        spec_.family, spec_.logits_cap);
  }

  void check_experts() {
    if (!request_.divides_experts()) return check_idle_keys();
    if (!spec_.experts) {
      add({"parallel.ep", "parallel.etp"},
          "parallel.{} = {} divides experts, and a {} model has none; leave it out",
          request_.ep > 1 ? "ep" : "etp", std::max(request_.ep, request_.etp), spec_.family);
      return;
    }
    if (spec_.experts->count % request_.ep != 0) {
      add({"parallel.ep"}, "parallel.ep = {} does not divide the model's {} experts; use one of {}",
          request_.ep, spec_.experts->count, divisors(spec_.experts->count));
    }
    if (spec_.experts->width % request_.etp != 0) {
      add({"parallel.etp"},
          "parallel.etp = {} does not divide the experts' width = {}; use one of {}", request_.etp,
          spec_.experts->width, divisors(spec_.experts->width));
    }
    const std::int64_t stage =
        std::int64_t{request_.replicas_on(ranks_)} * request_.cp * request_.tp;
    const std::int64_t needed = std::int64_t{request_.ep} * request_.etp;
    if (stage % needed != 0) {
      add({"parallel.ep", "parallel.etp", "parallel.dp", "parallel.cp", "parallel.tp"},
          "parallel.ep = {}{} does not divide the {} ranks of a stage (dp x cp x tp); use one of "
          "{}",
          request_.ep, request_.etp > 1 ? fmt::format(" x etp = {}", request_.etp) : "", stage,
          divisors(stage));
    }
    const std::string problem = request_.ep_exchange.problem_on(request_.ep, request_.etp);
    if (!problem.empty()) {
      add({"parallel.ep_exchange"}, "parallel.ep_exchange = \"{}\": {}",
          request_.ep_exchange.text(), problem);
    }
    if (request_.ep_rows > 0 && request_.ep_rows < 1) {
      add({"parallel.ep_rows"},
          "parallel.ep_rows = {} allows less than an even share of the rows, so no step; use 1 or "
          "more, or 0 for any number",
          request_.ep_rows);
    }
  }

  void check_idle_keys() {
    if (request_.ep_rows > 0) {
      add({"parallel.ep_rows"},
          "parallel.ep_rows = {} bounds what ranks that divide experts receive, and none do; set "
          "parallel.ep or parallel.etp above 1, or leave it out",
          request_.ep_rows);
    }
    if (!request_.ep_exchange.is_usual()) {
      add({"parallel.ep_exchange"},
          "parallel.ep_exchange = \"{}\" is for ranks that divide experts, and none do; set "
          "parallel.ep or parallel.etp above 1, or leave it out",
          request_.ep_exchange.text());
    }
  }

  const ModelSpec& spec_;
  const ParallelRequest& request_;
  const int ranks_;
  std::vector<RequestProblem> problems_;
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

double most_expert_rows(const ModelSpec& spec, const ParallelRequest& request) {
  const ExpertsSpec& experts = *spec.experts;
  const auto chosen = static_cast<double>(experts.per_token),
             of_rank = static_cast<double>(experts.count / request.ep);
  const double all = request.ep * std::min(chosen, of_rank) / chosen;
  return request.ep_rows > 0 ? std::min<double>(request.ep_rows, all) : all;
}

namespace {

/// Models with experts count how often each is chosen, and the tokens that routers' losses are of.
void add_expert_sums(const ModelSpec& spec, StepPolicy& policy) {
  if (!spec.experts) return;
  policy.sums[StepPolicy::kTargets].numbers = 2;
  policy.sums.push_back({.name = "expert load",
                         .over = kStepAxes,
                         .numbers = spec.expert_layers() * (spec.experts->count + 2)});
}

}  // namespace

ParallelPlan single_rank_plan(const ModelSpec& spec) {
  ParallelPlan plan;
  plan.dp = 1;
  plan.rank_of_stage = {0};
  plan.units_of_stage = {{0, unit_count(spec)}};
  add_expert_sums(spec, plan.policy);
  return plan;
}

ParallelPlan lay_out(const ModelSpec& spec, const ParallelRequest& request,
                     std::vector<int> rank_of_stage, std::vector<DecoderPart::Units> units_of_stage,
                     bool whole_matrices, const Compression& compress) {
  ParallelPlan plan{request};
  plan.compress = compress;
  add_expert_sums(spec, plan.policy);
  plan.whole_matrices = whole_matrices;
  plan.sequence = request.sequence && request.tp > 1;
  plan.rank_of_stage = std::move(rank_of_stage);
  plan.units_of_stage = std::move(units_of_stage);
  const int kv_heads = static_cast<int>(spec.kv_heads);
  plan.mesh = MeshShape{}
                  .with(Axis::site, request.sites)
                  .with(Axis::pp, request.pp)
                  .with(Axis::tp, request.tp)
                  .with(Axis::copy, std::max(1, request.tp / kv_heads))
                  .with(Axis::cp, request.cp)
                  .with(Axis::dp, request.dp)
                  .with(Axis::ep, request.ep)
                  .with(Axis::etp, request.etp);
  if (plan.divides_vocabulary_over_pp()) plan.mesh.lanes = kExchanges;
  plan.mesh.joins_stages = whole_matrices && plan.zero > 0;
  plan.mesh.ends = {plan.rank_of_stage.front(), plan.rank_of_stage.back()};
  RankTimes(plan.mesh).add_to(plan.policy);
  return plan;
}

std::vector<RequestProblem> problems_of(const ModelSpec& spec, const ParallelRequest& request,
                                        int ranks) {
  return Checker(spec, request, ranks).find();
}

ParallelPlan make_plan(const ModelSpec& spec, const ParallelRequest& request, int ranks,
                       std::int64_t seq_len, bool whole_matrices, const Compression& compress) {
  auto problems = problems_of(spec, request, ranks);
  for (auto& [key, message] : problems_of(compress)) problems.push_back({{key}, message});
  if (!problems.empty()) {
    std::string all;
    for (const auto& [keys, message] : problems) all += (all.empty() ? "" : "\n  ") + message;
    throw Error(ErrorCode::usage, all, "");
  }
  ParallelRequest whole = request;
  whole.dp = request.replicas_on(ranks);
  const auto placed = step_schedule(request, 1).rank_of_stage;
  return lay_out(spec, whole, placed, cut_stages(spec, seq_len, request.vocabulary, placed),
                 whole_matrices, compress);
}

}  // namespace heddle
