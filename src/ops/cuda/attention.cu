#include <algorithm>
#include <limits>

#include "ops/attention.h"
#include "ops/backend.h"
#include "ops/cuda/attention_cudnn.h"
#include "ops/cuda/attention_hopper_backward.h"
#include "ops/cuda/attention_hopper_forward.h"
#include "ops/cuda/attention_plain.h"
#include "ops/cuda/attention_tensor_cores.h"
#include "ops/operands.h"
#include "ops/query_sums.h"
#include "ops/stretches.h"
#include "tensor/device_runtime.h"

namespace heddle::ops::cuda {
namespace {

// Hopper's attention and cuDNN's where they apply, then that on tensor cores, which knows no caps,
// else the plain one. cuDNN does not know blocks, nor documents.

Problem problem_of(const Tensor& q_BSHK, const Tensor& k_BTGK, const AttentionMask& mask,
                   const ScoreRule& rule) {
  const std::int64_t queries = q_BSHK.size(1), keys = k_BTGK.size(1);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  HEDDLE_CHECK(std::max({mask.key_offset, mask.step, queries + mask.jump, keys}) < kMost / 2,
               "attention of {} queries and {} keys from {} in steps of {}", queries, keys,
               mask.key_offset, mask.step);
  const std::int64_t ahead = mask.last_key();
  Problem problem{.heads = static_cast<int>(q_BSHK.size(2)),
                  .groups = static_cast<int>(k_BTGK.size(2)),
                  .width = static_cast<int>(q_BSHK.size(3)),
                  .queries = queries,
                  .keys = keys,
                  .query_offset = std::clamp(ahead, -(queries + mask.jump), keys),
                  .key_offset = static_cast<int>(mask.key_offset),
                  .step = static_cast<int>(mask.step),
                  .window = mask.window,
                  .jump = static_cast<int>(mask.jump),
                  .jump_at = static_cast<int>(mask.jump_at),
                  .scale = static_cast<float>(rule.scale),
                  .cap = static_cast<float>(rule.cap)};
  if (mask.first_key_BS.defined()) {
    problem.first_key = device_data<std::int32_t>(mask.first_key_BS);
    problem.first_key_stride = mask.first_key_BS.stride(0);
  }
  return problem;
}

__global__ void window_kernel(const std::int32_t* document, std::int64_t document_stride,
                              int queries, std::int64_t count, std::int64_t offset,
                              std::int32_t* first) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t b = i / queries, s = i % queries;
  const int start = document == nullptr ? 0 : document[b * document_stride + s];
  first[i] = max(start, static_cast<int>(max(s + offset, std::int64_t{0})));
}

}  // namespace

void window_first_keys(const AttentionMask& mask, std::int64_t window, const Tensor& first_key_BS,
                       Stream& stream) {
  const bool has_documents = mask.first_key_BS.defined();
  const std::int64_t count = first_key_BS.count();
  if (count == 0) return;
  window_kernel<<<blocks_for(count, 256), 256, 0, state_of(stream).stream>>>(
      has_documents ? device_data<std::int32_t>(mask.first_key_BS) : nullptr,
      has_documents ? mask.first_key_BS.stride(0) : 0, static_cast<int>(first_key_BS.size(1)),
      count, mask.query_offset + 1 - window, device_data<std::int32_t>(first_key_BS));
  HEDDLE_CUDA(cudaGetLastError());
}

void attention_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                       const AttentionMask& mask, const ScoreRule& rule, const Tensor& out_BSHK,
                       const Tensor& lse_BHS, Stream& stream) {
  const Problem problem = problem_of(q_BSHK, k_BTGK, mask, rule);
  constexpr std::nullopt_t kAll = std::nullopt;
  if (q_BSHK.count() == 0) return;
  if (hopper_attention_forward(problem, q_BSHK, k_BTGK, v_BTGK, kAll, out_BSHK, lse_BHS, stream) ||
      cudnn_attention_forward(q_BSHK, k_BTGK, v_BTGK, mask, rule, out_BSHK, lse_BHS, stream) ||
      tensor_core_attention_forward(problem, q_BSHK, k_BTGK, v_BTGK, kAll, out_BSHK, lse_BHS,
                                    stream)) {
    return;
  }
  plain_attention_forward(problem, q_BSHK, k_BTGK, v_BTGK, kAll, out_BSHK, lse_BHS, stream);
}

void attention_block_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                             const AttentionMask& mask, const ScoreRule& rule, KeyBlock block,
                             const Tensor& out_BSHK, const Tensor& lse_BHS, Stream& stream) {
  const Problem problem = problem_of(q_BSHK, k_BTGK, mask, rule);
  if (q_BSHK.count() == 0) return;
  if (hopper_attention_forward(problem, q_BSHK, k_BTGK, v_BTGK, block, out_BSHK, lse_BHS, stream)) {
    return;
  }
  if (mask.jump != 0) {
    for_each_stretch(
        mask, q_BSHK.size(1), [&](std::int64_t begin, std::int64_t end, const AttentionMask& own) {
          cuda::attention_block_forward(q_BSHK.slice(1, begin, end), k_BTGK, v_BTGK, own, rule,
                                        block, out_BSHK.slice(1, begin, end),
                                        lse_BHS.slice(2, begin, end), stream);
        });
    return;
  }
  if (tensor_core_attention_forward(problem, q_BSHK, k_BTGK, v_BTGK, block, out_BSHK, lse_BHS,
                                    stream)) {
    return;
  }
  plain_attention_forward(problem, q_BSHK, k_BTGK, v_BTGK, block, out_BSHK, lse_BHS, stream);
}

void attention_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BSGK,
                        const Tensor& v_BSGK, const Tensor& out_BSHK, const Tensor& lse_BHS,
                        const AttentionMask& mask, const ScoreRule& rule, const Tensor& dq_BSHK,
                        const Tensor& dk_BSGK, const Tensor& dv_BSGK, const Tensor& delta_BHS,
                        Stream& stream) {
  const Problem problem = problem_of(q_BSHK, k_BSGK, mask, rule);
  if (q_BSHK.count() == 0) return;
  const BackwardCall call{dout_BSHK, q_BSHK,    k_BSGK,  v_BSGK,  &out_BSHK,
                          lse_BHS,   delta_BHS, dq_BSHK, dk_BSGK, dv_BSGK};
  if (hopper_attention_backward(problem, call, stream) ||
      cudnn_attention_backward(dout_BSHK, q_BSHK, k_BSGK, v_BSGK, out_BSHK, lse_BHS, mask, rule,
                               dq_BSHK, dk_BSGK, dv_BSGK, stream) ||
      tensor_core_attention_backward(problem, call, stream)) {
    return;
  }
  attention_delta(dout_BSHK, out_BSHK, delta_BHS, stream);
  plain_attention_backward(problem, call, stream);
}

void attention_block_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BTGK,
                              const Tensor& v_BTGK, const Tensor& lse_BHS, const Tensor& delta_BHS,
                              const AttentionMask& mask, const ScoreRule& rule,
                              const Tensor& dq_BSHK, const Tensor& dk_BTGK, const Tensor& dv_BTGK,
                              Stream& stream) {
  const Problem problem = problem_of(q_BSHK, k_BTGK, mask, rule);
  if (q_BSHK.count() == 0 || k_BTGK.count() == 0) return;
  const BackwardCall call{dout_BSHK, q_BSHK,    k_BTGK,  v_BTGK,  nullptr,
                          lse_BHS,   delta_BHS, dq_BSHK, dk_BTGK, dv_BTGK};
  if (hopper_attention_backward(problem, call, stream)) return;
  if (mask.jump != 0) {
    for_each_stretch(mask, q_BSHK.size(1),
                     [&](std::int64_t begin, std::int64_t end, const AttentionMask& own) {
                       cuda::attention_block_backward(
                           dout_BSHK.slice(1, begin, end), q_BSHK.slice(1, begin, end), k_BTGK,
                           v_BTGK, lse_BHS.slice(2, begin, end), delta_BHS.slice(2, begin, end),
                           own, rule, dq_BSHK.slice(1, begin, end), dk_BTGK, dv_BTGK, stream);
                     });
    return;
  }
  if (tensor_core_attention_backward(problem, call, stream)) return;
  plain_attention_backward(problem, call, stream);
}

}  // namespace heddle::ops::cuda

namespace heddle::ops {
namespace {

/// For all of the queries' heads and tiles.
void check_sums(const Tensor& sums_BHNX, const Tensor& rows_BSHK) {
  constexpr std::int64_t kTile = 64;
  const std::int64_t heads = rows_BSHK.size(2), tiles = (rows_BSHK.size(1) + kTile - 1) / kTile;
  check_like(sums_BHNX, {rows_BSHK.size(0), heads, tiles, kTile * rows_BSHK.size(3)}, DType::f32);
  HEDDLE_CHECK(sums_BHNX.stride(2) == sums_BHNX.size(3) &&
                   (sums_BHNX.size(0) == 1 || sums_BHNX.stride(0) == heads * sums_BHNX.stride(1)),
               "sums {} that do not lie together", sums_BHNX.shape().text());
}

}  // namespace

std::int64_t query_sum_tile(const Tensor& q_BSHK, Stream& stream) {
  if (stream.is_dry() || stream.device().kind != Device::Kind::cuda) return 0;
  return cuda::hopper_query_sum_tile(q_BSHK, stream);
}

void attention_block_backward_to_sums(const Tensor& dout_BSHK, const Tensor& q_BSHK,
                                      const Tensor& k_BTGK, const Tensor& v_BTGK,
                                      const Tensor& lse_BHS, const Tensor& delta_BHS,
                                      const AttentionMask& mask, const ScoreRule& rule,
                                      const Tensor& sums_BHNX, const Tensor& dk_BTGK,
                                      const Tensor& dv_BTGK, Stream& stream) {
  check_attention_block(q_BSHK, k_BTGK, v_BTGK, mask);
  check_attention_rows(dout_BSHK, q_BSHK.shape(), q_BSHK.dtype(), {&lse_BHS, &delta_BHS});
  for (const Tensor* t : {&dk_BTGK, &dv_BTGK}) check_like(*t, k_BTGK.shape(), DType::f32);
  check_sums(sums_BHNX, q_BSHK);
  if (q_BSHK.count() == 0 || k_BTGK.count() == 0) return;
  const device_runtime::LaunchLock lock;
  const cuda::Problem problem = cuda::problem_of(q_BSHK, k_BTGK, mask, rule);
  const cuda::BackwardCall call{dout_BSHK, q_BSHK,    k_BTGK,    v_BTGK,  nullptr,
                                lse_BHS,   delta_BHS, sums_BHNX, dk_BTGK, dv_BTGK};
  const bool is_done = cuda::hopper_attention_backward_to_sums(problem, call, stream);
  HEDDLE_CHECK(is_done, "sums of dq for queries {} that have none", q_BSHK.shape().text());
}

void query_grads_of_sums(const Tensor& sums_BHNX, double scale, QueryGrads how,
                         const Tensor& dq_BSHK, Stream& stream) {
  check_like(dq_BSHK, dq_BSHK.shape(), DType::f32);
  check_sums(sums_BHNX, dq_BSHK);
  if (dq_BSHK.count() == 0) return;
  const device_runtime::LaunchLock lock;
  cuda::hopper_query_grads(sums_BHNX, scale, how == QueryGrads::added, dq_BSHK, stream);
}

}  // namespace heddle::ops
