#include <cub/device/device_radix_sort.cuh>

#include <algorithm>

#include "base/error.h"
#include "ops/backend.h"
#include "ops/cuda/vectors.h"

namespace heddle::ops::cuda {
namespace {

// Counts are whole numbers, which sums of floats hold exactly whatever their order.

// ---- Capacities ---------------------------------------------------------------------------------

// A choice takes its place by a key: its expert in the upper 16 bits, then its slot in 16, then
// what of its score counts in 32. Equal ones keep the order of choices, by token and slot.

constexpr std::uint64_t kNoExpert = 0xFFFF;

__device__ std::uint64_t expert_of(std::uint64_t key) { return key >> 48; }

__device__ float orderly(float score) { return isnan(score) ? -INFINITY : score; }

/// Of larger scores less.
__device__ std::uint32_t descending(float score) {
  const std::uint32_t bits = score == 0.0F ? 0U : __float_as_uint(score);  // one zero
  const bool is_negative = (bits & 0x80000000U) != 0;
  return is_negative ? bits : ~(bits | 0x80000000U);
}

__global__ void drop_keys_kernel(const std::int32_t* chosen, const float* scores,
                                 std::int32_t choices, std::int32_t slots, Victims victims,
                                 std::uint64_t* keys, std::int32_t* positions) {
  const auto i = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= choices) return;
  positions[i] = i;
  const auto slot = static_cast<std::uint64_t>(i % slots) << 32;
  std::uint64_t place = 0;
  switch (victims) {
    case Victims::late_slots: place = slot; break;
    case Victims::unsure: {
      const float* const of_token = scores + i / slots * slots;
      float best = -INFINITY;
      for (std::int32_t k = 0; k < slots; ++k) best = fmaxf(best, orderly(of_token[k]));
      place = slot | descending(best);
      break;
    }
    case Victims::low_scores: place = descending(orderly(scores[i])); break;
    default: break;  // late tokens come later already
  }
  const std::uint64_t expert =
      chosen[i] == kAbsentRow ? kNoExpert : static_cast<std::uint64_t>(chosen[i]);
  keys[i] = expert << 48 | place;
}

/// From sorted choices: those behind `capacity` others of their expert.
__global__ void drop_kernel(const std::uint64_t* keys, const std::int32_t* positions,
                            std::int32_t choices, std::int32_t capacity, std::int32_t* chosen) {
  const auto r = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (r < capacity || r >= choices) return;
  if (expert_of(keys[r - capacity]) == expert_of(keys[r])) chosen[positions[r]] = kAbsentRow;
}

struct DropMemory {
  std::uint64_t *keys_in, *keys;
  std::int32_t *positions_in, *positions;
  std::byte* scratch;

  std::size_t carve(void* base, std::int64_t count, std::size_t scratch_bytes) {
    Carver carver(base);
    keys_in = carver.take<std::uint64_t>(count);
    keys = carver.take<std::uint64_t>(count);
    positions_in = carver.take<std::int32_t>(count);
    positions = carver.take<std::int32_t>(count);
    scratch = carver.take<std::byte>(static_cast<std::int64_t>(scratch_bytes));
    return carver.used_bytes();
  }
};

// ---- Counts -------------------------------------------------------------------------------------

/// A block's own counters, at zero.
__device__ std::int32_t* own_counters(int count) {
  extern __shared__ std::int32_t counters[];
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    counters[i] = 0;
  }
  __syncthreads();
  return counters;
}

std::size_t counter_bytes(std::int64_t count) {
  const std::size_t bytes = sizeof(std::int32_t) * static_cast<std::size_t>(count);
  HEDDLE_CHECK(bytes <= 48 << 10, "{} counters of experts on a GPU", count);
  return bytes;
}

constexpr int kCountThreads = 512;

__global__ void add_load_kernel(const std::int32_t* made_TK, const std::int32_t* kept_TK,
                                std::int64_t tokens, int slots, int experts, double* load) {
  std::int32_t* const own = own_counters(experts + 2);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       t < tokens; t += step) {
    std::int32_t lost = 0, left = 0;
    for (std::int64_t i = t * slots; i < (t + 1) * slots; ++i) {
      if (made_TK[i] == kAbsentRow) continue;
      atomicAdd(own + made_TK[i], 1);
      ++(kept_TK[i] == kAbsentRow ? lost : left);
    }
    if (lost > 0) atomicAdd(own + experts, lost);
    if (left == 0) atomicAdd(own + experts + 1, 1);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < experts + 2; i += static_cast<int>(blockDim.x)) {
    if (own[i] != 0) atomicAdd(load + i, static_cast<double>(own[i]));
  }
}

/// A block has a sequence, and looks for its tokens among all.
__global__ void count_sequence_kernel(const std::int32_t* experts_TK,
                                      const std::int32_t* sequence_T, std::int64_t tokens,
                                      int slots, int counted, int experts, float* counts_SE1) {
  std::int32_t* const own = own_counters(experts + 1);
  for (std::int64_t t = threadIdx.x; t < tokens; t += blockDim.x) {
    if (sequence_T[t] != static_cast<std::int32_t>(blockIdx.x)) continue;
    for (int k = 0; k < counted; ++k) {
      const std::int32_t expert = experts_TK[t * slots + k];
      if (expert != kAbsentRow) atomicAdd(own + expert, 1);
    }
    atomicAdd(own + experts, 1);
  }
  __syncthreads();
  float* const counts = counts_SE1 + static_cast<std::int64_t>(blockIdx.x) * (experts + 1);
  for (int i = static_cast<int>(threadIdx.x); i <= experts; i += static_cast<int>(blockDim.x)) {
    counts[i] = static_cast<float>(own[i]);
  }
}

__device__ double sum_of(const double* load, int experts) {
  double sum = 0.0;
  for (int e = 0; e < experts; ++e) sum += load[e];
  return sum;
}

__global__ void counts_of_load_kernel(const double* load, int experts, double per_token,
                                      float* counts) {
  const auto e = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (e > experts) return;
  const double sum = sum_of(load, experts);
  const double choices = sum == 0.0 ? 0.0 : load[e] * per_token / sum;
  counts[e] = e == experts ? 1.0F : static_cast<float>(choices);
}

__global__ void balance_bias_kernel(const double* load, int experts, float rate, const float* clip,
                                    int begin, int count, float* bias) {
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count || !isfinite(clip[0])) return;
  const double more = sum_of(load, experts) - load[begin + i] * experts;
  if (more != 0.0) bias[i] += more > 0.0 ? rate : -rate;
}

}  // namespace

void drop_choices(const Tensor& scores_TK, Victims victims, std::int64_t capacity, const TokenDraw&,
                  std::int64_t experts, const Tensor& experts_TK, Stream& stream) {
  if (victims == Victims::random) {
    throw Error(ErrorCode::usage, "choices of experts are not dropped at random on a GPU yet",
                "another model.drop, or the CPU");
  }
  const std::int64_t slots = experts_TK.size(1);
  HEDDLE_CHECK(experts < static_cast<std::int64_t>(kNoExpert) && slots < (1 << 16) &&
                   experts_TK.count() < (std::int64_t{1} << 31),
               "{} choices of {} experts with a capacity on a GPU", experts_TK.count(), experts);
  if (experts_TK.count() <= capacity) return;
  const auto count = static_cast<std::int32_t>(experts_TK.count());
  StreamState& state = state_of(stream);
  DropMemory memory{};
  std::size_t sort_bytes = 0;
  const auto sort = [&](void* scratch) {
    HEDDLE_CUDA(cub::DeviceRadixSort::SortPairs(scratch, sort_bytes, memory.keys_in, memory.keys,
                                                memory.positions_in, memory.positions, count, 0, 64,
                                                state.stream));
  };
  sort(nullptr);
  const std::size_t bytes = memory.carve(nullptr, count, sort_bytes);
  memory.carve(state.workspace.at_least(bytes), count, sort_bytes);
  auto* const chosen = device_data<std::int32_t>(experts_TK);
  drop_keys_kernel<<<blocks_for(count, 256), 256, 0, state.stream>>>(
      chosen, device_data<float>(scores_TK), count, static_cast<std::int32_t>(slots), victims,
      memory.keys_in, memory.positions_in);
  HEDDLE_CUDA(cudaGetLastError());
  sort(memory.scratch);
  drop_kernel<<<blocks_for(count, 256), 256, 0, state.stream>>>(
      memory.keys, memory.positions, count, static_cast<std::int32_t>(capacity), chosen);
  HEDDLE_CUDA(cudaGetLastError());
}

void add_load(const Tensor& made_TK, const Tensor& kept_TK, const Tensor& load, Stream& stream) {
  const StreamState& state = state_of(stream);
  const unsigned blocks =
      std::min(blocks_for(made_TK.size(0), kCountThreads), static_cast<unsigned>(state.processors));
  add_load_kernel<<<blocks, kCountThreads, counter_bytes(load.count()), state.stream>>>(
      device_data<std::int32_t>(made_TK), device_data<std::int32_t>(kept_TK), made_TK.size(0),
      static_cast<int>(made_TK.size(1)), static_cast<int>(load.count() - 2),
      device_data<double>(load));
  HEDDLE_CUDA(cudaGetLastError());
}

void counts_of_load(const Tensor& load, std::int64_t per_token, const Tensor& counts_E1,
                    Stream& stream) {
  counts_of_load_kernel<<<blocks_for(counts_E1.count(), 128), 128, 0, state_of(stream).stream>>>(
      device_data<double>(load), static_cast<int>(counts_E1.count() - 1),
      static_cast<double>(per_token), device_data<float>(counts_E1));
  HEDDLE_CUDA(cudaGetLastError());
}

void count_by_sequence(const Tensor& experts_TK, const Tensor& sequence_T, std::int64_t slots,
                       const Tensor& counts_SE1, Stream& stream) {
  if (counts_SE1.count() == 0) return;
  const std::int64_t experts = counts_SE1.size(1) - 1, all_slots = experts_TK.size(1);
  count_sequence_kernel<<<blocks_for(counts_SE1.size(0), 1), kCountThreads,
                          counter_bytes(experts + 1), state_of(stream).stream>>>(
      device_data<std::int32_t>(experts_TK), device_data<std::int32_t>(sequence_T),
      experts_TK.size(0), static_cast<int>(all_slots), static_cast<int>(std::min(slots, all_slots)),
      static_cast<int>(experts), device_data<float>(counts_SE1));
  HEDDLE_CUDA(cudaGetLastError());
}

void balance_bias(const Tensor& load_E, double rate, const Tensor& clip, std::int64_t begin,
                  const Tensor& bias, Stream& stream) {
  balance_bias_kernel<<<blocks_for(bias.count(), 128), 128, 0, state_of(stream).stream>>>(
      device_data<double>(load_E), static_cast<int>(load_E.count()), static_cast<float>(rate),
      device_data<float>(clip), static_cast<int>(begin), static_cast<int>(bias.count()),
      device_data<float>(bias));
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::ops::cuda
