#include <algorithm>

#include "ops/backend.h"
#include "ops/cuda/reductions.h"
#include "ops/cuda/vectors.h"

namespace heddle::ops::cuda {
namespace {

// A warp has a token, and two rows of E values in shared memory to work with.

using Score = RouterRule::Score;

/// As DeepSeek-V3 divides: a sum of sigmoids may be 0.
constexpr float kLeastSum = 1e-20F;

/// Calls body(e) for the experts of this lane, in ascending order.
template <class Body>
__device__ __forceinline__ void for_lane(int experts, const Body& body) {
  for (int e = static_cast<int>(threadIdx.x) % 32; e < experts; e += 32) body(e);
}

/// The softmax of the logits; returns the logarithm of the sum of their exponentials.
__device__ float softmax_of(const float* logits, float* p, int experts) {
  float largest = -INFINITY, sum = 0.0F;
  for_lane(experts, [&](int e) { largest = Max{}(largest, logits[e]); });
  largest = reduce_lanes(largest, Max{});
  for_lane(experts, [&](int e) { sum += p[e] = expf(logits[e] - largest); });
  sum = reduce_lanes(sum, Sum{});
  for_lane(experts, [&](int e) { p[e] /= sum; });
  __syncwarp();
  return largest + logf(sum);
}

__device__ void sigmoids_of(const float* logits, float* s, int experts) {
  for_lane(experts, [&](int e) {
    const float small = expf(-fabsf(logits[e]));
    s[e] = logits[e] < 0.0F ? small / (1.0F + small) : 1.0F / (1.0F + small);
  });
  __syncwarp();
}

__device__ void scores_of(Score score, const float* logits, float* s, int experts) {
  if (score == Score::sigmoid) {
    sigmoids_of(logits, s, experts);
  } else {
    softmax_of(logits, s, experts);
  }
}

/// Whether weights are a softmax divided by its sum over those that were chosen.
__device__ bool divides_softmax(const RouterRule& rule) {
  return rule.score == Score::softmax && rule.renormalize;
}

/// In place of scores then, as the sum over all cancels and may be so large that nothing of the
/// chosen is left beside it: the largest of these is 1, others are 0.
__device__ void chosen_exponentials_of(const float* logits, const std::int32_t* chosen, int slots,
                                       float* s, int experts) {
  float largest = -INFINITY;
  for (int k = 0; k < slots; ++k) {
    if (chosen[k] != kAbsentRow) largest = Max{}(largest, logits[chosen[k]]);
  }
  for_lane(experts, [&](int e) { s[e] = 0.0F; });
  __syncwarp();
  for_lane(slots, [&](int k) {
    if (chosen[k] != kAbsentRow) s[chosen[k]] = expf(logits[chosen[k]] - largest);
  });
  __syncwarp();
}

/// What the chosen experts are weighed by.
__device__ void scores_to_weigh(const RouterRule& rule, const float* logits,
                                const std::int32_t* chosen, int slots, float* s, int experts) {
  if (divides_softmax(rule)) {
    chosen_exponentials_of(logits, chosen, slots, s, experts);
  } else {
    scores_of(rule.score, logits, s, experts);
  }
}

// What cannot be chosen (any more) has NaN in place of a key. Keys themselves are never NaN.

/// The first of the largest keys that are not taken.
__device__ int best_of(const float* keys, int experts) {
  float most = 0.0F;
  int best = experts;
  for_lane(experts, [&](int e) {
    if (isnan(keys[e]) || (best < experts && keys[e] <= most)) return;
    most = keys[e];
    best = e;
  });
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xffffffffU, most, distance);
    const int at = __shfl_xor_sync(0xffffffffU, best, distance);
    const bool is_better = other > most || (other == most && at < best);
    if (at < experts && (best == experts || is_better)) {
      most = other;
      best = at;
    }
  }
  return best;
}

/// What a group counts as: the sum of its two best keys where there is a bias, else its best.
__device__ float group_key(const float* keys, int size, bool has_bias) {
  float first = -INFINITY, second = -INFINITY;
  for (int i = 0; i < size; ++i) {
    second = fmaxf(second, fminf(first, keys[i]));
    first = fmaxf(first, keys[i]);
  }
  return has_bias && size > 1 ? first + second : first;
}

/// Takes all experts but those of the best groups, of equal ones the first. `groups` has room for
/// their keys.
__device__ void keep_best_groups(const RouterRule& rule, bool has_bias, float* keys, float* groups,
                                 int experts) {
  const auto count = static_cast<int>(rule.groups), size = experts / count;
  for_lane(count, [&](int g) { groups[g] = group_key(keys + g * size, size, has_bias); });
  __syncwarp();
  for_lane(count, [&](int g) {
    int better = 0;
    for (int other = 0; other < count; ++other) {
      better += groups[other] > groups[g] || (groups[other] == groups[g] && other < g) ? 1 : 0;
    }
    if (better < rule.kept_groups) return;
    for (int i = 0; i < size; ++i) keys[g * size + i] = NAN;
  });
  __syncwarp();
}

/// For the token of a warp: its number and its two rows; behind the last token there is none.
struct WarpToken {
  std::int64_t t;
  float *first, *second;

  __device__ WarpToken(float* shared, int experts) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    t = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
    first = shared + 3 * warp * experts;
    second = first + experts;
  }
};

__global__ void route_kernel(const float* logits_TE, std::int64_t tokens, int experts,
                             RouterRule rule, const float* bias, std::int32_t* experts_TK,
                             float* weights_TK, int chosen) {
  extern __shared__ float shared[];
  const auto [t, s, keys] = WarpToken(shared, experts);
  if (t >= tokens) return;
  scores_of(rule.score, logits_TE + t * experts, s, experts);
  for_lane(experts, [&, s = s, keys = keys](int e) {
    const float key = bias == nullptr ? s[e] : s[e] + bias[e];
    keys[e] = isnan(key) ? -INFINITY : key;
  });
  __syncwarp();
  if (rule.groups > 1) keep_best_groups(rule, bias != nullptr, keys, keys + experts, experts);
  for (int k = 0; k < chosen; ++k) {
    const int best = best_of(keys, experts);
    __syncwarp();  // all have seen the keys
    if (threadIdx.x % 32 == 0) {
      keys[best] = NAN;
      experts_TK[t * chosen + k] = best;
    }
    __syncwarp();
  }
  const std::int32_t* const made = experts_TK + t * chosen;
  // Groups and biases may leave out the largest.
  if (divides_softmax(rule)) {
    chosen_exponentials_of(logits_TE + t * experts, made, chosen, s, experts);
  }
  float sum = rule.score == Score::sigmoid ? kLeastSum : 0.0F;
  for (int k = 0; k < chosen; ++k) sum += s[made[k]];
  const auto scale = static_cast<float>(rule.scale);
  const float factor = rule.renormalize ? scale / sum : scale;
  for_lane(chosen, [&, t = t, s = s](int k) { weights_TK[t * chosen + k] = s[made[k]] * factor; });
}

__global__ void route_backward_kernel(const float* dweights_TK, const float* logits_TE,
                                      std::int64_t tokens, int experts, RouterRule rule,
                                      const std::int32_t* experts_TK, int slots,
                                      float* dlogits_TE) {
  extern __shared__ float shared[];
  const auto [t, s, ds] = WarpToken(shared, experts);
  if (t >= tokens) return;
  const std::int32_t* const chosen = experts_TK + t * slots;
  const float* const dweights = dweights_TK + t * slots;
  float* const dlogits = dlogits_TE + t * experts;
  scores_to_weigh(rule, logits_TE + t * experts, chosen, slots, s, experts);
  // The gradient of the scores: of those that were chosen.
  for_lane(experts, [ds = ds](int e) { ds[e] = 0.0F; });
  __syncwarp();
  const auto scale = static_cast<float>(rule.scale);
  float sum = rule.score == Score::sigmoid ? kLeastSum : 0.0F, weighted = 0.0F;
  for (int k = 0; k < slots; ++k) {
    if (chosen[k] == kAbsentRow) continue;
    sum += s[chosen[k]];
    weighted += s[chosen[k]] * dweights[k];
  }
  for_lane(slots, [&, ds = ds](int k) {
    if (chosen[k] == kAbsentRow) return;
    ds[chosen[k]] =
        rule.renormalize ? scale * (dweights[k] - weighted / sum) / sum : scale * dweights[k];
  });
  __syncwarp();
  if (rule.score == Score::sigmoid) {
    for_lane(experts, [&, s = s, ds = ds](int e) { dlogits[e] = ds[e] * s[e] * (1.0F - s[e]); });
    return;
  }
  float dot = 0.0F;
  if (!rule.renormalize) {  // else it is 0, and those that were not chosen have no gradient
    for_lane(experts, [&, s = s, ds = ds](int e) { dot += s[e] * ds[e]; });
    dot = reduce_lanes(dot, Sum{});
  }
  for_lane(experts, [&, s = s, ds = ds](int e) { dlogits[e] = s[e] * (ds[e] - dot); });
}

__global__ void weigh_kernel(const float* logits_TE, std::int64_t tokens, int experts,
                             RouterRule rule, const std::int32_t* experts_TK, float* weights_TK,
                             int slots) {
  extern __shared__ float shared[];
  const WarpToken own(shared, experts);
  if (own.t >= tokens) return;
  const float* const s = own.first;
  const std::int32_t* const chosen = experts_TK + own.t * slots;
  scores_to_weigh(rule, logits_TE + own.t * experts, chosen, slots, own.first, experts);
  float sum = 0.0F;
  for (int k = 0; k < slots; ++k) {
    if (chosen[k] != kAbsentRow) sum += s[chosen[k]];
  }
  if (rule.score == Score::sigmoid) sum += kLeastSum;
  const auto scale = static_cast<float>(rule.scale);
  const float factor = rule.renormalize ? scale / sum : scale;
  for_lane(slots, [&](int k) {
    weights_TK[own.t * slots + k] = chosen[k] == kAbsentRow ? 0.0F : s[chosen[k]] * factor;
  });
}

__global__ void router_loss_kernel(const float* logits_TE, std::int64_t tokens, int experts,
                                   RouterRule rule, const float* counts, RouterLoss loss,
                                   float* dlogits_TE) {
  extern __shared__ float shared[];
  const auto [t, p, s] = WarpToken(shared, experts);
  if (t >= tokens) return;
  const float* const logits = logits_TE + t * experts;
  float* const dlogits = dlogits_TE + t * experts;
  const float of_z = 2.0F * static_cast<float>(loss.z) * softmax_of(logits, p, experts);
  for_lane(experts, [&, p = p](int e) { dlogits[e] += of_z * p[e]; });
  if (loss.balance == 0.0) return;
  const bool is_sigmoid = rule.score == Score::sigmoid;
  float sum = 1.0F;
  if (is_sigmoid) {
    sigmoids_of(logits, s, experts);
    sum = 0.0F;
    for_lane(experts, [&, s = s](int e) { sum += s[e]; });
    sum = kLeastSum + reduce_lanes(sum, Sum{});
    for_lane(experts, [&, p = p, s = s](int e) { p[e] = s[e] / sum; });
  }
  float mean = 0.0F;
  for_lane(experts, [&, p = p](int e) { mean += p[e] * counts[e]; });
  mean = reduce_lanes(mean, Sum{});
  const float balance = static_cast<float>(loss.balance * experts) / fmaxf(counts[experts], 1.0F);
  for_lane(experts, [&, p = p, s = s](int e) {
    const float slope = is_sigmoid ? s[e] * (1.0F - s[e]) / sum : p[e];
    dlogits[e] += balance * slope * (counts[e] - mean);
  });
}

/// Launches a kernel for the tokens of [T, E] logits: launch(kernel, its arguments).
class ForTokens {
 public:
  ForTokens(const Tensor& logits_TE, Stream& stream)
      : tokens_(logits_TE.size(0)), queue_(state_of(stream).stream) {
    // Three rows: the third has keys of groups.
    const auto bytes = 3 * sizeof(float) * static_cast<std::size_t>(logits_TE.size(1));
    constexpr std::size_t kMostBytes = 48 << 10, kMostWarps = 8;
    HEDDLE_CHECK(bytes <= kMostBytes, "a router of {} experts on a GPU", logits_TE.size(1));
    warps_ = std::clamp<std::size_t>(kMostBytes / std::max<std::size_t>(bytes, 1), 1, kMostWarps);
    shared_bytes_ = warps_ * bytes;
  }
  template <class... P, class... A>
  void launch(void (*kernel)(P...), const A&... arguments) const {
    if (tokens_ == 0) return;
    const unsigned blocks = blocks_for(tokens_, static_cast<std::int64_t>(warps_));
    kernel<<<blocks, static_cast<unsigned>(32 * warps_), shared_bytes_, queue_>>>(arguments...);
    HEDDLE_CUDA(cudaGetLastError());
  }

 private:
  std::int64_t tokens_;
  cudaStream_t queue_;
  std::size_t warps_, shared_bytes_;
};

__global__ void add_counts_kernel(const std::int32_t* chosen, std::int64_t choices, int experts,
                                  std::int32_t* counts) {
  extern __shared__ std::int32_t own[];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    own[e] = 0;
  }
  __syncthreads();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < choices; i += step) {
    if (chosen[i] != kAbsentRow) atomicAdd(own + chosen[i], 1);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    if (own[e] != 0) atomicAdd(counts + e, own[e]);
  }
}

__global__ void finish_counts_kernel(const std::int32_t* counts, int experts, std::int64_t tokens,
                                     float* to) {
  const auto e = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (e < experts) to[e] = static_cast<float>(counts[e]);
  if (e == experts) to[e] = static_cast<float>(tokens);
}

}  // namespace

void route(const Tensor& logits_TE, const RouterRule& rule, const Tensor& bias_E,
           const Tensor& experts_TK, const Tensor& weights_TK, Stream& stream) {
  ForTokens(logits_TE, stream)
      .launch(route_kernel, device_data<float>(logits_TE), logits_TE.size(0),
              static_cast<int>(logits_TE.size(1)), rule,
              bias_E.defined() ? device_data<float>(bias_E) : nullptr,
              device_data<std::int32_t>(experts_TK), device_data<float>(weights_TK),
              static_cast<int>(experts_TK.size(1)));
}

void weigh_choices(const Tensor& logits_TE, const RouterRule& rule, const Tensor& experts_TK,
                   const Tensor& weights_TK, Stream& stream) {
  ForTokens(logits_TE, stream)
      .launch(weigh_kernel, device_data<float>(logits_TE), logits_TE.size(0),
              static_cast<int>(logits_TE.size(1)), rule, device_data<std::int32_t>(experts_TK),
              device_data<float>(weights_TK), static_cast<int>(experts_TK.size(1)));
}

void route_backward(const Tensor& dweights_TK, const Tensor& logits_TE, const RouterRule& rule,
                    const Tensor& experts_TK, const Tensor& dlogits_TE, Stream& stream) {
  ForTokens(logits_TE, stream)
      .launch(route_backward_kernel, device_data<float>(dweights_TK), device_data<float>(logits_TE),
              logits_TE.size(0), static_cast<int>(logits_TE.size(1)), rule,
              device_data<std::int32_t>(experts_TK), static_cast<int>(experts_TK.size(1)),
              device_data<float>(dlogits_TE));
}

void router_loss_backward(const Tensor& logits_TE, const RouterRule& rule, const Tensor& counts_E1,
                          const RouterLoss& loss, const Tensor& dlogits_TE, Stream& stream) {
  ForTokens(logits_TE, stream)
      .launch(router_loss_kernel, device_data<float>(logits_TE), logits_TE.size(0),
              static_cast<int>(logits_TE.size(1)), rule, device_data<float>(counts_E1), loss,
              device_data<float>(dlogits_TE));
}

void count_choices(const Tensor& experts_TK, const Tensor& counts_E1, Stream& stream) {
  StreamState& state = state_of(stream);
  const auto experts = static_cast<int>(counts_E1.count() - 1);
  const std::size_t bytes = sizeof(std::int32_t) * static_cast<std::size_t>(experts);
  HEDDLE_CHECK(bytes <= 48 << 10, "choices of {} experts on a GPU", experts);
  auto* const counts = static_cast<std::int32_t*>(state.workspace.at_least(bytes));
  HEDDLE_CUDA(cudaMemsetAsync(counts, 0, bytes, state.stream));
  const unsigned blocks =
      std::min(blocks_for(experts_TK.count(), 1024), static_cast<unsigned>(state.processors));
  add_counts_kernel<<<blocks, 256, bytes, state.stream>>>(device_data<std::int32_t>(experts_TK),
                                                          experts_TK.count(), experts, counts);
  HEDDLE_CUDA(cudaGetLastError());
  finish_counts_kernel<<<blocks_for(experts + 1, 256), 256, 0, state.stream>>>(
      counts, experts, experts_TK.size(0), device_data<float>(counts_E1));
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::ops::cuda
