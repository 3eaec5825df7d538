#include <algorithm>

#include "ops/cuda/reductions.h"
#include "ops/cuda/vectors.h"
#include "ops/reduce.h"
#include "tensor/dtype.h"

namespace heddle::ops::cuda {
namespace {

constexpr int kThreads = 512;

struct Square {
  __device__ double operator()(double x) const { return x * x; }
};
struct Itself {
  __device__ double operator()(double x) const { return x; }
};

/// partial[block] = the sum of f over the block's share, which depends on the grid only.
template <class T, class F>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const T* x, std::int64_t count, double* partial, F f) {
  constexpr int W = kWidest<T>, kUnroll = 4;
  __shared__ double scratch[32];
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t packs = reinterpret_cast<std::uintptr_t>(x) % 16 == 0 ? count / W : 0;
  double sum = 0.0;
  using Raw = uint4;
  for (std::int64_t at = thread; at < packs; at += threads * kUnroll) {
    Raw raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t pack = at + u * threads;
      raw[u] = pack < packs ? reinterpret_cast<const Raw*>(x)[pack] : Raw{};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < W; ++i) {
        sum += f(static_cast<double>(reinterpret_cast<const T*>(&raw[u])[i]));
      }
    }
  }
  for (std::int64_t at = packs * W + thread; at < count; at += threads) {
    sum += f(static_cast<double>(x[at]));
  }
  sum = reduce_block<kThreads>(sum, 0.0, Sum{}, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    sum_partial_kernel(const double* partial, int count, bool adds, double* sum) {
  __shared__ double scratch[32];
  double mine = 0.0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) mine += partial[i];
  mine = reduce_block<kThreads>(mine, 0.0, Sum{}, scratch);
  if (threadIdx.x == 0) *sum = adds ? *sum + mine : mine;
}

/// sum (on the device) = or += the sum of f.
template <class T, class F>
void reduce_to(const Tensor& x, const F& f, bool adds, double* sum, double* partial,
               StreamState& state) {
  const auto blocks = std::clamp<std::int64_t>((x.count() + 4 * kThreads - 1) / (4 * kThreads), 1,
                                               4 * state.processors);
  sum_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, state.stream>>>(device_data<T>(x),
                                                                           x.count(), partial, f);
  HEDDLE_CUDA(cudaGetLastError());
  sum_partial_kernel<<<1, kThreads, 0, state.stream>>>(partial, static_cast<int>(blocks), adds,
                                                       sum);
  HEDDLE_CUDA(cudaGetLastError());
}

double* partial_sums(StreamState& state) {
  return static_cast<double*>(
      state.workspace.at_least((4 * static_cast<std::size_t>(state.processors) + 2) * 8));
}

__global__ void clip_factor_kernel(const double* sums, int count, double limit, float* factor) {
  bool is_finite = true;
  for (int i = 0; i < count; ++i) is_finite = is_finite && isfinite(sums[i]);
  const double norm = sqrt(sums[0]);
  const double clipped = limit > 0.0 ? fmin(1.0, limit / (norm + 1e-6)) : 1.0;
  *factor = is_finite ? static_cast<float>(clipped) : nanf("");
}

__global__ void divide_by_norm_kernel(float* x, std::int64_t count, const double* sum,
                                      double least) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) x[i] *= static_cast<float>(1.0 / fmax(sqrt(*sum), least));
}

__device__ bool is_bad(float x) { return !isfinite(x); }
__device__ bool is_bad(double x) { return !isfinite(x); }
__device__ bool is_bad(Bf16 x) { return !isfinite(__bfloat162float(x)); }
__device__ bool is_bad(__half x) { return !isfinite(__half2float(x)); }

/// The first that this thread sees; `count` if none.
template <class T>
__device__ std::int64_t find_bad(const T* x, std::int64_t count) {
  constexpr int W = kWidest<T>, kUnroll = 4;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t packs = reinterpret_cast<std::uintptr_t>(x) % 16 == 0 ? count / W : 0;
  std::int64_t found = count;
  for (std::int64_t at = thread; at < packs && found == count; at += threads * kUnroll) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t pack = at + u * threads;
      raw[u] = pack < packs ? reinterpret_cast<const uint4*>(x)[pack] : uint4{};
    }
#pragma unroll
    for (int u = kUnroll - 1; u >= 0; --u) {  // so that the first one is what remains
#pragma unroll
      for (int i = W - 1; i >= 0; --i) {
        if (is_bad(reinterpret_cast<const T*>(&raw[u])[i])) found = (at + u * threads) * W + i;
      }
    }
  }
  for (std::int64_t at = packs * W + thread; at < count && found == count; at += threads) {
    if (is_bad(x[at])) found = at;
  }
  return found;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    find_bad_kernel(const T* x, std::int64_t count, unsigned long long* first) {
  const std::int64_t found = find_bad(x, count);
  if (found < count) {  // the smallest is the same whatever the order
    atomicMin(first, static_cast<unsigned long long>(found));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    mark_bad_kernel(const T* x, std::int64_t count, double* mark) {
  if (find_bad(x, count) < count) *mark = nan("");
}

/// Calls search(x's elements, blocks).
template <class Search>
void search_in(const Tensor& x, const StreamState& state, const Search& search) {
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(blocks_for(x.count(), 4 * kThreads), 4 * state.processors));
  const auto of = [&](auto zero) {
    search(reinterpret_cast<const decltype(zero)*>(x.bytes()), blocks);
    HEDDLE_CUDA(cudaGetLastError());
  };
  switch (x.dtype()) {
    case DType::f32: return of(float{});
    case DType::f64: return of(double{});
    case DType::bf16: return of(Bf16{});
    default: return of(__half{});
  }
}

}  // namespace

double sum_of_squares(const Tensor& x, Stream& stream) {
  StreamState& state = state_of(stream);
  double* const memory = partial_sums(state);
  reduce_to<float>(x, Square{}, false, memory, memory + 1, state);
  double sum = 0.0;
  HEDDLE_CUDA(cudaMemcpyAsync(&sum, memory, sizeof sum, cudaMemcpyDeviceToHost, state.stream));
  stream.synchronize();
  return sum;
}

void add_sum_of_squares(const Tensor& x, const Tensor& sum, Stream& stream) {
  StreamState& state = state_of(stream);
  reduce_to<float>(x, Square{}, true, device_data<double>(sum), partial_sums(state), state);
}

void divide_by_norm(const Tensor& x, const Tensor& sum, double least, Stream& stream) {
  if (x.count() == 0) return;
  divide_by_norm_kernel<<<blocks_for(x.count(), 256), 256, 0, state_of(stream).stream>>>(
      device_data<float>(x), x.count(), device_data<double>(sum), least);
  HEDDLE_CUDA(cudaGetLastError());
}

void add_sum(const Tensor& x, const Tensor& sum, Stream& stream) {
  StreamState& state = state_of(stream);
  double* const to = device_data<double>(sum);
  if (x.dtype() == DType::f32) {
    reduce_to<float>(x, Itself{}, true, to, partial_sums(state), state);
  } else {
    reduce_to<double>(x, Itself{}, true, to, partial_sums(state), state);
  }
}

void clip_factor(const Tensor& sums, double limit, const Tensor& factor, Stream& stream) {
  clip_factor_kernel<<<1, 1, 0, state_of(stream).stream>>>(
      device_data<double>(sums), static_cast<int>(sums.count()), limit, device_data<float>(factor));
  HEDDLE_CUDA(cudaGetLastError());
}

std::int64_t first_non_finite(const Tensor& x, Stream& stream) {
  StreamState& state = state_of(stream);
  auto* const first = static_cast<unsigned long long*>(state.workspace.at_least(8));
  HEDDLE_CUDA(cudaMemsetAsync(first, 0xff, sizeof *first, state.stream));
  search_in(x, state, [&](const auto* values, unsigned blocks) {
    find_bad_kernel<<<blocks, kThreads, 0, state.stream>>>(values, x.count(), first);
  });
  unsigned long long found = 0;
  HEDDLE_CUDA(cudaMemcpyAsync(&found, first, sizeof found, cudaMemcpyDeviceToHost, state.stream));
  stream.synchronize();
  return static_cast<std::int64_t>(found);  // all ones is -1
}

void mark_non_finite(const Tensor& x, const Tensor& mark, Stream& stream) {
  const StreamState& state = state_of(stream);
  search_in(x, state, [&](const auto* values, unsigned blocks) {
    mark_bad_kernel<<<blocks, kThreads, 0, state.stream>>>(values, x.count(),
                                                           device_data<double>(mark));
  });
}

}  // namespace heddle::ops::cuda
