// The only file that includes cudnn-frontend: its headers take over a minute to compile.
#include "ops/cuda/attention_cudnn.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#define NV_CUDNN_FRONTEND_DISABLE_LOGGING
#include <cudnn_frontend.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "ops/cuda/stream_state.h"
#include "ops/cuda/trials.h"

namespace heddle::ops::cuda {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Attributes = fe::graph::Tensor_attributes;

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(ErrorCode::resources, fmt::format("{}: {}", call, cudnnGetErrorString(status)),
              "is the cuDNN library that heddle was built with (or a newer 9.x) installed?");
}

/// Tensors of a graph, by the numbers cuDNN knows them by.
enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

struct Plan {
  std::shared_ptr<Graph> graph;  ///< null: cuDNN does not take it
  std::int64_t index = 0;        ///< of the graph's plans, which one
  std::size_t workspace_bytes = 0;
};

using Pointers = std::unordered_map<std::int64_t, void*>;  // by Uid

/// The handle and one plan for each problem met; lives with the stream.
struct CudnnState {
  explicit CudnnState(cudaStream_t stream) {
    check(cudnnCreate(&handle), "cudnnCreate");
    check(cudnnSetStream(handle, stream), "cudnnSetStream");
  }
  ~CudnnState() { cudnnDestroy(handle); }
  CudnnState(const CudnnState&) = delete;
  CudnnState& operator=(const CudnnState&) = delete;

  cudnnHandle_t handle = nullptr;
  std::map<std::vector<std::int64_t>, Plan> plans;
};

struct Operand {
  Uid uid;
  const Tensor* tensor_BSHK;
};

bool is_taken(const Tensor& t) {
  const auto address = reinterpret_cast<std::uintptr_t>(t.bytes());
  bool is_aligned = address % 16 == 0 && t.size(3) % 8 == 0;
  for (int dim = 0; dim < 3; ++dim) is_aligned = is_aligned && t.stride(dim) % 8 == 0;
  return t.dtype() == DType::bf16 && is_aligned;
}

bool are_taken(std::span<const Operand> operands, const AttentionMask& mask) {
  const Tensor &q = *operands[0].tensor_BSHK, &k = *operands[1].tensor_BSHK;
  const bool has_other_first_keys =
      mask.first_key_BS.defined() && (mask.window == 0 || mask.has_documents);
  if (mask.query_offset != 0 || has_other_first_keys || q.size(1) != k.size(1)) return false;
  for (const Operand& operand : operands) {
    if (!is_taken(*operand.tensor_BSHK)) return false;
  }
  return true;
}

/// What becomes of products of queries and keys.
struct Scores {
  float scale, cap;                    ///< cap 0: none
  std::optional<std::int64_t> window;  ///< of keys that a query sees

  Scores(const ScoreRule& rule, const AttentionMask& mask, std::int64_t keys)
      : scale(static_cast<float>(rule.scale)), cap(static_cast<float>(rule.cap)) {
    if (mask.window > 0 && mask.window < keys) window = mask.window;
  }
};

std::vector<std::int64_t> key_of(std::span<const Operand> operands, const Scores& scores,
                                 bool is_deterministic) {
  std::vector<std::int64_t> key{std::bit_cast<std::int32_t>(scores.scale),
                                std::bit_cast<std::int32_t>(scores.cap), scores.window.value_or(0),
                                is_deterministic};
  for (const Operand& operand : operands) {
    key.push_back(operand.uid);
    for (int dim = 0; dim < 4; ++dim) {
      key.push_back(operand.tensor_BSHK->size(dim));
      key.push_back(operand.tensor_BSHK->stride(dim));
    }
  }
  return key;
}

std::vector<std::int64_t> sizes_BHSK(const Tensor& t) {
  return {t.size(0), t.size(2), t.size(1), t.size(3)};
}
std::vector<std::int64_t> strides_BHSK(const Tensor& t) {
  return {t.stride(0), t.stride(2), t.stride(1), 1};
}

std::shared_ptr<Graph> empty_graph() {
  auto graph = std::make_shared<Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

std::shared_ptr<Attributes> input(Graph& graph, Uid uid, const Tensor& t_BSHK) {
  return graph.tensor(
      Attributes().set_uid(uid).set_dim(sizes_BHSK(t_BSHK)).set_stride(strides_BHSK(t_BSHK)));
}

void output(Attributes& attributes, Uid uid, const Tensor& t_BSHK) {
  attributes.set_output(true)
      .set_uid(uid)
      .set_dim(sizes_BHSK(t_BSHK))
      .set_stride(strides_BHSK(t_BSHK));
}

Attributes statistics(const Tensor& q_BSHK) {
  const std::int64_t B = q_BSHK.size(0), S = q_BSHK.size(1), H = q_BSHK.size(2);
  return Attributes()
      .set_uid(kLse)
      .set_dim({B, H, S, 1})
      .set_stride({H * S, S, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

using Node = std::shared_ptr<Attributes>;

Node combine(const std::shared_ptr<Graph>& graph, const char* name, fe::PointwiseMode_t mode,
             const Node& x, const Node& y) {
  return graph->pointwise(x, y, fe::graph::Pointwise_attributes().set_name(name).set_mode(mode));
}

/// Scores with a cap are made by a function of ours, which has to hide keys too: cuDNN takes it in
/// place of its own masks.
class Capped {
 public:
  explicit Capped(const Scores& scores) : scores_(scores) {}

  Node forward(const std::shared_ptr<Graph>& graph, const Node& scores) {
    const Node part = combine(graph, "score/cap", fe::PointwiseMode_t::MUL, scores,
                              std::make_shared<Attributes>(1.0F / scores_.cap));
    tanh_ = graph->pointwise(part, fe::graph::Pointwise_attributes().set_name("tanh").set_mode(
                                       fe::PointwiseMode_t::TANH_FWD));
    const Node capped = combine(graph, "cap*tanh", fe::PointwiseMode_t::MUL, tanh_,
                                std::make_shared<Attributes>(scores_.cap));
    return fe::graph::attn::score_modifiers::sliding_window_mask(
        graph, capped, fe::DiagonalAlignment_t::TOP_LEFT, scores_.window, 0, 0, 0, nullptr,
        nullptr);
  }
  /// After forward() in the same graph.
  Node backward(const std::shared_ptr<Graph>& graph, const Node& gradients) const {
    const Node square = combine(graph, "tanh^2", fe::PointwiseMode_t::MUL, tanh_, tanh_);
    const Node lost = combine(graph, "lost", fe::PointwiseMode_t::MUL, gradients, square);
    return combine(graph, "slope", fe::PointwiseMode_t::SUB, gradients, lost);
  }

 private:
  Scores scores_;
  Node tanh_;
};

/// Of a forward or backward attention; a cap's backward is told apart.
template <class Options>
void set_scores(Options& options, const Scores& scores, const std::shared_ptr<Capped>& capped) {
  options.set_attn_scale(scores.scale);
  if (scores.cap > 0) {
    options.set_score_mod(
        [capped](std::shared_ptr<Graph> graph, Node x) { return capped->forward(graph, x); });
    return;
  }
  options.set_causal_mask(true);
  if (scores.window) options.set_diagonal_band_left_bound(static_cast<int>(*scores.window));
}

std::shared_ptr<Graph> forward_graph(std::span<const Operand> operands, const Scores& scores) {
  const auto graph = empty_graph();
  const auto tensor = [&](int i) -> const Tensor& { return *operands[i].tensor_BSHK; };
  auto options = fe::graph::SDPA_attributes();
  options.set_name("attention").set_generate_stats(true);
  set_scores(options, scores, std::make_shared<Capped>(scores));
  auto [out, lse] = graph->sdpa(input(*graph, kQ, tensor(0)), input(*graph, kK, tensor(1)),
                                input(*graph, kV, tensor(2)), options);
  output(*out, kOut, tensor(3));
  const Attributes like = statistics(tensor(0));
  lse->set_output(true).set_uid(kLse).set_dim(like.get_dim()).set_stride(like.get_stride());
  lse->set_data_type(fe::DataType_t::FLOAT);
  return graph;
}

std::shared_ptr<Graph> backward_graph(std::span<const Operand> operands, const Scores& scores,
                                      bool is_deterministic) {
  const auto graph = empty_graph();
  const auto tensor = [&](int i) -> const Tensor& { return *operands[i].tensor_BSHK; };
  auto options = fe::graph::SDPA_backward_attributes();
  options.set_name("attention_backward").set_deterministic_algorithm(is_deterministic);
  const auto capped = std::make_shared<Capped>(scores);
  set_scores(options, scores, capped);
  if (scores.cap > 0) {
    options.set_score_mod_bprop(
        [capped](std::shared_ptr<Graph> graph, Node x) { return capped->backward(graph, x); });
  }
  const auto lse = graph->tensor(statistics(tensor(0)));
  auto [dq, dk, dv] = graph->sdpa_backward(
      input(*graph, kQ, tensor(0)), input(*graph, kK, tensor(1)), input(*graph, kV, tensor(2)),
      input(*graph, kOut, tensor(3)), input(*graph, kDout, tensor(4)), lse, options);
  output(*dq, kDq, tensor(5));
  output(*dk, kDk, tensor(6));
  output(*dv, kDv, tensor(7));
  return graph;
}

/// What cuDNN is asked for when plans may be tried.
constexpr std::int64_t kMostPlans = 6;
/// A plan that stores a matrix for all pairs of tokens is not worth its memory.
constexpr std::int64_t kMostWorkspaceBytes = std::int64_t{1} << 30;

/// `memory` is a copy: the frontend adds where its own tensors (the sums of dq) lie in the
/// workspace, and would keep that when the next plan needs a larger workspace, which lies
/// elsewhere.
fe::error_t run(const Plan& plan, Pointers memory, cudnnHandle_t handle, StreamState& state) {
  return plan.graph->execute_plan_at_index(
      handle, memory, state.workspace.at_least(plan.workspace_bytes), plan.index);
}

/// The graph's plans that can be built, the one that cuDNN thinks best first: just that one, or
/// several. None where cuDNN does not take the graph.
std::vector<Plan> plans_of(const std::shared_ptr<Graph>& graph, bool several,
                           cudnnHandle_t handle) {
  std::vector<Plan> plans;
  if (graph->validate().is_bad() || graph->build_operation_graph(handle).is_bad() ||
      graph->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::B}).is_bad() ||
      graph->check_support().is_bad()) {
    return plans;
  }
  for (std::int64_t i = 0; i < graph->get_execution_plan_count(); ++i) {
    if (static_cast<std::int64_t>(plans.size()) == (several ? kMostPlans : 1)) break;
    if (graph->build_plan_at_index(i).is_bad()) continue;
    const std::int64_t bytes =
        std::max<std::int64_t>(graph->get_workspace_size_plan_at_index(i), 0);
    if (!plans.empty() && bytes > kMostWorkspaceBytes) continue;
    plans.push_back({graph, i, static_cast<std::size_t>(bytes)});
  }
  return plans;
}

/// The fastest plan for the graph; in deterministic mode cuDNN's first.
Plan choose_plan(const std::shared_ptr<Graph>& graph, const Pointers& memory, bool is_deterministic,
                 cudnnHandle_t handle, StreamState& state) {
  const std::vector<Plan> plans = plans_of(graph, !is_deterministic, handle);
  if (plans.empty()) return {};
  const auto try_plan = [&](int i) {
    return !run(plans[static_cast<std::size_t>(i)], memory, handle, state).is_bad();
  };
  return plans[static_cast<std::size_t>(
      fastest_way(static_cast<int>(plans.size()), try_plan, state.stream))];
}

/// Runs the plan for these operands, which `make` gives where it is new.
template <class Make>
bool execute(std::span<const Operand> operands, const AttentionMask& mask, const Scores& scores,
             const Tensor& lse_BHS, Stream& stream, const Make& make) {
  if (!are_taken(operands, mask)) return false;
  StreamState& state = state_of(stream);
  if (!state.attention) state.attention = std::make_shared<CudnnState>(state.stream);
  auto& cudnn = *static_cast<CudnnState*>(state.attention.get());
  Pointers memory{{kLse, lse_BHS.bytes()}};
  for (const Operand& operand : operands) memory[operand.uid] = operand.tensor_BSHK->bytes();
  const bool is_deterministic = stream.is_deterministic();
  auto key = key_of(operands, scores, is_deterministic);
  auto found = cudnn.plans.find(key);
  if (found == cudnn.plans.end()) {
    Plan plan = choose_plan(make(is_deterministic), memory, is_deterministic, cudnn.handle, state);
    found = cudnn.plans.emplace(std::move(key), std::move(plan)).first;
  }
  const Plan& plan = found->second;
  if (!plan.graph) return false;
  if (auto status = run(plan, std::move(memory), cudnn.handle, state); status.is_bad()) {
    throw Error(ErrorCode::resources, "cuDNN's attention failed: " + status.get_message());
  }
  return true;
}

}  // namespace

bool cudnn_attention_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                             const AttentionMask& mask, const ScoreRule& rule,
                             const Tensor& out_BSHK, const Tensor& lse_BHS, Stream& stream) {
  const Operand operands[] = {{kQ, &q_BSHK}, {kK, &k_BTGK}, {kV, &v_BTGK}, {kOut, &out_BSHK}};
  const Scores scores(rule, mask, k_BTGK.size(1));
  return execute(operands, mask, scores, lse_BHS, stream,
                 [&](bool) { return forward_graph(operands, scores); });
}

bool cudnn_attention_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BSGK,
                              const Tensor& v_BSGK, const Tensor& out_BSHK, const Tensor& lse_BHS,
                              const AttentionMask& mask, const ScoreRule& rule,
                              const Tensor& dq_BSHK, const Tensor& dk_BSGK, const Tensor& dv_BSGK,
                              Stream& stream) {
  if (stream.is_deterministic() &&
      stored_score_bytes(q_BSHK.size(0), q_BSHK.size(1), q_BSHK.size(2), q_BSHK.size(3)) == 0) {
    return false;
  }
  const Operand operands[] = {{kQ, &q_BSHK},     {kK, &k_BSGK},       {kV, &v_BSGK},
                              {kOut, &out_BSHK}, {kDout, &dout_BSHK}, {kDq, &dq_BSHK},
                              {kDk, &dk_BSGK},   {kDv, &dv_BSGK}};
  const Scores scores(rule, mask, k_BSGK.size(1));
  return execute(operands, mask, scores, lse_BHS, stream, [&](bool is_deterministic) {
    return backward_graph(operands, scores, is_deterministic);
  });
}

}  // namespace heddle::ops::cuda
