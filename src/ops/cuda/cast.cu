#include "ops/cast.h"
#include "ops/cuda/vectors.h"

namespace heddle::ops::cuda {
namespace {

/// One rounding from each type to each other.
template <class To, class From>
__device__ To convert(From x) {
  return static_cast<To>(x);
}
template <>
__device__ Bf16 convert<Bf16, double>(double x) {
  return __double2bfloat16(x);
}
template <>
__device__ __half convert<__half, double>(double x) {
  return __double2half(x);
}
template <>
__device__ double convert<double, Bf16>(Bf16 x) {
  return static_cast<double>(__bfloat162float(x));
}
template <>
__device__ double convert<double, __half>(__half x) {
  return static_cast<double>(__half2float(x));
}
template <>
__device__ Bf16 convert<Bf16, __half>(__half x) {
  return __float2bfloat16_rn(__half2float(x));
}
template <>
__device__ __half convert<__half, Bf16>(Bf16 x) {
  return __float2half_rn(__bfloat162float(x));
}

/// W elements, in as few loads and stores as their alignment allows.
template <class T, int W>
struct alignas(sizeof(T) * W > 16 ? 16 : sizeof(T) * W) Elements {
  T values[W];
};

template <class From, class To, int W>
__global__ void __launch_bounds__(256) cast_kernel(const From* x, To* y, std::int64_t count) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * W;
  if (at + W <= count) {
    const auto in = *reinterpret_cast<const Elements<From, W>*>(x + at);
    Elements<To, W> out;
#pragma unroll
    for (int i = 0; i < W; ++i) out.values[i] = convert<To>(in.values[i]);
    *reinterpret_cast<Elements<To, W>*>(y + at) = out;
  } else {
    for (std::int64_t i = at; i < count; ++i) y[i] = convert<To>(x[i]);
  }
}

template <class Body>
void visit_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32: return body(float{});
    case DType::f64: return body(double{});
    case DType::bf16: return body(Bf16{});
    default: return body(__half{});
  }
}

}  // namespace

void cast(const Tensor& x, const Tensor& y, Stream& stream) {
  HEDDLE_CHECK(x.device() == stream.device() && y.device() == stream.device(),
               "cast between devices");
  if (x.count() == 0) return;
  const cudaStream_t queue = state_of(stream).stream;
  visit_type(x.dtype(), [&](auto from) {
    visit_type(y.dtype(), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      constexpr int W = 8;
      const auto is_wide = [](const Tensor& t) {
        return reinterpret_cast<std::uintptr_t>(t.bytes()) % 16 == 0;
      };
      const bool wide = is_wide(x) && is_wide(y);
      const auto kernel = wide ? cast_kernel<From, To, W> : cast_kernel<From, To, 1>;
      kernel<<<blocks_for(x.count(), 256 * (wide ? W : 1)), 256, 0, queue>>>(
          reinterpret_cast<const From*>(x.bytes()), reinterpret_cast<To*>(y.bytes()), x.count());
      HEDDLE_CUDA(cudaGetLastError());
    });
  });
}

}  // namespace heddle::ops::cuda
