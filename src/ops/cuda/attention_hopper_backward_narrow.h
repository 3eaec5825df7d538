#pragma once

// Device code only, of Hopper. The gradients of attention with heads 64 wide: a third warpgroup
// multiplies the gradients of scores, which the two leave in shared memory, with the keys and adds
// the result to sums of dq in global memory.

#include "ops/cuda/attention_hopper_backward_scores.h"
#include "ops/cuda/attention_hopper_backward_sums.h"

namespace heddle::ops::cuda::hopper {

/// dq's sums += the gradients of scores times keys.
template <bool kDocuments, bool kExact, bool kIsBlock>
__device__ __forceinline__ void add_to_queries(const BackwardTensors<kIsBlock>& t,
                                               BackwardMemory<BackwardShape<64>>& m) {
  constexpr int kSums = kTileSums<64, kExact>;
  Turn<2> job_turn;
  Turn<kGradientTiles> turns[2];
  for (;;) {
    wait_for(&m.job_full[job_turn.index], job_turn.parity);
    const Job job = m.jobs[job_turn.index];
    const int tiles = uniform(job.tiles);
    if (tiles == 0) return;
    const std::uint64_t keys0 = across_sum(m.keys[job_turn.index][0][0], 0);
    const std::uint64_t keys1 = across_sum(m.keys[job_turn.index][0][1], 0);
    const int row = (job.batch * t.jobs.heads + job.head) * t.jobs.sum_tiles;
    float* to = t.dq_sums + (static_cast<std::int64_t>(row) + job.first_tile) * kSums +
                threadIdx.x % 128 * 4;
    const float* splits = nullptr;
    if constexpr (kExact) {
      splits =
          t.splits + (job.batch * t.jobs.heads + job.head) * t.jobs.query_tiles + job.first_tile;
    }
    // The first tile's queries may not see the later keys, nor the last one's the earlier.
    const int skipped = kIsBlock ? uniform(job.skipped) : 1;
    const int end = tiles - cut_tiles<kDocuments>(job, 0);
    for (int head = 0; head < t.jobs.per_job; ++head) {
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        float sums[32];
        const float split = kExact ? splits[tile] : 0.0F;
        const bool has_earlier = !kDocuments || tile < end, has_later = tile >= skipped;
        if (has_earlier) {
          wait_for(&m.gradient_full[0][turns[0].index], turns[0].parity);
          begin_products();
          multiply_columns(sums, across_sum(m.gradients[0][turns[0].index], 0), keys0, false);
          end_product_group();
        }
        if (has_later) {
          wait_for(&m.gradient_full[1][turns[1].index], turns[1].parity);
          begin_products();
          multiply_columns(sums, across_sum(m.gradients[1][turns[1].index], 0), keys1, has_earlier);
          end_product_group();
        }
        wait_for_products<0>();
        if (has_earlier) {
          arrive(&m.gradient_empty[0][turns[0].index]);
          turns[0].advance();
        }
        if (has_later) {
          arrive(&m.gradient_empty[1][turns[1].index]);
          turns[1].advance();
        }
        add_to_sums<64, kExact>(to, sums, split, t.rest);
        to += kSums;
      }
      to += static_cast<std::int64_t>(t.jobs.sum_tiles - tiles) * kSums;
      if constexpr (kExact) splits += t.jobs.query_tiles;
    }
    arrive(&m.job_empty[job_turn.index]);
    job_turn.advance();
  }
}

/// dk and dv of 64 keys, those of half `half` of each tile.
template <bool kDocuments, bool kCaps, bool kIsBlock>
__device__ __forceinline__ void add_to_keys(const BackwardTensors<kIsBlock>& t,
                                            BackwardMemory<BackwardShape<64>>& m, int half) {
  constexpr int kStages = BackwardShape<64>::kStages;
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
    const std::uint64_t keys = along_sum(m.keys[job_turn.index][0][half]);
    const std::uint64_t values = along_sum(m.values[job_turn.index][0][half]);

    float dk[32], dv[32], scores[32], gradients[32];
    std::uint32_t p[4][4], ds[4][4];
    LaneValues<float> lse, delta;
#pragma unroll
    for (int i = 0; i < 32; ++i) dk[i] = dv[i] = 0.0F;
    // Of the tiles of a head the first `skipped` do not see these keys, nor those from `end` on.
    const int skipped = skipped_tiles<kIsBlock>(m.jobs[job_turn.index], half);
    const int end = tiles - cut_tiles<kDocuments>(m.jobs[job_turn.index], half);
    const KeySight<kDocuments, kIsBlock, kCaps> sight(t.jobs, m.jobs[job_turn.index], half);
    int tile = skipped, left = t.jobs.per_job * (end - skipped);
    const auto skip = [&] {
      wait_for(&m.full[turn.index], turn.parity);
      arrive(&m.empty[turn.index]);
      turn.advance();
    };
    bool is_later = false;  // of the queries that come next
    if (left > 0) {
      if (skipped != 0) skip();
      wait_for(&m.full[turn.index], turn.parity);
      begin_products();
      multiply_rows(scores, keys, q0 + turn.index * kNextTile);
      end_product_group();
      lse.load(m.lse[turn.index]);
      is_later = sight.begins_later(m.first_keys[turn.index]);
      wait_for_products<0>();
    } else {
      for (int i = 0; i < t.jobs.per_job * tiles; ++i) skip();
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
      if (++tile == end) {
        tile = skipped;
        if (cut_tiles<kDocuments>(m.jobs[job_turn.index], half) != 0) skip();
        if (skipped != 0 && left > 1) skip();
      }
      // After the last tile its scores once more, for nothing: a branch there would make the
      // compiler wait for each product.
      const Turn<kStages> next = left > 1 ? turn : here;
      const int* const first_keys = m.first_keys[here.index];
      // Whether products are small is asked behind it: they are there until then.
      const bool is_done =
          kCaps && sight.hides_nothing(now, skipped, is_later) &&
          __all_sync(0xffffffffU,
                     t.small_cap.holds(make_small_probabilities(scores, t.small_cap, lse, p, ds)));
      if (!is_done) {
        if constexpr (kCaps) bend(scores, multiply_all(scores, t.cap_factor));
        sight.hide_unseen(scores, now, skipped, first_keys, is_later);
        make_probabilities<kCaps>(scores, t.scale_log2, lse, p, ds);
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
        ds[i / 8][i / 2 % 4] =
            score_gradients<kCaps>((kCaps ? ds : p)[i / 8][i / 2 % 4], gradients[i] - delta.of[j],
                                   gradients[i + 1] - delta.of[j + 1]);
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
      is_later = sight.begins_later(m.first_keys[next.index]);
      wait_for_products<1>();
    }
    wait_for_products<0>();
    if (done >= 0) arrive(&m.empty[done]);
    const Job job = m.jobs[job_turn.index];
    const int first = job.key_tile * kKeyTile + half * 64;
    arrive(&m.job_empty[job_turn.index]);
    job_turn.advance();
    const auto store = [&](const float(&sums)[32], float factor,
                           const HeadView<ResultOf<Bf16, kIsBlock>>& to) {
      put_sums(sums, factor, to.at(job.batch, first, job.group), to.position, t.jobs.keys - first);
    };
    store(dk, t.scale, t.dk);
    store(dv, 1.0F, t.dv);
  }
}

template <bool kDocuments, bool kExact, bool kCaps, bool kIsBlock>
__global__ void __launch_bounds__(BackwardShape<64>::kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardTensors<kIsBlock> tensors) {
  using S = BackwardShape<64>;
  extern __shared__ unsigned char raw[];
  auto& m = *reinterpret_cast<BackwardMemory<S>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  if (threadIdx.x == 0) init_barriers(m);
  __syncthreads();
  const int warpgroup = uniform(warp_id() / 4);
  if (warpgroup == 3) {
    give_registers<24>();
    if (threadIdx.x == 3 * 128) copy_tiles<S, kDocuments>(tensors, m);
  } else if (warpgroup == 2) {
    give_registers<72>();
    add_to_queries<kDocuments, kExact>(tensors, m);
  } else {
    take_registers<208>();
    add_to_keys<kDocuments, kCaps>(tensors, m, warpgroup);
  }
}

}  // namespace heddle::ops::cuda::hopper
