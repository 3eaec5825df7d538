#pragma once

// Device code only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "ops/cuda/stream_state.h"
#include "tensor/cuda/check.h"
#include "tensor/tensor.h"

namespace heddle::ops::cuda {

using Bf16 = __nv_bfloat16;

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(Bf16 x) { return __bfloat162float(x); }
template <class T>
__device__ inline T from_f32(float x) {
  return x;
}
template <>
__device__ inline Bf16 from_f32<Bf16>(float x) {
  return __float2bfloat16_rn(x);
}

inline constexpr float kLog2E = 1.44269504088896341F;

/// 2^x, good to 2 units in the last place; results below the normal numbers are 0.
__device__ inline float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// 1 / (1 + exp(-x)) by the fast exponential and quotient, both good to a few units in the last
/// place of f32: a bf16 element leaves room for some 20 instructions before arithmetic, not memory,
/// is the limit.
__device__ inline float sigmoid_fast(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

template <int kBytes>
struct RawBytes;
template <>
struct RawBytes<1> {
  using type = std::uint8_t;
};
template <>
struct RawBytes<2> {
  using type = std::uint16_t;
};
template <>
struct RawBytes<4> {
  using type = std::uint32_t;
};
template <>
struct RawBytes<8> {
  using type = uint2;
};
template <>
struct RawBytes<16> {
  using type = uint4;
};

/// W elements, loaded and stored by one instruction.
template <class T, int W>
struct Pack {
  using Raw = typename RawBytes<static_cast<int>(sizeof(T)) * W>::type;
  static constexpr bool kPairs = std::is_same_v<T, Bf16> && W % 2 == 0;  ///< of bf16, a word each
  Raw raw;

  __device__ static Pack load(const T* from) { return {*reinterpret_cast<const Raw*>(from)}; }
  /// The compiler may make four stores of an assignment of 16 bytes, hence the instruction.
  __device__ void store(T* to) const {
    if constexpr (sizeof(Raw) == 16) {
      asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(raw.x), "r"(raw.y),
                   "r"(raw.z), "r"(raw.w)
                   : "memory");
    } else {
      *reinterpret_cast<Raw*>(to) = raw;
    }
  }
  __device__ float get(int i) const {
    if constexpr (kPairs) {
      const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(&raw)[i / 2];
      return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000U);
    } else {
      return to_f32(reinterpret_cast<const T*>(&raw)[i]);
    }
  }
  __device__ void set(int i, float value) { reinterpret_cast<T*>(&raw)[i] = from_f32<T>(value); }
  /// All of them; bf16 in pairs, which is one instruction for two.
  __device__ void set_all(const float (&values)[W]) {
    if constexpr (kPairs) {
#pragma unroll
      for (int i = 0; i < W; i += 2) {
        reinterpret_cast<__nv_bfloat162*>(&raw)[i / 2] =
            __floats2bfloat162_rn(values[i], values[i + 1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < W; ++i) set(i, values[i]);
    }
  }
};

/// Elements of T in 16 bytes: the widest load.
template <class T>
inline constexpr int kWidest = 16 / static_cast<int>(sizeof(T));

template <class T>
inline constexpr DType kDTypeOf = DType::f32;
template <>
inline constexpr DType kDTypeOf<Bf16> = DType::bf16;
template <>
inline constexpr DType kDTypeOf<double> = DType::f64;
template <>
inline constexpr DType kDTypeOf<std::int32_t> = DType::i32;

/// The elements of a tensor, which must be T and on a GPU.
template <class T>
T* device_data(const Tensor& t) {
  HEDDLE_CHECK(t.dtype() == kDTypeOf<T> && t.device().kind == Device::Kind::cuda,
               "{} {} where {} on a GPU is wanted", name_of(t.dtype()), t.shape().text(),
               name_of(kDTypeOf<T>));
  return reinterpret_cast<T*>(t.bytes());
}

/// Calls body(T{}) with T = float or bf16, as `dtype` says.
template <class Body>
void visit_float(DType dtype, const Body& body) {
  HEDDLE_CHECK(dtype == DType::f32 || dtype == DType::bf16, "an operation on {}", name_of(dtype));
  if (dtype == DType::f32) {
    body(float{});
  } else {
    body(Bf16{});
  }
}

/// Whether rows of the tensor can be read in packs of 16 bytes: all but the last dimension start at
/// multiples of them.
inline bool is_aligned(const Tensor& t) {
  const auto element = static_cast<std::int64_t>(size_of(t.dtype()));
  bool aligned = reinterpret_cast<std::uintptr_t>(t.bytes()) % 16 == 0;
  for (int dim = 0; dim + 1 < t.dims(); ++dim) {
    aligned = aligned && (t.size(dim) == 1 || t.stride(dim) * element % 16 == 0);
  }
  return aligned;
}

/// Blocks for `items` with `per_block` each, never none.
inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  const std::int64_t blocks = (items + per_block - 1) / per_block;
  HEDDLE_CHECK(blocks < (std::int64_t{1} << 31), "a grid of {} blocks", blocks);
  return static_cast<unsigned>(blocks > 0 ? blocks : 1);
}

}  // namespace heddle::ops::cuda
