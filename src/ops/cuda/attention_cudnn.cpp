// The only file that includes cudnn-frontend: its headers take over a minute to compile.
#include "ops/cuda/attention_cudnn.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#define NV_CUDNN_FRONTEND_DISABLE_LOGGING
#include <cudnn_frontend.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "ops/cuda/stream_state.h"

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
  std::size_t workspace_bytes = 0;
};

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
  if (mask.query_offset != 0 || mask.first_key_BS.defined() || q.size(1) != k.size(1)) return false;
  for (const Operand& operand : operands) {
    if (!is_taken(*operand.tensor_BSHK)) return false;
  }
  return true;
}

std::vector<std::int64_t> key_of(std::span<const Operand> operands, double scale,
                                 bool is_deterministic) {
  std::vector<std::int64_t> key{std::bit_cast<std::int64_t>(scale), is_deterministic};
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

std::shared_ptr<Graph> forward_graph(std::span<const Operand> operands, double scale) {
  const auto graph = empty_graph();
  const auto tensor = [&](int i) -> const Tensor& { return *operands[i].tensor_BSHK; };
  auto options = fe::graph::SDPA_attributes();
  options.set_name("attention").set_generate_stats(true);
  options.set_attn_scale(static_cast<float>(scale)).set_causal_mask(true);
  auto [out, lse] = graph->sdpa(input(*graph, kQ, tensor(0)), input(*graph, kK, tensor(1)),
                                input(*graph, kV, tensor(2)), options);
  output(*out, kOut, tensor(3));
  const Attributes like = statistics(tensor(0));
  lse->set_output(true).set_uid(kLse).set_dim(like.get_dim()).set_stride(like.get_stride());
  lse->set_data_type(fe::DataType_t::FLOAT);
  return graph;
}

std::shared_ptr<Graph> backward_graph(std::span<const Operand> operands, double scale,
                                      bool is_deterministic) {
  const auto graph = empty_graph();
  const auto tensor = [&](int i) -> const Tensor& { return *operands[i].tensor_BSHK; };
  auto options = fe::graph::SDPA_backward_attributes();
  options.set_name("attention_backward").set_attn_scale(static_cast<float>(scale));
  options.set_causal_mask(true).set_deterministic_algorithm(is_deterministic);
  const auto lse = graph->tensor(statistics(tensor(0)));
  auto [dq, dk, dv] = graph->sdpa_backward(
      input(*graph, kQ, tensor(0)), input(*graph, kK, tensor(1)), input(*graph, kV, tensor(2)),
      input(*graph, kOut, tensor(3)), input(*graph, kDout, tensor(4)), lse, options);
  output(*dq, kDq, tensor(5));
  output(*dk, kDk, tensor(6));
  output(*dv, kDv, tensor(7));
  return graph;
}

/// Builds the graph's plan; null where cuDNN has none.
Plan build(std::shared_ptr<Graph> graph, cudnnHandle_t handle) {
  if (graph->build(handle, {fe::HeurMode_t::A}).is_bad()) return {};
  const std::int64_t bytes = graph->get_workspace_size();
  return {std::move(graph), static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0))};
}

/// Runs the plan for these operands, which `make` gives where it is new.
template <class Make>
bool execute(std::span<const Operand> operands, const AttentionMask& mask, double scale,
             const Tensor& lse_BHS, bool is_deterministic, Stream& stream, const Make& make) {
  if (!are_taken(operands, mask)) return false;
  StreamState& state = state_of(stream);
  if (!state.attention) state.attention = std::make_shared<CudnnState>(state.stream);
  auto& cudnn = *static_cast<CudnnState*>(state.attention.get());
  auto key = key_of(operands, scale, is_deterministic);
  auto found = cudnn.plans.find(key);
  if (found == cudnn.plans.end()) {
    found = cudnn.plans.emplace(std::move(key), build(make(), cudnn.handle)).first;
  }
  const Plan& plan = found->second;
  if (!plan.graph) return false;
  std::unordered_map<std::int64_t, void*> memory{{kLse, lse_BHS.bytes()}};
  for (const Operand& operand : operands) memory[operand.uid] = operand.tensor_BSHK->bytes();
  auto status =
      plan.graph->execute(cudnn.handle, memory, state.workspace.at_least(plan.workspace_bytes));
  if (status.is_bad()) {
    throw Error(ErrorCode::resources, "cuDNN's attention failed: " + status.get_message());
  }
  return true;
}

}  // namespace

bool cudnn_attention_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                             const AttentionMask& mask, double scale, const Tensor& out_BSHK,
                             const Tensor& lse_BHS, Stream& stream) {
  const Operand operands[] = {{kQ, &q_BSHK}, {kK, &k_BTGK}, {kV, &v_BTGK}, {kOut, &out_BSHK}};
  return execute(operands, mask, scale, lse_BHS, false, stream,
                 [&] { return forward_graph(operands, scale); });
}

bool cudnn_attention_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BSGK,
                              const Tensor& v_BSGK, const Tensor& out_BSHK, const Tensor& lse_BHS,
                              const AttentionMask& mask, double scale, const Tensor& dq_BSHK,
                              const Tensor& dk_BSGK, const Tensor& dv_BSGK, Stream& stream) {
  const Operand operands[] = {{kQ, &q_BSHK},     {kK, &k_BSGK},       {kV, &v_BSGK},
                              {kOut, &out_BSHK}, {kDout, &dout_BSHK}, {kDq, &dq_BSHK},
                              {kDk, &dk_BSGK},   {kDv, &dv_BSGK}};
  const bool is_deterministic = stream.is_deterministic();
  return execute(operands, mask, scale, lse_BHS, is_deterministic, stream,
                 [&] { return backward_graph(operands, scale, is_deterministic); });
}

}  // namespace heddle::ops::cuda
