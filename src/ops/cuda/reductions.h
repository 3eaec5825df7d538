#pragma once

// Device code only.

namespace heddle::ops::cuda {

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  /// NaN wins, so that it shows.
  __device__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

/// Over groups of kLanes neighbouring lanes of a warp; every lane gets the result.
template <int kLanes = 32, class T, class Op>
__device__ inline T reduce_lanes(T value, Op op) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffU, value, distance));
  }
  return value;
}

/// Over a block of kThreads; every thread gets the result. `scratch` has room for 32 values and is
/// free again after the block's next barrier.
template <int kThreads, class T, class Op>
__device__ inline T reduce_block(T value, T identity, Op op, T* scratch) {
  value = reduce_lanes(value, op);
  if constexpr (kThreads > 32) {
    constexpr int kWarps = kThreads / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    if (lane == 0) scratch[warp] = value;
    __syncthreads();
    value = reduce_lanes(lane < kWarps ? scratch[lane] : identity, op);
  }
  return value;
}

}  // namespace heddle::ops::cuda
