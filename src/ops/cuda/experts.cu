#include "ops/backend.h"
#include "ops/cuda/expert_gradients.h"
#include "ops/cuda/reductions.h"
#include "ops/cuda/sort_ids.h"
#include "ops/cuda/vectors.h"
#include "ops/experts.h"

namespace heddle::ops::cuda {
namespace {

/// From sorted choices: row r is of choice positions[r], and of expert keys[r] or, at the end, of
/// none.
__global__ void rows_kernel(const std::uint32_t* keys, const std::int32_t* positions,
                            std::int32_t choices, std::int32_t experts, std::int32_t slots,
                            std::int32_t* offsets, std::int32_t* tokens, std::int32_t* rows) {
  const auto r = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (r >= choices) return;
  const auto expert = static_cast<std::int32_t>(keys[r]);
  const bool is_absent = expert == experts;
  tokens[r] = is_absent ? kAbsentRow : positions[r] / slots;
  rows[positions[r]] = is_absent ? kAbsentRow : r;
  // This row is the first one of its expert and of those without rows before it.
  for (std::int32_t e = r == 0 ? 0 : static_cast<std::int32_t>(keys[r - 1]) + 1; e <= expert; ++e) {
    offsets[e] = r;
  }
  if (r + 1 < choices) return;
  for (std::int32_t e = expert + 1; e <= experts; ++e) offsets[e] = choices;
}

__global__ void pick_kernel(const std::int32_t* numbers, const std::int32_t* index,
                            std::int64_t count, std::int32_t* picked) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  picked[i] = index[i] == kAbsentRow ? kAbsentRow : numbers[index[i]];
}

__global__ void held_offsets_kernel(const std::int32_t* offsets, std::int64_t count,
                                    std::int64_t first, std::int64_t held, std::int32_t* of_held) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t offset = offsets[i] - first;
  of_held[i] = static_cast<std::int32_t>(offset < 0 ? 0 : offset > held ? held : offset);
}

/// A block has a token, which is read once and written to each of its rows.
template <class T, int W>
__global__ void spread_kernel(const T* x, std::int64_t x_stride, const std::int32_t* row_TK,
                              int slots, T* rows, std::int64_t rows_stride, std::int64_t width) {
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  const std::int32_t* const row_of = row_TK + t * slots;
  for (std::int64_t i = threadIdx.x * W; i < width;
       i += static_cast<std::int64_t>(blockDim.x) * W) {
    const auto pack = Pack<T, W>::load(x + t * x_stride + i);
    for (int k = 0; k < slots; ++k) {
      if (row_of[k] != kAbsentRow) pack.store(rows + row_of[k] * rows_stride + i);
    }
  }
}

/// A block has a token. W elements at a time, of up to kBatch rows that are read together.
template <class T, int W>
__global__ void combine_kernel(const T* rows, std::int64_t rows_stride, const std::int32_t* row_TK,
                               const float* weights_TK, int slots, const T* addend,
                               std::int64_t addend_stride, T* y, std::int64_t y_stride,
                               std::int64_t width) {
  constexpr int kBatch = 8;
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  const std::int32_t* const row_of = row_TK + t * slots;
  for (std::int64_t i = threadIdx.x * W; i < width;
       i += static_cast<std::int64_t>(blockDim.x) * W) {
    float sums[W] = {};
    for (int k0 = 0; k0 < slots; k0 += kBatch) {
      Pack<T, W> batch[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int k = k0 + u;
        if (k >= slots || row_of[k] == kAbsentRow) continue;
        batch[u] = Pack<T, W>::load(rows + row_of[k] * rows_stride + i);
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int k = k0 + u;
        if (k >= slots || row_of[k] == kAbsentRow) continue;
        const float weight = weights_TK == nullptr ? 1.0F : weights_TK[t * slots + k];
#pragma unroll
        for (int n = 0; n < W; ++n) sums[n] = fmaf(weight, batch[u].get(n), sums[n]);
      }
    }
    if (addend != nullptr) {
      const auto added = Pack<T, W>::load(addend + t * addend_stride + i);
#pragma unroll
      for (int n = 0; n < W; ++n) sums[n] += added.get(n);
    }
    Pack<T, W> result;
    result.set_all(sums);
    result.store(y + t * y_stride + i);
  }
}

template <class T>
struct SwigluRows {
  const T *dy, *gate_up;
  T *dgate_up, *y;
  std::int64_t dy_stride, gate_up_stride, dgate_up_stride, y_stride, width;
};

/// Of a block that has a row of so many packs.
unsigned threads_of_row(std::int64_t packs) {
  return static_cast<unsigned>(std::min<std::int64_t>((packs + 31) / 32 * 32, 256));
}

constexpr int kSwigluThreads = 128;

/// A block has a choice.
template <class T, int W>
__global__ void __launch_bounds__(kSwigluThreads)
    expert_swiglu_kernel(SwigluRows<T> o, const std::int32_t* row_TK, const float* weights_TK,
                         float* dweights_TK) {
  __shared__ float scratch[32];
  const std::int64_t row = row_TK[blockIdx.x];
  if (row == kAbsentRow) {
    if (threadIdx.x == 0) dweights_TK[blockIdx.x] = 0.0F;
    return;
  }
  const float weight = weights_TK[blockIdx.x];
  const T* const gate_up = o.gate_up + row * o.gate_up_stride;
  T* const dgate_up = o.dgate_up + row * o.dgate_up_stride;
  float dot = 0.0F;
  for (std::int64_t i = threadIdx.x * W; i < o.width; i += kSwigluThreads * W) {
    const auto gate = Pack<T, W>::load(gate_up + i), up = Pack<T, W>::load(gate_up + o.width + i);
    const auto dy = Pack<T, W>::load(o.dy + row * o.dy_stride + i);
    float dgates[W], dups[W], ys[W];
#pragma unroll
    for (int n = 0; n < W; ++n) {
      const ExpertGradients of = expert_gradients(dy.get(n), gate.get(n), up.get(n), weight, dot);
      dgates[n] = of.gate;
      dups[n] = of.up;
      ys[n] = of.y;
    }
    Pack<T, W> result;
    result.set_all(dgates);
    result.store(dgate_up + i);
    result.set_all(dups);
    result.store(dgate_up + o.width + i);
    result.set_all(ys);
    result.store(o.y + row * o.y_stride + i);
  }
  dot = reduce_block<kSwigluThreads>(dot, 0.0F, Sum{}, scratch);
  if (threadIdx.x == 0) dweights_TK[blockIdx.x] = dot;
}

}  // namespace

void order_by_expert(const Tensor& experts_TK, const Tensor& offsets_E1, const Tensor& token_R,
                     const Tensor& row_TK, Stream& stream) {
  StreamState& state = state_of(stream);
  const std::int64_t experts = offsets_E1.count() - 1;
  if (experts_TK.count() == 0) return fill(offsets_E1, 0.0, stream);
  const SortedIds sorted = sort_ids(experts_TK, experts, 0, state);
  rows_kernel<<<blocks_for(experts_TK.count(), 256), 256, 0, state.stream>>>(
      sorted.keys, sorted.positions, static_cast<std::int32_t>(experts_TK.count()),
      static_cast<std::int32_t>(experts), static_cast<std::int32_t>(experts_TK.size(1)),
      device_data<std::int32_t>(offsets_E1), device_data<std::int32_t>(token_R),
      device_data<std::int32_t>(row_TK));
  HEDDLE_CUDA(cudaGetLastError());
}

void pick_numbers(const Tensor& numbers, const Tensor& index, const Tensor& picked,
                  Stream& stream) {
  pick_kernel<<<blocks_for(picked.count(), 256), 256, 0, state_of(stream).stream>>>(
      device_data<std::int32_t>(numbers), device_data<std::int32_t>(index), picked.count(),
      device_data<std::int32_t>(picked));
  HEDDLE_CUDA(cudaGetLastError());
}

void held_offsets(const Tensor& offsets_E1, std::int64_t first, std::int64_t held,
                  const Tensor& held_E1, Stream& stream) {
  held_offsets_kernel<<<blocks_for(offsets_E1.count(), 256), 256, 0, state_of(stream).stream>>>(
      device_data<std::int32_t>(offsets_E1), offsets_E1.count(), first, held,
      device_data<std::int32_t>(held_E1));
  HEDDLE_CUDA(cudaGetLastError());
}

void spread_rows(const Tensor& x_TD, const Tensor& row_TK, const Tensor& rows_RD, Stream& stream) {
  if (x_TD.count() == 0) return;
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(x_TD.dtype(), [&](auto zero) {
    using T = decltype(zero);
    constexpr int W = kWidest<T>;
    const bool wide = x_TD.size(1) % W == 0 && is_aligned(x_TD) && is_aligned(rows_RD);
    const auto kernel = wide ? spread_kernel<T, W> : spread_kernel<T, 1>;
    kernel<<<blocks_for(x_TD.size(0), 1), threads_of_row(x_TD.size(1) / (wide ? W : 1)), 0,
             queue>>>(device_data<T>(x_TD), x_TD.stride(0), device_data<std::int32_t>(row_TK),
                      static_cast<int>(row_TK.size(1)), device_data<T>(rows_RD), rows_RD.stride(0),
                      x_TD.size(1));
    HEDDLE_CUDA(cudaGetLastError());
  });
}

void combine_rows(const Tensor& rows_RD, const Tensor& row_TK, const Tensor& weights_TK,
                  const Tensor& addend_TD, const Tensor& y_TD, Stream& stream) {
  if (y_TD.count() == 0) return;
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(y_TD.dtype(), [&](auto zero) {
    using T = decltype(zero);
    constexpr int W = kWidest<T>;
    const bool has_addend = addend_TD.defined();
    const bool wide = y_TD.size(1) % W == 0 && is_aligned(rows_RD) && is_aligned(y_TD) &&
                      (!has_addend || is_aligned(addend_TD));
    const auto kernel = wide ? combine_kernel<T, W> : combine_kernel<T, 1>;
    kernel<<<blocks_for(y_TD.size(0), 1), threads_of_row(y_TD.size(1) / (wide ? W : 1)), 0,
             queue>>>(
        device_data<T>(rows_RD), rows_RD.stride(0), device_data<std::int32_t>(row_TK),
        weights_TK.defined() ? device_data<float>(weights_TK) : nullptr,
        static_cast<int>(row_TK.size(1)), has_addend ? device_data<T>(addend_TD) : nullptr,
        has_addend ? addend_TD.stride(0) : 0, device_data<T>(y_TD), y_TD.stride(0), y_TD.size(1));
    HEDDLE_CUDA(cudaGetLastError());
  });
}

void expert_swiglu_backward(const Tensor& dy_RF, const Tensor& gate_up_RG, const Tensor& row_TK,
                            const Tensor& weights_TK, const Tensor& dgate_up_RG, const Tensor& y_RF,
                            const Tensor& dweights_TK, Stream& stream) {
  if (row_TK.count() == 0) return;
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(y_RF.dtype(), [&](auto zero) {
    using T = decltype(zero);
    constexpr int W = kWidest<T>;
    bool wide = y_RF.size(1) % W == 0;
    for (const Tensor* t : {&dy_RF, &gate_up_RG, &dgate_up_RG, &y_RF}) {
      wide = wide && is_aligned(*t);
    }
    const SwigluRows<T> operands{.dy = device_data<T>(dy_RF),
                                 .gate_up = device_data<T>(gate_up_RG),
                                 .dgate_up = device_data<T>(dgate_up_RG),
                                 .y = device_data<T>(y_RF),
                                 .dy_stride = dy_RF.stride(0),
                                 .gate_up_stride = gate_up_RG.stride(0),
                                 .dgate_up_stride = dgate_up_RG.stride(0),
                                 .y_stride = y_RF.stride(0),
                                 .width = y_RF.size(1)};
    const auto kernel = wide ? expert_swiglu_kernel<T, W> : expert_swiglu_kernel<T, 1>;
    kernel<<<blocks_for(row_TK.count(), 1), kSwigluThreads, 0, queue>>>(
        operands, device_data<std::int32_t>(row_TK), device_data<float>(weights_TK),
        device_data<float>(dweights_TK));
    HEDDLE_CUDA(cudaGetLastError());
  });
}

}  // namespace heddle::ops::cuda
