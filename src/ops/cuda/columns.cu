#include <algorithm>

#include "ops/cuda/columns.h"
#include "ops/cuda/map.h"

namespace heddle::ops::cuda {
namespace {

constexpr int kThreads = 256;
/// Blocks that a processor's registers hold: the grid is one wave of them.
constexpr int blocks_at_once(bool has_weight) { return has_weight ? 3 : 4; }

template <class T>
struct Operands {
  RowLayout<2> layout;  // of dy and x
  const T *dy, *x;
  const float *mean, *rstd;
  float *dw, *db;  // [slices, D]
  std::int64_t rows_per_slice;
};

/// Sums over the threads of a column; the first of them writes.
template <int W, int kLanes>
__device__ void write_sums(const float (&sum)[W], float* to, std::int64_t column, std::int64_t D,
                           float (*scratch)[kLanes * W]) {
  constexpr int kRows = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int row = static_cast<int>(threadIdx.x) / kLanes;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < W; ++i) scratch[row][lane * W + i] = sum[i];
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < kLanes * W; at += kThreads) {
    const std::int64_t to_column = column - lane * W + at;
    if (to_column >= D) continue;
    float total = 0.0F;
    for (int r = 0; r < kRows; ++r) total += scratch[r][at];
    to[to_column] = total;
  }
}

/// A block has a strip of kLanes packs of columns and a slice of the rows.
template <class T, int W, int kLanes, bool kHasWeight, bool kHasMean>
__global__ void __launch_bounds__(kThreads, blocks_at_once(kHasWeight))
    column_sums_kernel(Operands<T> o) {
  constexpr int kRows = kThreads / kLanes, kUnroll = 4;
  __shared__ float scratch[kRows][kLanes * W];
  const std::int64_t D = o.layout.length;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kLanes + lane) * W;
  const std::int64_t slice = blockIdx.y, begin = slice * o.rows_per_slice;
  const std::int64_t end = min(begin + o.rows_per_slice, o.layout.rows);
  float dw[W] = {}, db[W] = {};
  if (column < D) {
    for (std::int64_t row = begin + threadIdx.x / kLanes; row < end; row += kRows * kUnroll) {
      Pack<T, W> dy[kUnroll], x[kUnroll];
      float mean[kUnroll], rstd[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t r = row + u * kRows;
        if (r >= end) continue;
        std::int64_t at[2];
        o.layout.offsets(r, at);
        dy[u] = Pack<T, W>::load(o.dy + at[0] + column);
        if constexpr (kHasWeight) {
          x[u] = Pack<T, W>::load(o.x + at[1] + column);
          rstd[u] = o.rstd[r];
          mean[u] = kHasMean ? o.mean[r] : 0.0F;
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (row + u * kRows >= end) continue;
#pragma unroll
        for (int i = 0; i < W; ++i) {
          const float g = dy[u].get(i);
          db[i] += g;
          if constexpr (kHasWeight) dw[i] += g * ((x[u].get(i) - mean[u]) * rstd[u]);
        }
      }
    }
  }
  if constexpr (kHasWeight) write_sums<W, kLanes>(dw, o.dw + slice * D, column, D, scratch);
  if (o.db != nullptr) write_sums<W, kLanes>(db, o.db + slice * D, column, D, scratch);
}

constexpr int kParts = 32;

/// to[column] += the sum of a column of partial; 32 columns and kParts threads for each.
__global__ void __launch_bounds__(32 * kParts)
    partial_rows_kernel(const float* partial, std::int64_t rows, std::int64_t D, float* dw,
                        float* db) {
  __shared__ float scratch[kParts][33];
  float* const to = blockIdx.y == 0 ? dw : db;
  if (to == nullptr) return;
  partial += blockIdx.y * rows * D;
  const int lane = static_cast<int>(threadIdx.x) % 32, part = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  float sum = 0.0F;
  if (column < D) {
#pragma unroll 8
    for (std::int64_t row = part; row < rows; row += kParts) sum += partial[row * D + column];
  }
  scratch[part][lane] = sum;
  __syncthreads();
  if (part != 0 || column >= D) return;
  float total = to[column];
  for (int p = 0; p < kParts; ++p) total += scratch[p][lane];
  to[column] = total;
}

template <class T, int W, int kLanes>
void launch(Operands<T>& operands, std::int64_t slices, cudaStream_t queue) {
  const dim3 grid(blocks_for(operands.layout.length, kLanes * W), static_cast<unsigned>(slices));
  const bool has_weight = operands.dw != nullptr, has_mean = operands.mean != nullptr;
  const auto kernel = !has_weight ? column_sums_kernel<T, W, kLanes, false, false>
                      : has_mean  ? column_sums_kernel<T, W, kLanes, true, true>
                                  : column_sums_kernel<T, W, kLanes, true, false>;
  kernel<<<grid, kThreads, 0, queue>>>(operands);
  HEDDLE_CUDA(cudaGetLastError());
}

template <class T>
void add_sums_of(const ColumnSums& sums, Stream& stream) {
  StreamState& state = state_of(stream);
  const bool has_weight = sums.dw_D.defined();
  const Tensor& x = has_weight ? sums.x : sums.dy;
  const RowLayout<2> layout({&sums.dy, &x}, Rows<2>::Merge::leading);
  const std::int64_t D = layout.length;
  if (D == 0 || layout.rows == 0) return;
  constexpr int W = kWidest<T>;
  const bool wide = D % W == 0 && is_aligned(sums.dy) && is_aligned(x);
  const std::int64_t strips = (D + 32 * W - 1) / (32 * W);
  // Enough blocks to fill the device, with rows enough for each to pay for its sums.
  const std::int64_t most =
      std::clamp<std::int64_t>(blocks_at_once(has_weight) * state.processors / strips, 1, 256);
  const std::int64_t wanted = std::clamp<std::int64_t>(layout.rows / 32, 1, most);
  const std::int64_t per_slice = (layout.rows + wanted - 1) / wanted;
  const std::int64_t slices = (layout.rows + per_slice - 1) / per_slice;
  const auto partial =
      static_cast<float*>(state.workspace.at_least(static_cast<std::size_t>(2 * slices * D) * 4));
  Operands<T> operands{layout,
                       device_data<T>(sums.dy),
                       device_data<T>(x),
                       sums.mean.defined() ? device_data<float>(sums.mean) : nullptr,
                       sums.rstd.defined() ? device_data<float>(sums.rstd) : nullptr,
                       has_weight ? partial : nullptr,
                       sums.db_D.defined() ? partial + slices * D : nullptr,
                       per_slice};
  if (!wide) {
    launch<T, 1, 32>(operands, slices, state.stream);
  } else if (D <= 8 * W) {
    launch<T, W, 8>(operands, slices, state.stream);
  } else {
    launch<T, W, 32>(operands, slices, state.stream);
  }
  add_partial_rows(partial, slices, sums.dw_D, sums.db_D, stream);
}

}  // namespace

void add_column_sums(const ColumnSums& sums, Stream& stream) {
  visit_float(sums.dy.dtype(), [&](auto zero) { add_sums_of<decltype(zero)>(sums, stream); });
}

void add_partial_rows(const float* partial, std::int64_t rows, const Tensor& dw_D,
                      const Tensor& db_D, Stream& stream) {
  const std::int64_t D = dw_D.defined() ? dw_D.count() : db_D.count();
  const auto data = [](const Tensor& t) { return t.defined() ? device_data<float>(t) : nullptr; };
  const dim3 grid(blocks_for(D, 32), db_D.defined() ? 2 : 1);
  partial_rows_kernel<<<grid, 32 * kParts, 0, state_of(stream).stream>>>(partial, rows, D,
                                                                         data(dw_D), data(db_D));
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::ops::cuda
