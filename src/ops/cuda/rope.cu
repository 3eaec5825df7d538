#include "ops/cuda/vectors.h"
#include "ops/rope.h"

namespace heddle::ops::cuda {
namespace {

template <class T>
struct Operands {
  T* x;
  std::int64_t batch, position, head;  // strides of x
  const std::int32_t* positions;
  std::int64_t positions_batch;  // stride
  const float *cos, *sin;
  std::int64_t table;     // stride of both tables
  std::uint32_t S, H, R;  // R in packs
  std::int64_t items;     // B * S * H * R
  float sign;             // of the angle
};

/// A thread turns a pack of pairs: elements [i, i + W) with [i + R, i + R + W).
template <class T, int W>
__global__ void __launch_bounds__(256) rope_kernel(Operands<T> o) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= o.items) return;
  // Neighbouring threads have neighbouring packs, then heads, which share a row of the tables.
  const auto index = static_cast<std::uint32_t>(item);
  const std::uint32_t i = index % o.R * W, rest = index / o.R, h = rest % o.H, token = rest / o.H;
  const std::uint32_t s = token % o.S, b = token / o.S;
  T* const first = o.x + b * o.batch + s * o.position + h * o.head + i;
  T* const second = first + static_cast<std::int64_t>(o.R) * W;
  const std::int64_t row = o.positions[b * o.positions_batch + s] * o.table + i;
  auto x = Pack<T, W>::load(first), y = Pack<T, W>::load(second);
#pragma unroll
  for (int n = 0; n < W; ++n) {
    const float c = o.cos[row + n], d = o.sign * o.sin[row + n];
    const float p = x.get(n), q = y.get(n);
    x.set(n, p * c - q * d);
    y.set(n, q * c + p * d);
  }
  x.store(first);
  y.store(second);
}

/// A thread turns W / 2 pairs that lie beside each other, in one pack where they are aligned.
template <class T, int W, bool kAligned>
__global__ void __launch_bounds__(256) rope_neighbours_kernel(Operands<T> o) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= o.items) return;
  const auto index = static_cast<std::uint32_t>(item);
  const std::uint32_t i = index % o.R * (W / 2), rest = index / o.R, h = rest % o.H;
  const std::uint32_t token = rest / o.H, s = token % o.S, b = token / o.S;
  T* const at = o.x + b * o.batch + s * o.position + h * o.head + 2 * i;
  const std::int64_t row = o.positions[b * o.positions_batch + s] * o.table + i;
  const auto turn = [&](auto& x) {
#pragma unroll
    for (int n = 0; n < W / 2; ++n) {
      const float c = o.cos[row + n], d = o.sign * o.sin[row + n];
      const float p = x.get(2 * n), q = x.get(2 * n + 1);
      x.set(2 * n, p * c - q * d);
      x.set(2 * n + 1, q * c + p * d);
    }
  };
  if constexpr (kAligned) {
    auto x = Pack<T, W>::load(at);
    turn(x);
    x.store(at);
  } else {
    Pack<T, 2> x;
    for (int n = 0; n < 2; ++n) x.set(n, to_f32(at[n]));
    turn(x);
    for (int n = 0; n < 2; ++n) at[n] = from_f32<T>(x.get(n));
  }
}

}  // namespace

void rope(const Tensor& x_BSHK, const Tensor& positions_BS, const Tensor& cos_PR,
          const Tensor& sin_PR, RopePairs pairing, bool inverse, Stream& stream) {
  const std::int64_t R = cos_PR.size(1);
  const std::int64_t pairs = x_BSHK.size(0) * x_BSHK.size(1) * x_BSHK.size(2) * R;
  if (pairs == 0) return;
  HEDDLE_CHECK(pairs < (std::int64_t{1} << 32), "rotation of {}", x_BSHK.shape().text());
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(x_BSHK.dtype(), [&](auto zero) {
    using T = decltype(zero);
    constexpr int W = kWidest<T>;
    const bool beside = pairing == RopePairs::neighbours;
    const bool wide = is_aligned(x_BSHK) && (beside ? 2 * R : R) % W == 0;
    const std::int64_t width = !wide ? 1 : beside ? W / 2 : W;
    const Operands<T> operands{.x = device_data<T>(x_BSHK),
                               .batch = x_BSHK.stride(0),
                               .position = x_BSHK.stride(1),
                               .head = x_BSHK.stride(2),
                               .positions = device_data<std::int32_t>(positions_BS),
                               .positions_batch = positions_BS.stride(0),
                               .cos = device_data<float>(cos_PR),
                               .sin = device_data<float>(sin_PR),
                               .table = cos_PR.stride(0),
                               .S = static_cast<std::uint32_t>(x_BSHK.size(1)),
                               .H = static_cast<std::uint32_t>(x_BSHK.size(2)),
                               .R = static_cast<std::uint32_t>(R / width),
                               .items = pairs / width,
                               .sign = inverse ? -1.0F : 1.0F};
    const auto kernel =
        beside ? (wide ? rope_neighbours_kernel<T, W, true> : rope_neighbours_kernel<T, 2, false>)
               : (wide ? rope_kernel<T, W> : rope_kernel<T, 1>);
    kernel<<<blocks_for(operands.items, 256), 256, 0, queue>>>(operands);
    HEDDLE_CUDA(cudaGetLastError());
  });
}

}  // namespace heddle::ops::cuda
