#pragma once

// Device code only. Instructions that CUDA C++ has no name for; all lanes of a warp take part.
// An 8 x 8 matrix of bf16 lies in one register of each lane: lane l has row l / 4 and columns
// 2 (l % 4) and 2 (l % 4) + 1, the first of them in the low half.

#include <cuda_bf16.h>

#include <cstdint>

namespace heddle::ops::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* in_shared_memory) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(in_shared_memory));
}

/// Two values as a register of a matrix.
__device__ __forceinline__ std::uint32_t pair_of(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

/// They again.
__device__ __forceinline__ float low_of(std::uint32_t both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high_of(std::uint32_t both) {
  return __uint_as_float(both & 0xffff0000U);
}

/// The products of both, rounded once, and with sums.
__device__ __forceinline__ std::uint32_t multiply_pairs(std::uint32_t x, std::uint32_t y) {
  std::uint32_t result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(x), "r"(y));
  return result;
}
__device__ __forceinline__ std::uint32_t multiply_add_pairs(std::uint32_t x, std::uint32_t y,
                                                            std::uint32_t sums) {
  std::uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "r"(sums));
  return result;
}

/// Four matrices; lane 8 i + r gives the address of row r, 16 bytes, of matrix i.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

/// The same, each matrix transposed.
__device__ __forceinline__ void load_transposed(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

/// sums[16 x 8] += a[16 x 16] b[16 x 8]. Of a: matrices of rows 0 to 7 and 8 to 15 of columns 0 to
/// 7, then of columns 8 to 15. Of b: rows 0 to 7 and 8 to 15, transposed. Of the sums a lane has
/// columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4, then of row l / 4 + 8.
__device__ __forceinline__ void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Starts a copy of 16 or 4 bytes to shared memory. Where nothing `exists` zeros are written and
/// `from` is not read.
template <int kBytes>
__device__ __forceinline__ void start_copy(void* to, const void* from, bool exists) {
  const int bytes = exists ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)),
                 "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

/// Copies that this thread started since the last call are one group.
__device__ __forceinline__ void end_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Until at most `kLeft` groups of this thread are under way.
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace heddle::ops::cuda
