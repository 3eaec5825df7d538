#pragma once

// Device code only, of Hopper. The gradients of causal attention with heads 64 wide.
//
// A job is a tile of 128 keys of one key/value head against all tiles of 64 queries, of all heads
// that share it, that see it. A block does one job after the other; its warpgroups are
//  - two that have 64 of the keys each: scores and their gradients, transposed (a row per key), and
//    from them dk and dv, whole in registers at the job's end;
//  - one that multiplies the gradients of scores, which those two leave in shared memory, with the
//    keys and adds the result to sums of dq in global memory;
//  - one of which one thread starts the copies of all tiles to shared memory.

#include <cuda_bf16.h>

#include "ops/cuda/hopper_instructions.h"

namespace heddle::ops::cuda::hopper {

constexpr int kBackwardWidth = 64, kKeyTile = 128, kQueryTile = 64;
constexpr int kTileBytes = 64 * 128;  // of 64 rows of 64 bf16

struct BackwardJobs {
  int heads, groups, per_group;  // heads, key/value heads, and heads of one of those
  int positions;
  int query_tiles, key_tiles;
  int group_count;  // of all key/value heads of the batch
  int chunk;        // so many of them are worked on at the same time
};

struct Job {
  int batch, group, key_tile, tiles;  // tiles of queries of one head
};

/// In a chunk of key/value heads the longest first.
__device__ __forceinline__ Job job_at(const BackwardJobs& all, int index) {
  const int per_chunk = all.chunk * all.key_tiles;
  const int chunk = index / per_chunk, in_chunk = index - chunk * per_chunk;
  const int groups = min(all.chunk, all.group_count - chunk * all.chunk);
  const int key_tile = in_chunk / groups, group = chunk * all.chunk + in_chunk - key_tile * groups;
  return {group / all.groups, group % all.groups, key_tile, all.query_tiles - 2 * key_tile};
}

struct BackwardTensors {
  CUtensorMap q, k, v, dout;  // boxes of 64 (q, dout) or 128 positions
  const float* lse;           // [batch * heads][64 query_tiles], times log2(e); infinite past the end
  const float* delta;
  float* dq_sums;  // [batch * heads][query_tiles][8][128][4], in the order of the sums' registers
  int* next_job;
  __nv_bfloat16 *dk, *dv;
  std::int64_t dk_strides[3], dv_strides[3];  // batch, position, head
  BackwardJobs jobs;
  float scale, scale_log2;
};

template <int kStages_, int kGradients_, bool kKeysInRegisters_, bool kValuesInRegisters_, int kOmit_ = 0>
struct BackwardShape {
  static constexpr int kOmit = kOmit_;
  static constexpr int kStages = kStages_;        // tiles of queries on their way or in use
  static constexpr int kGradients = kGradients_;  // tiles of gradients of scores
  static constexpr bool kKeysInRegisters = kKeysInRegisters_;
  static constexpr bool kValuesInRegisters = kValuesInRegisters_;
  static_assert(kStages >= 5 && kGradients >= 2);
};

template <class S>
struct BackwardMemory {
  unsigned char keys[2][2][kTileBytes], values[2][2][kTileBytes];
  unsigned char q[S::kStages][kTileBytes], dout[S::kStages][kTileBytes];
  unsigned char gradients[2][S::kGradients][kTileBytes];  // of scores: [key][query]
  float lse[S::kStages][kQueryTile], delta[S::kStages][kQueryTile];
  std::uint64_t job_full[2], job_empty[2];
  std::uint64_t full[S::kStages], empty[S::kStages];
  std::uint64_t gradient_full[2][S::kGradients], gradient_empty[2][S::kGradients];
  int jobs[2];
};

/// A place in a ring of buffers, and the parity its use has there.
template <int kSize>
struct Turn {
  int index = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++index == kSize) {
      index = 0;
      parity ^= 1;
    }
  }
};

/// x, the same for all lanes of a warp, in a way that the compiler sees.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffU, x, 0); }

__device__ __forceinline__ void arrive_warp(std::uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}

/// Whether wait_for() would not wait now.
__device__ __forceinline__ bool is_over(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t over;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(over)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return over != 0;
}

/// Where the calling lane has its row of 16 x 16 values, 16 columns from column 16 k on, of a
/// swizzled tile for ldmatrix and stmatrix.
__device__ __forceinline__ std::uint32_t matrix_row(const void* tile, int row0, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = row0 + lane % 16, chunk = 2 * k + lane / 16;
  return shared_address(tile) + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row % 8)) * 16));
}

__device__ __forceinline__ void store_matrices(std::uint32_t row, const std::uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
__device__ __forceinline__ float low_of(std::uint32_t both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high_of(std::uint32_t both) {
  return __uint_as_float(both & 0xffff0000U);
}

/// Lane q of each four gets all four lanes' x[q].
__device__ __forceinline__ uint4 transpose_four(std::uint32_t x0, std::uint32_t x1,
                                                std::uint32_t x2, std::uint32_t x3) {
  constexpr unsigned kAll = 0xffffffffU;
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  const std::uint32_t a = __shfl_xor_sync(kAll, odd ? x0 : x1, 1);
  const std::uint32_t b = __shfl_xor_sync(kAll, odd ? x2 : x3, 1);
  if (odd) {
    x0 = a;
    x2 = b;
  } else {
    x1 = a;
    x3 = b;
  }
  const std::uint32_t c = __shfl_xor_sync(kAll, upper ? x0 : x2, 2);
  const std::uint32_t d = __shfl_xor_sync(kAll, upper ? x1 : x3, 2);
  if (upper) {
    x0 = c;
    x1 = d;
  } else {
    x2 = c;
    x3 = d;
  }
  return {x0, x1, x2, x3};
}

/// A warpgroup's 64 x 64 sums, times `factor`, as rows of `to`, those before `rows`.
__device__ __forceinline__ void store_sums(const float (&sums)[32], float factor, __nv_bfloat16* to,
                                           std::int64_t stride, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4 + 8 * half;
    __nv_bfloat16* const at = to + row * stride + 8 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int d = 4 * (4 * i + j) + 2 * half;
        x[j] = pack(factor * sums[d], factor * sums[d + 1]);
      }
      const uint4 eight = transpose_four(x[0], x[1], x[2], x[3]);
      if (row < rows) *reinterpret_cast<uint4*>(at + 32 * i) = eight;
    }
  }
}

template <class S>
__device__ __forceinline__ void copy_tiles(const BackwardTensors& t, BackwardMemory<S>& m) {
  Turn<2> job_turn;
  Turn<S::kStages> turn;
  const int jobs = t.jobs.group_count * t.jobs.key_tiles;
  for (int index = static_cast<int>(blockIdx.x);;) {
    wait_for(&m.job_empty[job_turn.index], job_turn.parity ^ 1);
    std::uint64_t* const job_full = &m.job_full[job_turn.index];
    m.jobs[job_turn.index] = index < jobs ? index : -1;
    if (index >= jobs) {
      arrive(job_full);
      return;
    }
    const Job job = job_at(t.jobs, index);
    index = static_cast<int>(gridDim.x) + atomicAdd(t.next_job, 1);
    arrive_and_expect(job_full, 4 * kTileBytes);
    start_box(m.keys[job_turn.index], t.k, job_full, 0, job.key_tile * kKeyTile, job.group,
              job.batch);
    start_box(m.values[job_turn.index], t.v, job_full, 0, job.key_tile * kKeyTile, job.group,
              job.batch);
    job_turn.advance();
    for (int head = 0; head < t.jobs.per_group; ++head) {
      const int h = job.group * t.jobs.per_group + head;
      const int row = (job.batch * t.jobs.heads + h) * t.jobs.query_tiles;
      for (int tile = 2 * job.key_tile; tile < t.jobs.query_tiles; ++tile) {
        wait_for(&m.empty[turn.index], turn.parity ^ 1);
        std::uint64_t* const full = &m.full[turn.index];
        arrive_and_expect(full, 2 * kTileBytes + 2 * kQueryTile * 4);
        start_box(m.q[turn.index], t.q, full, 0, tile * kQueryTile, h, job.batch);
        start_bytes(m.lse[turn.index], t.lse + (row + tile) * kQueryTile, kQueryTile * 4, full);
        start_box(m.dout[turn.index], t.dout, full, 0, tile * kQueryTile, h, job.batch);
        start_bytes(m.delta[turn.index], t.delta + (row + tile) * kQueryTile, kQueryTile * 4, full);
        turn.advance();
      }
    }
  }
}

/// dq's sums += the gradients of scores times keys.
template <class S>
__device__ __forceinline__ void add_to_queries(const BackwardTensors& t, BackwardMemory<S>& m) {
  Turn<2> job_turn;
  Turn<S::kGradients> turns[2];
  for (;;) {
    wait_for(&m.job_full[job_turn.index], job_turn.parity);
    const int index = uniform(m.jobs[job_turn.index]);
    if (index < 0) return;
    const Job job = job_at(t.jobs, index);
    const std::uint64_t keys0 = across_sum(m.keys[job_turn.index][0], 0);
    const std::uint64_t keys1 = across_sum(m.keys[job_turn.index][1], 0);
    const int row = (job.batch * t.jobs.heads + job.group * t.jobs.per_group) * t.jobs.query_tiles;
    float* to = t.dq_sums + (static_cast<std::int64_t>(row) + 2 * job.key_tile) * 4096 +
                threadIdx.x % 128 * 4;
    for (int head = 0; head < t.jobs.per_group; ++head) {
#pragma unroll 1
      for (int tile = 0; tile < job.tiles; ++tile) {
        float sums[32];
        wait_for(&m.gradient_full[0][turns[0].index], turns[0].parity);
        const std::uint64_t left0 = across_sum(m.gradients[0][turns[0].index], 0);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          multiply_add<1, 1>(sums, left0 + k * kNextRows, keys0 + k * kNextRows, k != 0);
        }
        // The first tile's queries do not see the later keys.
        if (tile != 0) {
          wait_for(&m.gradient_full[1][turns[1].index], turns[1].parity);
          const std::uint64_t left1 = across_sum(m.gradients[1][turns[1].index], 0);
          begin_products();
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            multiply_add<1, 1>(sums, left1 + k * kNextRows, keys1 + k * kNextRows, true);
          }
        }
        end_product_group();
        wait_for_products<0>();
        arrive_warp(&m.gradient_empty[0][turns[0].index]);
        turns[0].advance();
        if (tile != 0) {
          arrive_warp(&m.gradient_empty[1][turns[1].index]);
          turns[1].advance();
        }
        if constexpr (S::kOmit == 1) {
          float x = 0;
          for (int i = 0; i < 32; ++i) x += sums[i];
          if (x == 1.2345F) *to = x;
        } else
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + 512 * i),
                       "f"(sums[4 * i]), "f"(sums[4 * i + 1]), "f"(sums[4 * i + 2]),
                       "f"(sums[4 * i + 3])
                       : "memory");
        }
        to += 4096;
      }
      to += static_cast<std::int64_t>(2 * job.key_tile) * 4096;
    }
    arrive_warp(&m.job_empty[job_turn.index]);
    job_turn.advance();
  }
}

/// What a warpgroup has of the keys and values as left factors.
template <bool kInRegisters>
struct LeftFactor {
  std::uint32_t values[kInRegisters ? 4 : 1][4];
  std::uint64_t in_memory;

  __device__ __forceinline__ void load(const void* tile) {
    if constexpr (kInRegisters) {
      const int row0 = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
#pragma unroll
      for (int k = 0; k < 4; ++k) load_matrices(values[k], matrix_row(tile, row0, k));
    } else {
      in_memory = along_sum(tile);
    }
  }
  /// d = this times the transpose of the tile `b`.
  __device__ __forceinline__ void multiply(float (&d)[32], std::uint64_t b) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (kInRegisters) {
        multiply_add(d, values[k], b + k * kNextInRow, k != 0);
      } else {
        multiply_add(d, in_memory + k * kNextInRow, b + k * kNextInRow, k != 0);
      }
    }
  }
};

/// d += left times the tile `b`.
__device__ __forceinline__ void multiply_left(float (&d)[32], const std::uint32_t (&left)[4][4],
                                              std::uint64_t b) {
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_add<1>(d, left[k], b + k * kNextRows, true);
}

/// What a lane needs of a row of statistics: of queries 8 i + 2 (lane % 4) and the next, i from 0.
/// In memory each 16 queries lie in that order.
struct LaneStatistics {
  float of[16];
  __device__ __forceinline__ void load(const float* row) {
    const float4* const from = reinterpret_cast<const float4*>(row) + threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 four = from[4 * i];
      of[4 * i] = four.x;
      of[4 * i + 1] = four.y;
      of[4 * i + 2] = four.z;
      of[4 * i + 3] = four.w;
    }
  }
};

/// dk and dv of 64 keys, those of half `half` of each tile.
template <class S>
__device__ __forceinline__ void add_to_keys(const BackwardTensors& t, BackwardMemory<S>& m,
                                            int half) {
  Turn<2> job_turn;
  Turn<S::kStages> turn;
  Turn<S::kGradients> gradient_turn;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
  const std::uint64_t q0 = along_sum(m.q), dout0 = along_sum(m.dout);
  constexpr int kNextTile = kTileBytes >> 4;
  for (;;) {
    wait_for(&m.job_full[job_turn.index], job_turn.parity);
    const int index = uniform(m.jobs[job_turn.index]);
    if (index < 0) return;
    const Job job = job_at(t.jobs, index);
    LeftFactor<S::kKeysInRegisters> keys;
    LeftFactor<S::kValuesInRegisters> values;
    keys.load(m.keys[job_turn.index][half]);
    values.load(m.values[job_turn.index][half]);
    constexpr bool kInRegisters = S::kKeysInRegisters && S::kValuesInRegisters;
    if constexpr (kInRegisters) arrive_warp(&m.job_empty[job_turn.index]);

    float dk[32], dv[32], scores[32], gradients[32];
    std::uint32_t p[4][4], ds[4][4];
    LaneStatistics lse, delta;
#pragma unroll
    for (int i = 0; i < 32; ++i) dk[i] = dv[i] = 0.0F;
    // Of the tiles of a head the first `half` are not seen by these keys; the next is half seen.
    int tile = half, left = t.jobs.per_group * (job.tiles - half);
    const auto skip = [&] {
      wait_for(&m.full[turn.index], turn.parity);
      arrive_warp(&m.empty[turn.index]);
      turn.advance();
    };
    if (left > 0) {
      if (half == 1) skip();
      wait_for(&m.full[turn.index], turn.parity);
      begin_products();
      keys.multiply(scores, q0 + turn.index * kNextTile);
      end_product_group();
      lse.load(m.lse[turn.index]);
      wait_for_products<0>();
    } else {
      for (int head = 0; half == 1 && head < t.jobs.per_group; ++head) skip();
    }
    int done = -1;  // the stage of the tile before
    for (; left > 0; --left) {
      // Under way: the last tile's dk.
      const Turn<S::kStages> here = turn;
      begin_products();
      values.multiply(gradients, dout0 + here.index * kNextTile);
      end_product_group();
      const bool is_diagonal = tile == half;
      turn.advance();
      if (++tile == job.tiles) {
        tile = half;
        if (half == 1 && left > 1) skip();
      }
      // After the last tile its scores once more, for nothing: a branch there would make the
      // compiler wait for each product.
      const Turn<S::kStages> next = left > 1 ? turn : here;
      std::uint64_t* const gradient_empty = &m.gradient_empty[half][gradient_turn.index];
      const bool is_next_full = is_over(&m.full[next.index], next.parity);
      const bool is_gradient_empty = is_over(gradient_empty, gradient_turn.parity ^ 1);
      if (is_diagonal) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          const int key = row + lane / 4 + 8 * (i / 2 % 2);
          const int query = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
          if (query < key) scores[i] = -INFINITY;
        }
      }
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        const int j = i / 4 * 2;
        p[i / 8][i / 2 % 4] = pack(exp2_of(scores[i] * t.scale_log2 - lse.of[j]),
                                   exp2_of(scores[i + 1] * t.scale_log2 - lse.of[j + 1]));
      }
      begin_products();
      multiply_left(dv, p, dout0 + here.index * kNextTile);
      end_product_group();
      delta.load(m.delta[here.index]);
      if (!is_next_full) wait_for(&m.full[next.index], next.parity);
      begin_products();
      keys.multiply(scores, q0 + next.index * kNextTile);
      end_product_group();
      wait_for_products<2>();
      if (done >= 0) arrive_warp(&m.empty[done]);
      done = here.index;
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        const int j = i / 4 * 2;
        const std::uint32_t both = p[i / 8][i / 2 % 4];
        ds[i / 8][i / 2 % 4] = pack(low_of(both) * (gradients[i] - delta.of[j]),
                                    high_of(both) * (gradients[i + 1] - delta.of[j + 1]));
      }
      if (!is_gradient_empty) wait_for(gradient_empty, gradient_turn.parity ^ 1);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        store_matrices(matrix_row(m.gradients[half][gradient_turn.index], row, k), ds[k]);
      }
      begin_products();
      multiply_left(dk, ds, q0 + here.index * kNextTile);
      end_product_group();
      fence_shared_writes();
      arrive_warp(&m.gradient_full[half][gradient_turn.index]);
      gradient_turn.advance();
      lse.load(m.lse[next.index]);
      wait_for_products<1>();
    }
    wait_for_products<0>();
    if (done >= 0) arrive_warp(&m.empty[done]);
    if constexpr (!kInRegisters) arrive_warp(&m.job_empty[job_turn.index]);
    job_turn.advance();
    const int first = job.key_tile * kKeyTile + half * 64, rows = t.jobs.positions - first;
    store_sums(dk, t.scale,
               t.dk + job.batch * t.dk_strides[0] + first * t.dk_strides[1] +
                   job.group * t.dk_strides[2],
               t.dk_strides[1], rows);
    store_sums(dv, 1.0F,
               t.dv + job.batch * t.dv_strides[0] + first * t.dv_strides[1] +
                   job.group * t.dv_strides[2],
               t.dv_strides[1], rows);
  }
}

template <class S>
__global__ void __launch_bounds__(512, 1)
    backward_kernel(const __grid_constant__ BackwardTensors tensors) {
  extern __shared__ unsigned char raw[];
  auto& m = *reinterpret_cast<BackwardMemory<S>*>(
      raw + (1024 - shared_address(raw) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(&m.job_full[i], 1);
      init_barrier(&m.job_empty[i], 12);
      for (int j = 0; j < S::kGradients; ++j) {
        init_barrier(&m.gradient_full[i][j], 4);
        init_barrier(&m.gradient_empty[i][j], 4);
      }
    }
    for (int i = 0; i < S::kStages; ++i) {
      init_barrier(&m.full[i], 1);
      init_barrier(&m.empty[i], 8);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / 128);
  if (warpgroup == 3) {
    give_registers<24>();
    if (threadIdx.x == 3 * 128) copy_tiles<S>(tensors, m);
  } else if (warpgroup == 2) {
    give_registers<72>();
    add_to_queries<S>(tensors, m);
  } else {
    take_registers<208>();
    add_to_keys<S>(tensors, m, warpgroup);
  }
}

template <class S>
constexpr int backward_memory_bytes() {
  return static_cast<int>(sizeof(BackwardMemory<S>)) + 1024;
}

struct RowView {
  const __nv_bfloat16* data;
  std::int64_t batch, position, head;  // strides
};

/// What the kernel above needs: delta = the sum of dout * out, lse in its scale, cleared sums of dq.
/// A block of 256 threads per 64 queries of a head.
__global__ void __launch_bounds__(256)
    prepare_backward_kernel(RowView dout, RowView out, const float* lse, int positions, int heads,
                            int query_tiles, float* lse_log2, float* delta, float* dq_sums,
                            int* next_job) {
  const int h = static_cast<int>(blockIdx.x) % heads, tile = static_cast<int>(blockIdx.x) / heads;
  const int b = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % 8;
  if (blockIdx.x == 0 && b == 0 && thread == 0) *next_job = 0;
  const std::int64_t head = static_cast<std::int64_t>(b) * heads + h;
  float4* const sums = reinterpret_cast<float4*>(dq_sums + (head * query_tiles + tile) * 4096);
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[thread + 256 * i] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int s = tile * kQueryTile + thread / 8 + 32 * i;
    float sum = 0.0F;
    if (s < positions) {
      const uint4 x = *reinterpret_cast<const uint4*>(dout.data + b * dout.batch +
                                                      s * dout.position + h * dout.head + 8 * chunk);
      const uint4 y = *reinterpret_cast<const uint4*>(out.data + b * out.batch + s * out.position +
                                                      h * out.head + 8 * chunk);
      const std::uint32_t xs[] = {x.x, x.y, x.z, x.w}, ys[] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sum += low_of(xs[j]) * low_of(ys[j]) + high_of(xs[j]) * high_of(ys[j]);
      }
    }
#pragma unroll
    for (int other = 1; other < 8; other *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, other);
    if (chunk == 0) {
      // Of 16 queries as LaneStatistics wants them.
      const int in_order = (s & ~15) + s % 8 / 2 * 4 + s % 16 / 8 * 2 + s % 2;
      const std::int64_t at = head * query_tiles * kQueryTile + in_order;
      delta[at] = sum;
      lse_log2[at] = s < positions ? lse[head * positions + s] * 1.4426950408889634F : INFINITY;
    }
  }
}

/// dq from its sums; a block of 128 threads per 64 queries of a head.
__global__ void __launch_bounds__(128)
    finish_backward_kernel(const float* dq_sums, __nv_bfloat16* dq, std::int64_t batch_stride,
                           std::int64_t stride, std::int64_t head_stride, int positions, int heads,
                           int query_tiles, float scale) {
  const int h = static_cast<int>(blockIdx.x) % heads, tile = static_cast<int>(blockIdx.x) / heads;
  const int b = static_cast<int>(blockIdx.y);
  const std::int64_t head = static_cast<std::int64_t>(b) * heads + h;
  const float4* const from =
      reinterpret_cast<const float4*>(dq_sums + (head * query_tiles + tile) * 4096) + threadIdx.x;
  float sums[32];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 four = from[128 * i];
    sums[4 * i] = four.x;
    sums[4 * i + 1] = four.y;
    sums[4 * i + 2] = four.z;
    sums[4 * i + 3] = four.w;
  }
  const int first = tile * kQueryTile;
  store_sums(sums, scale, dq + b * batch_stride + first * stride + h * head_stride, stride,
             positions - first);
}

}  // namespace heddle::ops::cuda::hopper
