#pragma once

// Device code only, of Hopper. The gradients of attention with heads 128 wide: the two warpgroups
// have half the columns of dq each, made of the gradients of scores of all keys, which they leave
// in shared memory. Each makes dq of the tile of queries before the one it is at, when the other's
// gradients are long there: they do not wait for each other, and one multiplies while the other
// makes exponentials.

#include "ops/cuda/attention_hopper_backward_scores.h"
#include "ops/cuda/attention_hopper_backward_sums.h"

namespace heddle::ops::cuda::hopper {

/// dk and dv of 64 keys, those of half `half` of each tile, and 64 columns of dq.
template <bool kDocuments, bool kExact, bool kCaps, bool kAddsKeys>
__device__ __forceinline__ void add_to_all(const BackwardTensors<kAddsKeys>& t,
                                           BackwardMemory<BackwardShape<128>>& m, int half) {
  using S = BackwardShape<128>;
  Turn<S::kJobs> job_turn;
  Turn<S::kStages> turn;
  Turn<kGradientTiles> gradient_turn;
  const int row = warp_id() % 4 * 16;
  constexpr int kSums = kTileSums<S::kWidth, kExact>;  // of dq
  constexpr int kBlock = kTileBytes >> 4, kKeyBlock = 2 * kBlock, kNextTile = S::kBlocks * kBlock;
  const std::uint64_t q0 = along_sum(m.q), dout0 = along_sum(m.dout);
  const std::uint64_t q0_across = across_sum(m.q, kTileBytes);
  const std::uint64_t dout0_across = across_sum(m.dout, kTileBytes);
  for (;;) {
    wait_for(&m.job_full[job_turn.index], job_turn.parity);
    const Job& job = m.jobs[job_turn.index];
    const int tiles = uniform(job.tiles);
    if (tiles == 0) return;
    const std::uint64_t keys = along_sum(m.keys[job_turn.index][0][half]);
    const std::uint64_t values = along_sum(m.values[job_turn.index][0][half]);
    const std::uint64_t keys_across = across_sum(m.keys[job_turn.index][half], 0);
    float* to;
    {
      const int head = job.batch * t.jobs.heads + job.head;
      const std::int64_t first = static_cast<std::int64_t>(head) * t.jobs.sum_tiles;
      to = t.dq_sums + (first + job.first_tile) * kSums + half * 4096 + threadIdx.x % 128 * 4;
    }
    const float* splits = nullptr;  // of the tile whose dq comes next
    if constexpr (kExact) {
      splits =
          t.splits + (job.batch * t.jobs.heads + job.head) * t.jobs.query_tiles + job.first_tile;
    }
    const KeySight<kDocuments, true, kCaps> sight(t.jobs, job, half);

    float dk[64], dv[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) dk[i] = dv[i] = 0.0F;
    const auto wait_for_gradients = [&](const Turn<kGradientTiles>& at) {
      wait_for(&m.gradient_full[0][at.index], at.parity);
      wait_for(&m.gradient_full[1][at.index], at.parity);
    };
    const auto multiply_gradients = [&](float(&dq)[32], int from) {
      multiply_columns(dq, across_sum(m.gradients[0][from], 0), keys_across, false);
      multiply_columns(dq, across_sum(m.gradients[1][from], 0), keys_across + kBlock, true);
      end_product_group();
    };
    int added = 0;  // tiles of a head whose dq is done
    const auto add_to_queries = [&](const float(&dq)[32], float split) {
      add_to_sums<S::kWidth, kExact>(to, dq, split, t.rest);
      to += kSums;
      if constexpr (kExact) ++splits;
      if (++added == tiles) {
        added = 0;
        to += static_cast<std::int64_t>(t.jobs.sum_tiles - tiles) * kSums;
        if constexpr (kExact) splits += t.jobs.query_tiles - tiles;
      }
    };
    // Of the tiles of a head the first `skipped` do not see these keys, nor those from `end` on.
    const int skipped = kDocuments ? skipped_tiles<true>(job, half) : 0;
    const int end = tiles - cut_tiles<kDocuments>(job, half);
    int done = -1;  // the stage of the tile before, whose dk is under way
    int tile = 0;
#pragma unroll 1
    for (int left = t.jobs.per_job * tiles; left > 0; --left) {
      float scores[32], gradients[32];
      std::uint32_t p[4][4], ds[4][4];
      const int stage = turn.index;
      wait_for(&m.full[stage], turn.parity);
      turn.advance();
      if (kDocuments && (tile < skipped || tile >= end)) {
        wait_for_products<0>();
        settle(dk);
        if (done >= 0) arrive(&m.empty[done]);
        wait_for(&m.gradient_empty[half][gradient_turn.index], gradient_turn.parity ^ 1);
        constexpr std::uint32_t kNone[4] = {};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          store_block(shared_address(m.gradients[half][gradient_turn.index]), row, k, kNone);
        }
        fence_shared_writes();
        arrive(&m.gradient_full[half][gradient_turn.index]);
        const float split = kExact ? *splits : 0.0F;
        const Turn<kGradientTiles> last = gradient_turn.before();
        if (done >= 0) wait_for_gradients(last);
        float dq[32];
        begin_products();
        multiply_gradients(dq, last.index);
        wait_for_products<0>();
        settle(dq);
        if (done >= 0) {
          arrive(&m.gradient_empty[half ^ 1][last.index]);
          add_to_queries(dq, split);
        }
        done = stage;
        gradient_turn.advance();
        if (++tile == tiles) tile = 0;
        continue;
      }
      begin_products();
      multiply_rows<S::kBlocks>(scores, keys, kKeyBlock, q0 + stage * kNextTile, kBlock);
      end_product_group();
      multiply_rows<S::kBlocks>(gradients, values, kKeyBlock, dout0 + stage * kNextTile, kBlock);
      end_product_group();
      const int* const first_keys = m.first_keys[stage];
      const bool is_later = sight.begins_later(first_keys);
      wait_for_products<1>();
      settle(dk);
      settle(scores);
      if (done >= 0) arrive(&m.empty[done]);
      LaneValues<float> row_values;
      if (kCaps && sight.hides_nothing(tile, 0, is_later) && are_all_small(scores, t.small_cap)) {
        row_values.load(m.lse[stage]);
        make_small_probabilities(scores, t.small_cap, row_values, p, ds);
      } else {
        if constexpr (kCaps) bend(scores, multiply_all(scores, t.cap_factor));
        sight.hide_unseen(scores, tile, 0, first_keys, is_later);
        row_values.load(m.lse[stage]);
        make_probabilities<kCaps>(scores, t.scale_log2, row_values, p, ds);
      }
      begin_products();
      multiply_left(dv, p, dout0_across + stage * kNextTile);
      end_product_group();
      row_values.load(m.delta[stage]);
      wait_for_products<1>();
      settle(gradients);
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        const int j = i / 4 * 2;
        ds[i / 8][i / 2 % 4] = score_gradients<kCaps>((kCaps ? ds : p)[i / 8][i / 2 % 4],
                                                      gradients[i] - row_values.of[j],
                                                      gradients[i + 1] - row_values.of[j + 1]);
      }
      wait_for(&m.gradient_empty[half][gradient_turn.index], gradient_turn.parity ^ 1);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        store_block(shared_address(m.gradients[half][gradient_turn.index]), row, k, ds[k]);
      }
      fence_shared_writes();
      arrive(&m.gradient_full[half][gradient_turn.index]);
      // dq of the tile before: the other's gradients are there. Of the first tile, of nothing.
      const float split = kExact ? *splits : 0.0F;
      const bool is_first = done < 0;
      const Turn<kGradientTiles> last = gradient_turn.before();
      if (!is_first) wait_for_gradients(last);
      float dq[32];
      begin_products();
      multiply_gradients(dq, last.index);
      multiply_left(dk, ds, q0_across + stage * kNextTile);
      end_product_group();
      wait_for_products<1>();
      settle(dv);
      settle(dq);
      if (!is_first) {
        arrive(&m.gradient_empty[half ^ 1][last.index]);
        add_to_queries(dq, split);
      }
      done = stage;
      gradient_turn.advance();
      if (++tile == tiles) tile = 0;
    }
    const Turn<kGradientTiles> last = gradient_turn.before();
    wait_for_gradients(last);
    float dq[32];
    begin_products();
    multiply_gradients(dq, last.index);
    wait_for_products<0>();
    settle(dk);
    settle(dq);
    arrive(&m.empty[done]);
    arrive(&m.gradient_empty[half ^ 1][last.index]);
    add_to_queries(dq, kExact ? *splits : 0.0F);
    const int batch = job.batch, keys_of = job.head / t.jobs.share,
              first = job.key_tile * kKeyTile + half * 64;
    arrive(&m.job_empty[job_turn.index]);
    job_turn.advance();
    const auto put = [&](const float(&sums)[64], float factor, const auto& to) {
#pragma unroll
      for (int c = 0; c < S::kBlocks; ++c) {
        float part[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) part[i] = sums[32 * c + i];
        put_sums(part, factor, to.at(batch, first, keys_of) + 64 * c, to.position,
                 t.jobs.keys - first);
      }
    };
    put(dk, t.scale, t.dk);
    put(dv, 1.0F, t.dv);
  }
}

template <bool kDocuments, bool kExact, bool kCaps, bool kAddsKeys>
__global__ void __launch_bounds__(BackwardShape<128>::kThreads, 1)
    wide_backward_kernel(const __grid_constant__ BackwardTensors<kAddsKeys> tensors) {
  using S = BackwardShape<128>;
  extern __shared__ unsigned char raw[];
  auto& m = *reinterpret_cast<BackwardMemory<S>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  if (threadIdx.x == 0) init_barriers(m);
  __syncthreads();
  const int warpgroup = uniform(warp_id() / 4);
  if (warpgroup == 2) {
    give_registers<24>();
    if (threadIdx.x == 2 * 128) copy_tiles<S, kDocuments>(tensors, m);
  } else {
    take_registers<240>();
    add_to_all<kDocuments, kExact, kCaps>(tensors, m, warpgroup);
  }
}

}  // namespace heddle::ops::cuda::hopper
