#include <algorithm>

#include "ops/backend.h"
#include "ops/cuda/columns.h"
#include "ops/cuda/map.h"
#include "ops/cuda/reductions.h"
#include "ops/norm.h"

namespace heddle::ops::cuda {
namespace {

/// How a row of n packs is spread: kGroup threads with kPacks packs each, which they keep in
/// registers, so that a row is read once.
template <int kGroup_, int kPacks_>
struct Spread {
  static constexpr int kGroup = kGroup_, kPacks = kPacks_;
  static constexpr int kThreads = kGroup == 32 ? 256 : kGroup;
  static constexpr int kRowsPerBlock = kThreads / kGroup;
  /// Blocks that a processor should have, of rows of one and of two tensors: a warp that waits for
  /// memory or for its sums needs others beside it.
  static constexpr int kForwardBlocks = kGroup > 32 ? 1 : kPacks <= 3 ? 5 : 4;
  static constexpr int kBackwardBlocks = kGroup > 32 ? 1 : kPacks <= 3 ? 3 : 2;
};

template <class S>
__device__ float sum_of_group(float value, float* scratch) {
  if constexpr (S::kGroup == 32) {
    return reduce_lanes(value, Sum{});
  } else {
    __syncthreads();  // the scratch of the sum before
    return reduce_block<S::kThreads>(value, 0.0F, Sum{}, scratch);
  }
}

template <class S>
__device__ std::int64_t group_row() {
  return static_cast<std::int64_t>(blockIdx.x) * S::kRowsPerBlock + threadIdx.x / S::kGroup;
}

template <class T>
struct ForwardOperands {
  RowLayout<2> layout;  // of x and y
  const T *x, *w, *b;
  T* y;
  float *mean, *rstd;
  float eps;
};

template <class T, int W, class S, bool kCentred>
__global__ void __launch_bounds__(S::kThreads, S::kForwardBlocks)
    forward_kernel(ForwardOperands<T> o) {
  __shared__ float scratch[32];
  const std::int64_t row = group_row<S>();
  if (row >= o.layout.rows) return;  // whole groups: never part of a block that shares a sum
  const int lane = static_cast<int>(threadIdx.x) % S::kGroup, D = static_cast<int>(o.layout.length);
  const auto column_of = [&](int p) { return (p * S::kGroup + lane) * W; };
  std::int64_t at[2];
  o.layout.offsets(row, at);
  Pack<T, W> x[S::kPacks];
#pragma unroll
  for (int p = 0; p < S::kPacks; ++p) {
    if (column_of(p) < D) x[p] = Pack<T, W>::load(o.x + at[0] + column_of(p));
  }
  const auto mean_over_row = [&](const auto& term) {
    float sum = 0.0F;
#pragma unroll
    for (int p = 0; p < S::kPacks; ++p) {
      if (column_of(p) >= D) continue;
#pragma unroll
      for (int i = 0; i < W; ++i) sum += term(x[p].get(i));
    }
    return sum_of_group<S>(sum, scratch) / static_cast<float>(D);
  };
  const float mean = kCentred ? mean_over_row([](float v) { return v; }) : 0.0F;
  const float variance = mean_over_row([&](float v) { return (v - mean) * (v - mean); });
  const float rstd = 1.0F / sqrtf(variance + o.eps);
#pragma unroll
  for (int p = 0; p < S::kPacks; ++p) {
    if (column_of(p) >= D) continue;
    const auto w = Pack<T, W>::load(o.w + column_of(p));
    Pack<T, W> b{}, result;
    if constexpr (kCentred) b = Pack<T, W>::load(o.b + column_of(p));
    float y[W];
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const float h = (x[p].get(i) - mean) * rstd;
      y[i] = h * w.get(i) + (kCentred ? b.get(i) : 0.0F);
    }
    result.set_all(y);
    result.store(o.y + at[1] + column_of(p));
  }
  if (lane != 0) return;
  o.rstd[row] = rstd;
  if constexpr (kCentred) o.mean[row] = mean;
}

template <class T>
struct BackwardOperands {
  RowLayout<4> layout;           // of dy, x, addend and dx
  const T *dy, *x, *addend, *w;  // addend may be null
  const float *mean, *rstd;
  T* dx;
  float *dw, *db;  // [blocks, D]; of the fused kernel
};

/// With g = dy * w and h = (x - mean) * rstd: dx = rstd (g - mean(g) - h mean(g h)), where the
/// first mean is layer norm's only; plus the addend.
template <class T, int W, class S, bool kCentred>
__global__ void __launch_bounds__(S::kThreads, S::kBackwardBlocks)
    backward_kernel(BackwardOperands<T> o) {
  __shared__ float scratch[32];
  const std::int64_t row = group_row<S>();
  if (row >= o.layout.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % S::kGroup, D = static_cast<int>(o.layout.length);
  const auto column_of = [&](int p) { return (p * S::kGroup + lane) * W; };
  std::int64_t at[4];
  o.layout.offsets(row, at);
  const float rstd = o.rstd[row], mean = kCentred ? o.mean[row] : 0.0F;
  Pack<T, W> dy[S::kPacks], x[S::kPacks];
#pragma unroll
  for (int p = 0; p < S::kPacks; ++p) {
    if (column_of(p) >= D) continue;
    dy[p] = Pack<T, W>::load(o.dy + at[0] + column_of(p));
    x[p] = Pack<T, W>::load(o.x + at[1] + column_of(p));
  }
  float sum_g = 0.0F, sum_gh = 0.0F;
#pragma unroll
  for (int p = 0; p < S::kPacks; ++p) {
    if (column_of(p) >= D) continue;
    const auto w = Pack<T, W>::load(o.w + column_of(p));
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const float g = dy[p].get(i) * w.get(i);
      sum_g += g;
      sum_gh += g * ((x[p].get(i) - mean) * rstd);
    }
  }
  const float mean_g = kCentred ? sum_of_group<S>(sum_g, scratch) / static_cast<float>(D) : 0.0F;
  const float mean_gh = sum_of_group<S>(sum_gh, scratch) / static_cast<float>(D);
#pragma unroll
  for (int p = 0; p < S::kPacks; ++p) {
    if (column_of(p) >= D) continue;
    const auto w = Pack<T, W>::load(o.w + column_of(p));
    Pack<T, W> addend{}, result;
    if (o.addend != nullptr) addend = Pack<T, W>::load(o.addend + at[2] + column_of(p));
    float dx[W];
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const float h = (x[p].get(i) - mean) * rstd, g = dy[p].get(i) * w.get(i);
      dx[i] = rstd * (g - mean_g - h * mean_gh) + addend.get(i);
    }
    result.set_all(dx);
    result.store(o.dx + at[3] + column_of(p));
  }
}

constexpr int kWalkers = 8;  ///< warps of a block
/// Blocks of them that a processor's registers hold.
constexpr int walking_blocks(int packs) { return packs <= 3 ? 2 : 1; }

/// As backward_kernel, with sums for dw and db: every warp walks over rows of at most kPacks packs
/// a lane and keeps its columns' sums. No warp waits for another before all rows are done.
template <class T, int kPacks, bool kCentred>
__global__ void __launch_bounds__(32 * kWalkers, walking_blocks(kPacks))
    walking_backward_kernel(BackwardOperands<T> o) {
  constexpr int W = kWidest<T>;
  __shared__ float sums[kPacks * 32 * W];
  const std::int64_t D = o.layout.length;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const float per_element = 1.0F / static_cast<float>(D);
  float dw[kPacks][W] = {}, db[kCentred ? kPacks : 1][W] = {};
  const auto column_of = [&](int p) { return (p * 32 + lane) * W; };
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWalkers + warp;
       row < o.layout.rows; row += static_cast<std::int64_t>(gridDim.x) * kWalkers) {
    Pack<T, W> dy[kPacks], x[kPacks], addend[kPacks];
    std::int64_t at[4];
    o.layout.offsets(row, at);
    const float rstd = o.rstd[row], mean = kCentred ? o.mean[row] : 0.0F;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column_of(p) >= D) continue;
      dy[p] = Pack<T, W>::load(o.dy + at[0] + column_of(p));
      x[p] = Pack<T, W>::load(o.x + at[1] + column_of(p));
      addend[p] =
          o.addend != nullptr ? Pack<T, W>::load(o.addend + at[2] + column_of(p)) : Pack<T, W>{};
    }
    float sum_g = 0.0F, sum_gh = 0.0F;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column_of(p) >= D) continue;
      const auto w = Pack<T, W>::load(o.w + column_of(p));
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const float grad = dy[p].get(i), h = (x[p].get(i) - mean) * rstd, g = grad * w.get(i);
        dw[p][i] += grad * h;
        if constexpr (kCentred) db[p][i] += grad;
        sum_g += g;
        sum_gh += g * h;
      }
    }
    const float mean_gh = reduce_lanes(sum_gh, Sum{}) * per_element;
    const float mean_g = kCentred ? reduce_lanes(sum_g, Sum{}) * per_element : 0.0F;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column_of(p) >= D) continue;
      const auto w = Pack<T, W>::load(o.w + column_of(p));
      float dx[W];
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const float h = (x[p].get(i) - mean) * rstd, g = dy[p].get(i) * w.get(i);
        dx[i] = rstd * (g - mean_g - h * mean_gh) + addend[p].get(i);
      }
      Pack<T, W> result;
      result.set_all(dx);
      result.store(o.dx + at[3] + column_of(p));
    }
  }
  // The warps add their sums one after the other.
  const auto write = [&](const auto& mine, float* to) {
    for (int turn = 0; turn < kWalkers; ++turn) {
      if (warp == turn) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
#pragma unroll
          for (int i = 0; i < W; ++i) {
            float& sum = sums[(p * W + i) * 32 + lane];
            sum = turn == 0 ? mine[p][i] : sum + mine[p][i];
          }
        }
      }
      __syncthreads();
    }
    for (int c = static_cast<int>(threadIdx.x); c < D; c += 32 * kWalkers) {
      const int pack = c / W;
      to[blockIdx.x * D + c] = sums[(pack / 32 * W + c % W) * 32 + pack % 32];
    }
    __syncthreads();
  };
  write(dw, o.dw);
  if constexpr (kCentred) write(db, o.db);
}

/// The same for longer rows: a block walks over rows, and every thread keeps the same columns, a
/// pack of W. The next row is loaded while this one is summed.
template <class T, int W, int kThreads, bool kCentred>
__global__ void __launch_bounds__(kThreads) fused_backward_kernel(BackwardOperands<T> o) {
  constexpr int kWarps = kThreads / 32;
  __shared__ float scratch[2][2][kWarps];  // of odd and even rows
  const std::int64_t D = o.layout.length, column = static_cast<std::int64_t>(threadIdx.x) * W;
  const bool is_inside = column < D;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Pack<T, W> w{}, dy{}, x{}, addend{};
  if (is_inside) w = Pack<T, W>::load(o.w + column);
  float dw[W] = {}, db[W] = {}, rstd = 0.0F, mean = 0.0F;
  std::int64_t at[4], next_at[4];
  const auto load = [&](std::int64_t row) {
    if (row >= o.layout.rows) return;
    o.layout.offsets(row, next_at);
    rstd = o.rstd[row];
    if constexpr (kCentred) mean = o.mean[row];
    if (!is_inside) return;
    dy = Pack<T, W>::load(o.dy + next_at[0] + column);
    x = Pack<T, W>::load(o.x + next_at[1] + column);
    if (o.addend != nullptr) addend = Pack<T, W>::load(o.addend + next_at[2] + column);
  };
  load(blockIdx.x);
  int parity = 0;
  for (std::int64_t row = blockIdx.x; row < o.layout.rows; row += gridDim.x, parity ^= 1) {
    float g[W], h[W], add[W], sum_g = 0.0F, sum_gh = 0.0F;
    const float scale = rstd;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const float grad = dy.get(i);
      h[i] = (x.get(i) - mean) * scale;
      g[i] = grad * w.get(i);
      add[i] = addend.get(i);
      dw[i] += grad * h[i];
      if constexpr (kCentred) db[i] += grad;
      sum_g += g[i];
      sum_gh += g[i] * h[i];
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) at[n] = next_at[n];
    load(row + gridDim.x);
    sum_gh = reduce_lanes(sum_gh, Sum{});
    if constexpr (kCentred) sum_g = reduce_lanes(sum_g, Sum{});
    if (lane == 0) {
      scratch[parity][0][warp] = sum_gh;
      scratch[parity][1][warp] = sum_g;
    }
    __syncthreads();
    sum_gh = sum_g = 0.0F;
#pragma unroll
    for (int n = 0; n < kWarps; ++n) {
      sum_gh += scratch[parity][0][n];
      if constexpr (kCentred) sum_g += scratch[parity][1][n];
    }
    if (!is_inside) continue;
    const float mean_gh = sum_gh / static_cast<float>(D), mean_g = sum_g / static_cast<float>(D);
    Pack<T, W> dx;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      dx.set(i, scale * (g[i] - (kCentred ? mean_g : 0.0F) - h[i] * mean_gh) + add[i]);
    }
    dx.store(o.dx + at[3] + column);
  }
  if (!is_inside) return;
#pragma unroll
  for (int i = 0; i < W; ++i) {
    o.dw[blockIdx.x * D + column + i] = dw[i];
    if constexpr (kCentred) o.db[blockIdx.x * D + column + i] = db[i];
  }
}

/// Calls launch(W, Spread) for rows of D elements: the narrowest that holds them.
template <class T, class Launch>
void visit_spread(std::int64_t D, bool wide, const Launch& launch) {
  constexpr int W = kWidest<T>;
  const std::int64_t packs = wide ? D / W : D;
  const auto at = [&](auto width, auto spread) { launch(width, spread); };
  using One = std::integral_constant<int, 1>;
  using Wide = std::integral_constant<int, W>;
  HEDDLE_CHECK(packs <= 16384, "a norm over {} elements", D);
  if (!wide) {
    return packs <= 4096 ? at(One{}, Spread<512, 8>{}) : at(One{}, Spread<1024, 16>{});
  }
  if (packs <= 32) return at(Wide{}, Spread<32, 1>{});
  if (packs <= 96) return at(Wide{}, Spread<32, 3>{});
  if (packs <= 128) return at(Wide{}, Spread<32, 4>{});
  if (packs <= 256) return at(Wide{}, Spread<64, 4>{});
  if (packs <= 1024) return at(Wide{}, Spread<256, 4>{});
  at(Wide{}, Spread<1024, 16>{});
}

/// Layer norm where there is a mean, else RMS norm.
void forward(const Tensor& x, const Tensor& w_D, const Tensor& b_D, double eps, const Tensor& y,
             const Tensor& mean, const Tensor& rstd, Stream& stream) {
  const cudaStream_t queue = state_of(stream).stream;
  const RowLayout<2> layout({&x, &y}, Rows<2>::Merge::leading);
  if (layout.rows * layout.length == 0) return;
  visit_float(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const bool centred = mean.defined();
    const ForwardOperands<T> operands{layout,
                                      device_data<T>(x),
                                      device_data<T>(w_D),
                                      centred ? device_data<T>(b_D) : nullptr,
                                      device_data<T>(y),
                                      centred ? device_data<float>(mean) : nullptr,
                                      device_data<float>(rstd),
                                      static_cast<float>(eps)};
    const bool wide = layout.length % kWidest<T> == 0 && is_aligned(x) && is_aligned(y) &&
                      is_aligned(w_D) && (!centred || is_aligned(b_D));
    visit_spread<T>(layout.length, wide, [&](auto width, auto spread) {
      using S = decltype(spread);
      constexpr int W = decltype(width)::value;
      const auto kernel = centred ? forward_kernel<T, W, S, true> : forward_kernel<T, W, S, false>;
      kernel<<<blocks_for(layout.rows, S::kRowsPerBlock), S::kThreads, 0, queue>>>(operands);
      HEDDLE_CUDA(cudaGetLastError());
    });
  });
}

template <class T>
BackwardOperands<T> operands_of(const RowLayout<4>& layout, const Tensor& dy, const Tensor& x,
                                const Tensor& w_D, const Tensor& mean, const Tensor& rstd,
                                const Tensor& addend, const Tensor& dx) {
  return {layout,
          device_data<T>(dy),
          device_data<T>(x),
          addend.defined() ? device_data<T>(addend) : nullptr,
          device_data<T>(w_D),
          mean.defined() ? device_data<float>(mean) : nullptr,
          device_data<float>(rstd),
          device_data<T>(dx),
          nullptr,
          nullptr};
}

/// The rows of dy, x, addend (or dy again) and dx, and whether all can be read in packs.
struct BackwardRows {
  RowLayout<4> layout;
  bool are_wide;

  BackwardRows(const Tensor& dy, const Tensor& x, const Tensor& w_D, const Tensor& addend,
               const Tensor& dx)
      : layout({&dy, &x, addend.defined() ? &addend : &dy, &dx}, Rows<4>::Merge::leading) {
    are_wide = layout.length * static_cast<std::int64_t>(size_of(x.dtype())) % 16 == 0;
    for (const Tensor* t : {&dy, &x, addend.defined() ? &addend : &dy, &dx, &w_D}) {
      are_wide = are_wide && is_aligned(*t);
    }
  }
  bool are_none() const { return layout.rows * layout.length == 0; }
};

void backward_input(const Tensor& dy, const Tensor& x, const Tensor& w_D, const Tensor& mean,
                    const Tensor& rstd, const Tensor& addend, const Tensor& dx, Stream& stream) {
  const cudaStream_t queue = state_of(stream).stream;
  const BackwardRows rows(dy, x, w_D, addend, dx);
  if (rows.are_none()) return;
  visit_float(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto operands = operands_of<T>(rows.layout, dy, x, w_D, mean, rstd, addend, dx);
    visit_spread<T>(rows.layout.length, rows.are_wide, [&](auto width, auto spread) {
      using S = decltype(spread);
      constexpr int W = decltype(width)::value;
      const auto kernel =
          mean.defined() ? backward_kernel<T, W, S, true> : backward_kernel<T, W, S, false>;
      kernel<<<blocks_for(rows.layout.rows, S::kRowsPerBlock), S::kThreads, 0, queue>>>(operands);
      HEDDLE_CUDA(cudaGetLastError());
    });
  });
}

/// Runs a kernel whose blocks leave a row of sums each, and adds those up.
template <class T>
void launch_with_sums(void (*kernel)(BackwardOperands<T>), std::int64_t blocks, int threads,
                      BackwardOperands<T> operands, const Tensor& dw_D, const Tensor& db_D,
                      Stream& stream) {
  StreamState& state = state_of(stream);
  const std::int64_t D = operands.layout.length;
  const std::size_t bytes = static_cast<std::size_t>(2 * blocks * D) * sizeof(float);
  operands.dw = static_cast<float*>(state.workspace.at_least(bytes));
  operands.db = operands.dw + blocks * D;
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, state.stream>>>(
      operands);
  HEDDLE_CUDA(cudaGetLastError());
  add_partial_rows(operands.dw, blocks, dw_D, db_D, stream);
}

template <class T, int kThreads>
void launch_fused(const BackwardOperands<T>& operands, const Tensor& dw_D, const Tensor& db_D,
                  Stream& stream) {
  constexpr int W = kWidest<T>;
  const std::int64_t blocks =
      std::min<std::int64_t>(operands.layout.rows, state_of(stream).processors * (1024 / kThreads));
  const auto kernel = db_D.defined() ? fused_backward_kernel<T, W, kThreads, true>
                                     : fused_backward_kernel<T, W, kThreads, false>;
  launch_with_sums<T>(kernel, blocks, kThreads, operands, dw_D, db_D, stream);
}

template <class T, int kPacks>
void launch_walking(const BackwardOperands<T>& operands, const Tensor& dw_D, const Tensor& db_D,
                    Stream& stream) {
  const std::int64_t blocks =
      std::min<std::int64_t>((operands.layout.rows + kWalkers - 1) / kWalkers,
                             state_of(stream).processors * walking_blocks(kPacks));
  auto kernel = walking_backward_kernel<T, kPacks, false>;
  if constexpr (kPacks <= 4) {
    if (db_D.defined()) kernel = walking_backward_kernel<T, kPacks, true>;
  }
  launch_with_sums<T>(kernel, blocks, 32 * kWalkers, operands, dw_D, db_D, stream);
}

/// The launcher of the walking kernel, if rows of so many packs fit a warp's registers.
template <class T>
auto walking_launcher(std::int64_t packs, bool is_centred) {
  using Launcher = void (*)(const BackwardOperands<T>&, const Tensor&, const Tensor&, Stream&);
  if (packs <= 32) return Launcher{launch_walking<T, 1>};
  if (packs <= 64) return Launcher{launch_walking<T, 2>};
  if (packs <= 96) return Launcher{launch_walking<T, 3>};
  if (packs <= 128) return Launcher{launch_walking<T, 4>};
  return packs <= 256 && !is_centred ? Launcher{launch_walking<T, 8>} : Launcher{};
}

/// In one pass where rows can be read in packs, and are not too long; false elsewhere.
bool fused_backward(const Tensor& dy, const Tensor& x, const Tensor& w_D, const Tensor& mean,
                    const Tensor& rstd, const Tensor& addend, const Tensor& dx, const Tensor& dw_D,
                    const Tensor& db_D, Stream& stream) {
  const BackwardRows rows(dy, x, w_D, addend, dx);
  if (rows.are_none()) return true;
  bool is_taken = rows.are_wide;
  visit_float(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t packs = rows.layout.length / kWidest<T>;
    is_taken = is_taken && packs > 16 && packs <= 1024;
    if (!is_taken) return;
    auto launch = walking_launcher<T>(packs, db_D.defined());
    if (launch == nullptr) {
      launch = packs <= 256   ? launch_fused<T, 256>
               : packs <= 512 ? launch_fused<T, 512>
                              : launch_fused<T, 1024>;
    }
    launch(operands_of<T>(rows.layout, dy, x, w_D, mean, rstd, addend, dx), dw_D, db_D, stream);
  });
  return is_taken;
}

}  // namespace

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w_D, const Tensor& rstd,
                       const Tensor& addend, const Tensor& dx, const Tensor& dw_D, Stream& stream) {
  if (fused_backward(dy, x, w_D, {}, rstd, addend, dx, dw_D, {}, stream)) return;
  rms_norm_backward_weight(dy, x, rstd, dw_D, stream);
  backward_input(dy, x, w_D, {}, rstd, addend, dx, stream);
}

void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w_D, const Tensor& mean,
                         const Tensor& rstd, const Tensor& addend, const Tensor& dx,
                         const Tensor& dw_D, const Tensor& db_D, Stream& stream) {
  if (fused_backward(dy, x, w_D, mean, rstd, addend, dx, dw_D, db_D, stream)) return;
  layer_norm_backward_weight(dy, x, mean, rstd, dw_D, db_D, stream);
  backward_input(dy, x, w_D, mean, rstd, addend, dx, stream);
}

void rms_norm_forward(const Tensor& x, const Tensor& w_D, double eps, const Tensor& y,
                      const Tensor& rstd, Stream& stream) {
  forward(x, w_D, {}, eps, y, {}, rstd, stream);
}

void rms_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& w_D,
                             const Tensor& rstd, const Tensor& dx, Stream& stream) {
  backward_input(dy, x, w_D, {}, rstd, {}, dx, stream);
}

void rms_norm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& dw_D, Stream& stream) {
  add_column_sums({.dy = dy, .x = x, .rstd = rstd, .dw_D = dw_D}, stream);
}

void layer_norm_forward(const Tensor& x, const Tensor& w_D, const Tensor& b_D, double eps,
                        const Tensor& y, const Tensor& mean, const Tensor& rstd, Stream& stream) {
  forward(x, w_D, b_D, eps, y, mean, rstd, stream);
}

void layer_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& w_D,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                               Stream& stream) {
  backward_input(dy, x, w_D, mean, rstd, {}, dx, stream);
}

void layer_norm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd, const Tensor& dw_D, const Tensor& db_D,
                                Stream& stream) {
  add_column_sums({.dy = dy, .x = x, .mean = mean, .rstd = rstd, .dw_D = dw_D, .db_D = db_D},
                  stream);
}

}  // namespace heddle::ops::cuda
