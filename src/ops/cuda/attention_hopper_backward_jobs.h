#pragma once

// Device code only, of Hopper. The gradients of attention with heads 64 or 128 wide.
//
// A job is a tile of 128 keys of one key/value head against all tiles of 64 queries, of all heads
// that share it, that see it. A block does one job after the other; two of its warpgroups have 64
// of the keys each: scores and their gradients, transposed (a row per key), and from them dk and
// dv, whole in registers at the job's end. One thread of another starts the copies of all tiles to
// shared memory. dq is the business of attention_hopper_backward_narrow.h and _wide.h.

#include "ops/cuda/attention_caps.h"
#include "ops/cuda/attention_problem.h"
#include "ops/cuda/hopper_tiles.h"

namespace heddle::ops::cuda::hopper {

constexpr int kKeyTile = 128, kQueryTile = 64;

struct BackwardJobs {
  int heads, groups;          // heads, and key/value heads
  int per_job;                // heads of a job, all of which have one key/value head
  int share;                  // heads, from multiples of it on, whose dk and dv are one
  int queries, keys, offset;  // query s sees no key behind offset + s,
  int jump, jump_at;          // or, from jump_at on, behind offset + s + jump
  int query_tiles, key_tiles;
  int sum_tiles;  // from the sums of dq of a head to the next one's
  int set_count;  // sets of a job's heads in the batch
  int chunk;      // so many of them are worked on at the same time
};

struct Job {
  int batch, group, head, key_tile;  // the first of its heads
  int first_tile;                    // of queries that see the first keys
  int skipped;  // so many of the first tiles, 0 or 1, do not see the later half of the keys
  int cut;      // so many of the others' last, 0 or 1, do not see the earlier half
  int tiles;    // of queries of each head; 0: there are no more jobs
};

/// The first tile of queries that sees a key; so do all behind it. Queries jump where a tile
/// begins.
__device__ __forceinline__ int first_query_tile(int key, int offset, int jump, int jump_at) {
  const int ahead = max(key - offset, 0);
  return (jump == 0 || ahead < jump_at ? ahead : max(ahead - jump, jump_at)) / kQueryTile;
}

/// Without its tiles. In a chunk of sets of heads the longest come first.
__device__ __forceinline__ Job job_at(const BackwardJobs& all, int index) {
  const int per_chunk = all.chunk * all.key_tiles;
  const int chunk = index / per_chunk, in_chunk = index - chunk * per_chunk;
  const int sets = min(all.chunk, all.set_count - chunk * all.chunk);
  const int key_tile = in_chunk / sets;
  const int head = (chunk * all.chunk + in_chunk - key_tile * sets) * all.per_job;
  const int batch = head / all.heads, own = head - batch * all.heads;
  const auto first_tile = [&](int key) {
    return first_query_tile(key, all.offset, all.jump, all.jump_at);
  };
  const int first = first_tile(key_tile * kKeyTile);
  const int first_of_half = first_tile(key_tile * kKeyTile + 64);
  return {.batch = batch,
          .group = own / (all.heads / all.groups),
          .head = own,
          .key_tile = key_tile,
          .first_tile = first,
          .skipped = first_of_half - first,
          .cut = 0,
          .tiles = 0};
}

/// With kAddsKeys dk and dv are added, in f32; else written.
template <bool kAddsKeys>
struct BackwardTensors {
  CUtensorMap q, k, v, dout;  // boxes of a tile
  // Of padded rows of 64 query_tiles, each 16 queries in the order of LaneValues.
  const float *lse, *delta;  // [batch * heads]; lse times log2(e), infinite past the end
  const int* first_keys;     // [batch], where there are documents
  const int* tile_ends;  // [batch][key_tiles]: the tile of queries after the last that sees them
  float* dq_sums;  // [batch * heads][sum_tiles][width / 64][8][128][4]: the order of registers
  // Of exact sums (attention_hopper_backward_sums.h), of which a tile has two: [batch * heads]
  // [query_tiles].
  const float* splits;
  float rest;
  int* next_job;
  HeadView<ResultOf<Bf16, kAddsKeys>> dk, dv;
  BackwardJobs jobs;
  float scale, scale_log2;
  float
      cap_factor;  // with a cap, of products to what tanh_of() takes; scale_log2 is the cap's then
  SmallCap small_cap;
};

constexpr int kGradientTiles = 2;  // of each of the two warpgroups

template <int kWidth_>
struct BackwardShape {
  static constexpr int kWidth = kWidth_, kBlocks = kWidth / 64;  // copies have 64 columns
  static constexpr int kJobs = kWidth == 64 ? 2 : 1;             // whose keys there is room for
  /// Tiles of queries on their way or in use. Of narrow heads: two that a warpgroup has, one that
  /// it skips between them, and as many before the next. Of wide ones: two that a warpgroup has,
  /// and the next.
  static constexpr int kStages = kWidth == 64 ? 5 : 3;
  static_assert(kStages >= (kWidth == 64 ? 5 : 3), "the two would wait for each other");
  static constexpr int kAdders = kWidth == 64 ? 3 : 2;  // warpgroups that need the keys
  static constexpr int kThreads = 128 * (kAdders + 1);
};

template <class S>
struct BackwardMemory {
  static constexpr int kBlocks = S::kBlocks, kStages = S::kStages;
  // Of two halves.
  unsigned char keys[S::kJobs][kBlocks][2][kTileBytes], values[S::kJobs][kBlocks][2][kTileBytes];
  unsigned char q[kStages][kBlocks][kTileBytes], dout[kStages][kBlocks][kTileBytes];
  unsigned char gradients[2][kGradientTiles][kTileBytes];  // of scores: [key][query]
  float lse[kStages][kQueryTile], delta[kStages][kQueryTile];
  int first_keys[kStages][kQueryTile];
  std::uint64_t job_full[S::kJobs], job_empty[S::kJobs];
  std::uint64_t full[kStages], empty[kStages];
  std::uint64_t gradient_full[2][kGradientTiles], gradient_empty[2][kGradientTiles];
  Job jobs[S::kJobs];
};
/// For one thread of the block.
template <class S>
__device__ __forceinline__ void init_barriers(BackwardMemory<S>& m) {
  for (int i = 0; i < S::kJobs; ++i) {
    init_barrier(&m.job_full[i], 1);
    init_barrier(&m.job_empty[i], 128 * S::kAdders);
  }
  for (int i = 0; i < S::kStages; ++i) {
    init_barrier(&m.full[i], 1);
    init_barrier(&m.empty[i], 2 * 128);
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < kGradientTiles; ++j) {
      init_barrier(&m.gradient_full[i][j], 128);
      init_barrier(&m.gradient_empty[i][j], 128);
    }
  }
  fence_barrier_init();
}

template <class S>
inline constexpr int kBackwardBytes = static_cast<int>(sizeof(BackwardMemory<S>)) + 1024;

template <class S, bool kDocuments, bool kIsBlock>
__device__ __forceinline__ void copy_tiles(const BackwardTensors<kIsBlock>& t,
                                           BackwardMemory<S>& m) {
  Turn<S::kJobs> job_turn;
  Turn<S::kStages> turn;
  const BackwardJobs& all = t.jobs;
  const int jobs = all.set_count * all.key_tiles;
  constexpr int kRowBytes = kQueryTile * 4;
  constexpr int kStageBytes = 2 * S::kBlocks * kTileBytes + (kDocuments ? 3 : 2) * kRowBytes;
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
    if (kIsBlock && job.tiles <= 0) continue;
    if constexpr (kDocuments) {
      const int* const first_keys = t.first_keys + job.batch * all.query_tiles * kQueryTile;
      const int later = job.key_tile * kKeyTile + 64;
      job.cut = job.tiles > 1 && first_keys[(end - 1) * kQueryTile] >= later;
    }
    m.jobs[job_turn.index] = job;
    arrive_and_expect(job_full, 4 * S::kBlocks * kTileBytes);
    const int key0 = job.key_tile * kKeyTile;
#pragma unroll
    for (int c = 0; c < S::kBlocks; ++c) {
      start_box(m.keys[job_turn.index][c], t.k, job_full, 64 * c, job.group, key0, job.batch);
      start_box(m.values[job_turn.index][c], t.v, job_full, 64 * c, job.group, key0, job.batch);
    }
    job_turn.advance();
    for (int h = job.head; h < job.head + all.per_job; ++h) {
#pragma unroll 1
      for (int tile = job.first_tile; tile < end; ++tile) {
        wait_for(&m.empty[turn.index], turn.parity ^ 1);
        std::uint64_t* const full = &m.full[turn.index];
        arrive_and_expect(full, kStageBytes);
        const int query0 = tile * kQueryTile;
        const std::int64_t row = static_cast<std::int64_t>(job.batch) * all.heads + h;
        const std::int64_t at = row * all.query_tiles * kQueryTile + query0;
#pragma unroll
        for (int c = 0; c < S::kBlocks; ++c) {
          start_box(m.q[turn.index][c], t.q, full, 64 * c, h, query0, job.batch);
        }
        start_bytes(m.lse[turn.index], t.lse + at, kRowBytes, full);
#pragma unroll
        for (int c = 0; c < S::kBlocks; ++c) {
          start_box(m.dout[turn.index][c], t.dout, full, 64 * c, h, query0, job.batch);
        }
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

}  // namespace heddle::ops::cuda::hopper
