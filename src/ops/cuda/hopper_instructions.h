#pragma once

// Device code only, of Hopper (sm_90a): products of a warpgroup, four warps that begin at a
// multiple of four, and copies that the hardware makes between global and shared memory.

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/tensor_core_instructions.h"

namespace heddle::ops::cuda::hopper {

// Barriers in shared memory. A phase ends when `arrivals` threads arrived and all bytes expected
// came; phases are waited for by their parity, 0 first. Every thread that wrote or read what a
// barrier guards arrives at it: one of a warp after a __syncwarp() would do and is no faster, but
// racecheck does not follow that.

__device__ __forceinline__ void init_barrier(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

/// At a barrier of another block of the cluster, by its rank. Orders nothing but what this thread
/// waited for before.
__device__ __forceinline__ void arrive_in(std::uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

/// Makes inits visible to copies and other blocks of the cluster; a __syncthreads() has to follow.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

/// Arrives, and lets the phase wait for so many bytes of copies too.
__device__ __forceinline__ void arrive_and_expect(std::uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

__device__ __forceinline__ void wait_for(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ended;\n"
      "bra again;\n"
      "ended:\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Copies of a box of a tensor that a map describes (made on the host by tensor_map()). One thread
// starts one; coordinates are in elements, the innermost first.

__device__ __forceinline__ void start_box(void* to, const CUtensorMap& map, std::uint64_t* barrier,
                                          int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// The same to this place in both blocks of a cluster of two, whose barriers both get the bytes.
__device__ __forceinline__ void start_shared_box(void* to, const CUtensorMap& map,
                                                 std::uint64_t* barrier, int c0, int c1, int c2,
                                                 int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
      "h"(static_cast<std::uint16_t>(3))
      : "memory");
}

/// Bytes, a multiple of 16, from global to shared memory.
__device__ __forceinline__ void start_bytes(void* to, const void* from, int bytes,
                                            std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

__device__ __forceinline__ void store_box(const CUtensorMap& map, const void* from, int c0, int c1,
                                          int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(shared_address(from)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// The same, of f32 that are added to what is there.
__device__ __forceinline__ void add_box(const CUtensorMap& map, const void* from, int c0, int c1,
                                        int c2, int c3) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(&map),
      "r"(shared_address(from)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

__device__ __forceinline__ void end_store_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Until at most `kLeft` groups of this thread's stores still read shared memory.
template <int kLeft>
__device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

/// What this thread wrote to shared memory is seen by products and copies that start after the next
/// barrier.
__device__ __forceinline__ void fence_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// *to += x, without waiting for it.
__device__ __forceinline__ void add_four(float* to, float4 x) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y),
               "f"(x.z), "f"(x.w)
               : "memory");
}

/// Brings the line of an address into the second-level cache.
__device__ __forceinline__ void fetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// A barrier of `threads` threads of the block; ids from 1 are free.
__device__ __forceinline__ void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Arrives there without waiting.
__device__ __forceinline__ void arrive_at(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ int block_in_cluster() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// A barrier of all threads of the cluster.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Four 8 x 8 matrices of bf16, as load_matrices() reads them.
__device__ __forceinline__ void store_matrices(std::uint32_t row, const std::uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// Matrices in shared memory, as copies with a swizzle of 128 bytes leave them: rows of 64 bf16, the
// first row at a multiple of 1024 bytes.

/// Rows are rows of the left or columns of the right factor (64 of the summed index in a row). The
/// next 16 of the summed index: + kNextInRow.
__device__ __forceinline__ std::uint64_t along_sum(const void* rows) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kEightRows = (1024 >> 4);
  return kSwizzle128 | kEightRows << 32 | std::uint64_t{1} << 16 |
         ((shared_address(rows) & 0x3ffff) >> 4);
}
constexpr std::uint64_t kNextInRow = 32 >> 4;

/// Rows are of one summed index each (transposed factors). Where a factor is wider than 64, its
/// next 64 begin `block_bytes` later. The next 16 of the summed index: + kNextRows.
__device__ __forceinline__ std::uint64_t across_sum(const void* rows, int block_bytes) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kEightRows = (1024 >> 4);
  return kSwizzle128 | kEightRows << 32 | static_cast<std::uint64_t>(block_bytes >> 4) << 16 |
         ((shared_address(rows) & 0x3ffff) >> 4);
}
constexpr std::uint64_t kNextRows = 2048 >> 4;

/// All descriptors have the same high half, and sums of the low ones do not overflow: 32 bits are
/// enough to step from one to the next.
__device__ __forceinline__ std::uint32_t low_half(std::uint64_t descriptor) {
  return static_cast<std::uint32_t>(descriptor);
}
__device__ __forceinline__ std::uint64_t from_low_half(std::uint32_t low) {
  return std::uint64_t{0x40000040} << 32 | low;
}

/// Before the first product that reads registers written by other instructions.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_product_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kLeft>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

/// Nothing that reads these sums is moved in front of the wait for them, which stands before.
template <int kN>
__device__ __forceinline__ void settle(float (&sums)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// d[64 x N] (+)= a[64 x 16] b[16 x N]: thread t of the warpgroup has of d[i] row
// 16 (t / 32) + t % 32 / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (t % 4) + i % 2.
// The left factor lies in shared memory or, as d's layout has it, in registers. With `keep` false
// d is overwritten.

// Names of the sums in the assembler's text, and the sums: as many registers as the result is wide
// by two.
#define HEDDLE_NAMES_32                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HEDDLE_NAMES_64                                                                \
  HEDDLE_NAMES_32                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HEDDLE_NAMES_128                                                                  \
  HEDDLE_NAMES_64                                                                         \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "    \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, " \
  "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
  "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "  \
  "%125, %126, %127"
#define HEDDLE_SUMS_8(d, i)                                                           \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
      "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define HEDDLE_SUMS_32(d, i)                                                  \
  HEDDLE_SUMS_8(d, i), HEDDLE_SUMS_8(d, (i) + 8), HEDDLE_SUMS_8(d, (i) + 16), \
      HEDDLE_SUMS_8(d, (i) + 24)
#define HEDDLE_SUMS_64(d, i) HEDDLE_SUMS_32(d, i), HEDDLE_SUMS_32(d, (i) + 32)
#define HEDDLE_SUMS_128(d, i) HEDDLE_SUMS_64(d, i), HEDDLE_SUMS_64(d, (i) + 64)

template <int kTransposeA = 0, int kTransposeB = 0>
__device__ __forceinline__ void multiply_add(float (&d)[32], std::uint64_t a, std::uint64_t b,
                                             bool keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" HEDDLE_NAMES_32
      "}, %32, %33, p, 1, 1, %35, %36;\n}\n"
      : HEDDLE_SUMS_32(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(keep)), "n"(kTransposeA), "n"(kTransposeB));
}

template <int kTransposeB = 0>
__device__ __forceinline__ void multiply_add(float (&d)[32], const std::uint32_t (&a)[4],
                                             std::uint64_t b, bool keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" HEDDLE_NAMES_32
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
      : HEDDLE_SUMS_32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(keep)),
        "n"(kTransposeB));
}

template <int kTransposeA = 0, int kTransposeB = 0>
__device__ __forceinline__ void multiply_add(float (&d)[64], std::uint64_t a, std::uint64_t b,
                                             bool keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" HEDDLE_NAMES_64
      "}, %64, %65, p, 1, 1, %67, %68;\n}\n"
      : HEDDLE_SUMS_64(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(keep)), "n"(kTransposeA), "n"(kTransposeB));
}

template <int kTransposeB = 0>
__device__ __forceinline__ void multiply_add(float (&d)[64], const std::uint32_t (&a)[4],
                                             std::uint64_t b, bool keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" HEDDLE_NAMES_64
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"
      : HEDDLE_SUMS_64(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(keep)),
        "n"(kTransposeB));
}

template <int kTransposeA = 0, int kTransposeB = 0>
__device__ __forceinline__ void multiply_add(float (&d)[128], std::uint64_t a, std::uint64_t b,
                                             bool keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" HEDDLE_NAMES_128
      "}, %128, %129, p, 1, 1, %131, %132;\n}\n"
      : HEDDLE_SUMS_128(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(keep)), "n"(kTransposeA), "n"(kTransposeB));
}

#undef HEDDLE_NAMES_32
#undef HEDDLE_NAMES_64
#undef HEDDLE_NAMES_128
#undef HEDDLE_SUMS_8
#undef HEDDLE_SUMS_32
#undef HEDDLE_SUMS_64
#undef HEDDLE_SUMS_128

}  // namespace heddle::ops::cuda::hopper
