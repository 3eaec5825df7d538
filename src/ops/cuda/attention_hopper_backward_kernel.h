#pragma once

// Device code only, of Hopper. The gradients of attention with heads 64 wide.
//
// A job is a tile of 128 keys of one key/value head against all tiles of 64 queries, of all heads
// that share it, that see it. A block does one job after the other; its warpgroups are
//  - two that have 64 of the keys each: scores and their gradients, transposed (a row per key), and
//    from them dk and dv, whole in registers at the job's end;
//  - one that multiplies the gradients of scores, which those two leave in shared memory, with the
//    keys and adds the result to sums of dq in global memory;
//  - one of which one thread starts the copies of all tiles to shared memory.

#include "ops/cuda/attention_problem.h"
#include "ops/cuda/hopper_tiles.h"

namespace heddle::ops::cuda::hopper {

constexpr int kKeyTile = 128, kQueryTile = 64;
constexpr int kBackwardThreads = 512;

struct BackwardJobs {
  int heads, groups, per_group;  // heads, key/value heads, and heads of one of those
  int queries, keys, offset;     // query s sees no key behind offset + s
  int query_tiles, key_tiles;
  int group_count;  // of all key/value heads of the batch
  int chunk;        // so many of them are worked on at the same time
};

struct Job {
  int batch, group, key_tile;
  int first_tile;  // of queries that see the first keys
  int skipped;     // so many of the first tiles, 0 or 1, do not see the later half of the keys
  int tiles;       // of queries of each head; 0: there are no more jobs
};

/// The first tile of queries that sees a key.
__device__ __forceinline__ int first_query_tile(int key, int offset) {
  return max(key - offset, 0) / kQueryTile;
}

/// Without its tiles. In a chunk of key/value heads the longest come first.
__device__ __forceinline__ Job job_at(const BackwardJobs& all, int index) {
  const int per_chunk = all.chunk * all.key_tiles;
  const int chunk = index / per_chunk, in_chunk = index - chunk * per_chunk;
  const int groups = min(all.chunk, all.group_count - chunk * all.chunk);
  const int key_tile = in_chunk / groups, group = chunk * all.chunk + in_chunk - key_tile * groups;
  const int first = first_query_tile(key_tile * kKeyTile, all.offset);
  const int first_of_half = first_query_tile(key_tile * kKeyTile + 64, all.offset);
  return {group / all.groups, group % all.groups, key_tile, first, first_of_half - first, 0};
}

/// Of whole sequences, where queries and keys are the same positions, gradients are bf16 and
/// written; those of blocks are f32 and added.
template <class Gradient>
inline constexpr bool kIsBlock = std::is_same_v<Gradient, float>;

template <class Gradient>
struct BackwardTensors {
  CUtensorMap q, k, v, dout;  // boxes of a tile
  // Of padded rows of 64 query_tiles, each 16 queries in the order of LaneValues.
  const float *lse, *delta;  // [batch * heads]; lse times log2(e), infinite past the end
  const int* first_keys;     // [batch], where there are documents
  const int* tile_ends;  // [batch][key_tiles]: the tile of queries after the last that sees them
  float* dq_sums;        // [batch * heads][query_tiles][8][128][4]: the order of registers
  int* next_job;
  HeadView<Gradient> dk, dv;
  BackwardJobs jobs;
  float scale, scale_log2;
};

/// Tiles of queries on their way or in use: two that a warpgroup has, one that it skips between
/// them, and as many before the next.
constexpr int kStages = 5;
static_assert(kStages >= 5, "the two would wait for each other");
constexpr int kGradientTiles = 2;  // of each of the two warpgroups

struct BackwardMemory {
  unsigned char keys[2][2][kTileBytes], values[2][2][kTileBytes];  // of two jobs, two halves
  unsigned char q[kStages][kTileBytes], dout[kStages][kTileBytes];
  unsigned char gradients[2][kGradientTiles][kTileBytes];  // of scores: [key][query]
  float lse[kStages][kQueryTile], delta[kStages][kQueryTile];
  int first_keys[kStages][kQueryTile];
  std::uint64_t job_full[2], job_empty[2];
  std::uint64_t full[kStages], empty[kStages];
  std::uint64_t gradient_full[2][kGradientTiles], gradient_empty[2][kGradientTiles];
  Job jobs[2];
};
constexpr int kBackwardBytes = static_cast<int>(sizeof(BackwardMemory)) + 1024;

template <bool kDocuments, class Gradient>
__device__ __forceinline__ void copy_tiles(const BackwardTensors<Gradient>& t, BackwardMemory& m) {
  Turn<2> job_turn;
  Turn<kStages> turn;
  const BackwardJobs& all = t.jobs;
  const int jobs = all.group_count * all.key_tiles;
  constexpr int kRowBytes = kQueryTile * 4;
  constexpr int kStageBytes = 2 * kTileBytes + (kDocuments ? 3 : 2) * kRowBytes;
  for (int index = static_cast<int>(blockIdx.x);;) {
    wait_for(&m.job_empty[job_turn.index], job_turn.parity ^ 1);
    std::uint64_t* const job_full = &m.job_full[job_turn.index];
    if (index >= jobs) {
      m.jobs[job_turn.index].tiles = 0;
      arrive(job_full);
      return;
    }
    Job job = job_at(all, index);
    const int end = t.tile_ends[job.batch * all.key_tiles + job.key_tile];
    job.tiles = end - job.first_tile;
    index = static_cast<int>(gridDim.x) + atomicAdd(t.next_job, 1);
    if (kIsBlock<Gradient> && job.tiles <= 0) continue;
    m.jobs[job_turn.index] = job;
    arrive_and_expect(job_full, 4 * kTileBytes);
    const int key0 = job.key_tile * kKeyTile;
    start_box(m.keys[job_turn.index], t.k, job_full, 0, job.group, key0, job.batch);
    start_box(m.values[job_turn.index], t.v, job_full, 0, job.group, key0, job.batch);
    job_turn.advance();
    for (int h = job.group * all.per_group; h < (job.group + 1) * all.per_group; ++h) {
#pragma unroll 1
      for (int tile = job.first_tile; tile < end; ++tile) {
        wait_for(&m.empty[turn.index], turn.parity ^ 1);
        std::uint64_t* const full = &m.full[turn.index];
        arrive_and_expect(full, kStageBytes);
        const int query0 = tile * kQueryTile;
        const std::int64_t row = static_cast<std::int64_t>(job.batch) * all.heads + h;
        const std::int64_t at = row * all.query_tiles * kQueryTile + query0;
        start_box(m.q[turn.index], t.q, full, 0, h, query0, job.batch);
        start_bytes(m.lse[turn.index], t.lse + at, kRowBytes, full);
        start_box(m.dout[turn.index], t.dout, full, 0, h, query0, job.batch);
        start_bytes(m.delta[turn.index], t.delta + at, kRowBytes, full);
        if constexpr (kDocuments) {
          start_bytes(m.first_keys[turn.index],
                      t.first_keys + job.batch * all.query_tiles * kQueryTile + query0, kRowBytes,
                      full);
        }
        turn.advance();
      }
    }
  }
}

/// dq's sums += the gradients of scores times keys.
template <class Gradient>
__device__ __forceinline__ void add_to_queries(const BackwardTensors<Gradient>& t,
                                               BackwardMemory& m) {
  Turn<2> job_turn;
  Turn<kGradientTiles> turns[2];
  for (;;) {
    wait_for(&m.job_full[job_turn.index], job_turn.parity);
    const Job job = m.jobs[job_turn.index];
    const int tiles = uniform(job.tiles);
    if (tiles == 0) return;
    const std::uint64_t keys0 = across_sum(m.keys[job_turn.index][0], 0);
    const std::uint64_t keys1 = across_sum(m.keys[job_turn.index][1], 0);
    const int row = (job.batch * t.jobs.heads + job.group * t.jobs.per_group) * t.jobs.query_tiles;
    float* to = t.dq_sums + (static_cast<std::int64_t>(row) + job.first_tile) * 4096 +
                threadIdx.x % 128 * 4;
    const int skipped = kIsBlock<Gradient> ? uniform(job.skipped) : 1;
    for (int head = 0; head < t.jobs.per_group; ++head) {
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        float sums[32];
        wait_for(&m.gradient_full[0][turns[0].index], turns[0].parity);
        begin_products();
        multiply_columns(sums, across_sum(m.gradients[0][turns[0].index], 0), keys0, false);
        end_product_group();
        // The first tile's queries may not see the later keys.
        if (tile >= skipped) {
          wait_for(&m.gradient_full[1][turns[1].index], turns[1].parity);
          begin_products();
          multiply_columns(sums, across_sum(m.gradients[1][turns[1].index], 0), keys1, true);
          end_product_group();
        }
        wait_for_products<0>();
        arrive(&m.gradient_empty[0][turns[0].index]);
        turns[0].advance();
        if (tile >= skipped) {
          arrive(&m.gradient_empty[1][turns[1].index]);
          turns[1].advance();
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          add_four(to + 512 * i, {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]});
        }
        to += 4096;
      }
      to += static_cast<std::int64_t>(t.jobs.query_tiles - tiles) * 4096;
    }
    arrive(&m.job_empty[job_turn.index]);
    job_turn.advance();
  }
}

/// Query `shift` is at the position of the first key.
__device__ __forceinline__ void hide_earlier_queries(float (&scores)[32], int shift) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (column_of(i) < row_of(i) + shift) scores[i] = -INFINITY;
  }
}

__device__ __forceinline__ void hide_keys_from(float (&scores)[32], int end) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (row_of(i) >= end) scores[i] = -INFINITY;
  }
}

/// `first` is the first of the keys.
__device__ __forceinline__ void hide_later_documents(float (&scores)[32], const int* first_keys,
                                                     int first) {
  LaneValues<int> first_key;
  first_key.load(first_keys);
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (first_key.of[i / 4 * 2 + i % 2] > first + row_of(i)) scores[i] = -INFINITY;
  }
}

/// dk and dv of 64 keys, those of half `half` of each tile.
template <bool kDocuments, class Gradient>
__device__ __forceinline__ void add_to_keys(const BackwardTensors<Gradient>& t, BackwardMemory& m,
                                            int half) {
  Turn<2> job_turn;
  Turn<kStages> turn;
  Turn<kGradientTiles> gradient_turn;
  const int row = warp_id() % 4 * 16;
  // One description serves for tiles along and across the summed index: they are one block wide.
  const std::uint64_t q0 = along_sum(m.q), dout0 = along_sum(m.dout);
  constexpr int kNextTile = kTileBytes >> 4;
  for (;;) {
    wait_for(&m.job_full[job_turn.index], job_turn.parity);
    const int tiles = uniform(m.jobs[job_turn.index].tiles);
    if (tiles == 0) return;
    const std::uint64_t keys = along_sum(m.keys[job_turn.index][half]);
    const std::uint64_t values = along_sum(m.values[job_turn.index][half]);

    float dk[32], dv[32], scores[32], gradients[32];
    std::uint32_t p[4][4], ds[4][4];
    LaneValues<float> lse, delta;
#pragma unroll
    for (int i = 0; i < 32; ++i) dk[i] = dv[i] = 0.0F;
    // Of the tiles of a head the first `skipped` do not see these keys.
    const int skipped = half == 0            ? 0
                        : kIsBlock<Gradient> ? uniform(m.jobs[job_turn.index].skipped)
                                             : 1;
    int tile = skipped, left = t.jobs.per_group * (tiles - skipped);
    const auto skip = [&] {
      wait_for(&m.full[turn.index], turn.parity);
      arrive(&m.empty[turn.index]);
      turn.advance();
    };
    if (left > 0) {
      if (skipped != 0) skip();
      wait_for(&m.full[turn.index], turn.parity);
      begin_products();
      multiply_rows(scores, keys, q0 + turn.index * kNextTile);
      end_product_group();
      lse.load(m.lse[turn.index]);
      wait_for_products<0>();
    } else {
      for (int head = 0; skipped != 0 && head < t.jobs.per_group; ++head) skip();
    }
    int done = -1;  // the stage of the tile before
    for (; left > 0; --left) {
      // Under way: the last tile's dk.
      const Turn<kStages> here = turn;
      begin_products();
      multiply_rows(gradients, values, dout0 + here.index * kNextTile);
      end_product_group();
      const int now = tile;
      turn.advance();
      if (++tile == tiles) {
        tile = skipped;
        if (skipped != 0 && left > 1) skip();
      }
      // After the last tile its scores once more, for nothing: a branch there would make the
      // compiler wait for each product.
      const Turn<kStages> next = left > 1 ? turn : here;
      if constexpr (kIsBlock<Gradient>) {
        const Job& job = m.jobs[job_turn.index];
        const int first = uniform(job.key_tile) * kKeyTile + half * 64;
        const int shift = first - t.jobs.offset - (uniform(job.first_tile) + now) * kQueryTile;
        if (shift > 1 - kQueryTile) hide_earlier_queries(scores, shift);
        if (t.jobs.keys - first < 64) hide_keys_from(scores, t.jobs.keys - first);
      } else {
        if (now == skipped) hide_earlier_queries(scores, 0);
      }
      if constexpr (kDocuments) {
        const int first = uniform(m.jobs[job_turn.index].key_tile) * kKeyTile + half * 64;
        if (uniform(m.first_keys[here.index][kQueryTile - 1]) > first) {
          hide_later_documents(scores, m.first_keys[here.index], first);
        }
      }
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        const int j = i / 4 * 2;
        p[i / 8][i / 2 % 4] = pair_of(exp2_fast(scores[i] * t.scale_log2 - lse.of[j]),
                                      exp2_fast(scores[i + 1] * t.scale_log2 - lse.of[j + 1]));
      }
      begin_products();
      multiply_left(dv, p, dout0 + here.index * kNextTile);
      end_product_group();
      delta.load(m.delta[here.index]);
      wait_for(&m.full[next.index], next.parity);
      begin_products();
      multiply_rows(scores, keys, q0 + next.index * kNextTile);
      end_product_group();
      wait_for_products<2>();
      if (done >= 0) arrive(&m.empty[done]);
      done = here.index;
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        const int j = i / 4 * 2;
        const std::uint32_t both = p[i / 8][i / 2 % 4];
        ds[i / 8][i / 2 % 4] = pair_of(low_of(both) * (gradients[i] - delta.of[j]),
                                       high_of(both) * (gradients[i + 1] - delta.of[j + 1]));
      }
      wait_for(&m.gradient_empty[half][gradient_turn.index], gradient_turn.parity ^ 1);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        store_block(shared_address(m.gradients[half][gradient_turn.index]), row, k, ds[k]);
      }
      begin_products();
      multiply_left(dk, ds, q0 + here.index * kNextTile);
      end_product_group();
      fence_shared_writes();
      arrive(&m.gradient_full[half][gradient_turn.index]);
      gradient_turn.advance();
      lse.load(m.lse[next.index]);
      wait_for_products<1>();
    }
    wait_for_products<0>();
    if (done >= 0) arrive(&m.empty[done]);
    const Job job = m.jobs[job_turn.index];
    const int first = job.key_tile * kKeyTile + half * 64;
    arrive(&m.job_empty[job_turn.index]);
    job_turn.advance();
    const auto store = [&](const float(&sums)[32], float factor, const HeadView<Gradient>& to) {
      put_sums(sums, factor, to.at(job.batch, first, job.group), to.position, t.jobs.keys - first);
    };
    store(dk, t.scale, t.dk);
    store(dv, 1.0F, t.dv);
  }
}

template <bool kDocuments, class Gradient>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    backward_kernel(const __grid_constant__ BackwardTensors<Gradient> tensors) {
  extern __shared__ unsigned char raw[];
  auto& m = *reinterpret_cast<BackwardMemory*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(&m.job_full[i], 1);
      init_barrier(&m.job_empty[i], 3 * 128);
      for (int j = 0; j < kGradientTiles; ++j) {
        init_barrier(&m.gradient_full[i][j], 128);
        init_barrier(&m.gradient_empty[i][j], 128);
      }
    }
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&m.full[i], 1);
      init_barrier(&m.empty[i], 2 * 128);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int warpgroup = uniform(warp_id() / 4);
  if (warpgroup == 3) {
    give_registers<24>();
    if (threadIdx.x == 3 * 128) copy_tiles<kDocuments>(tensors, m);
  } else if (warpgroup == 2) {
    give_registers<72>();
    add_to_queries(tensors, m);
  } else {
    take_registers<208>();
    add_to_keys<kDocuments>(tensors, m, warpgroup);
  }
}

}  // namespace heddle::ops::cuda::hopper
