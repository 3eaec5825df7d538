#include <algorithm>

#include "ops/attention.h"
#include "ops/cpu/attention_problem.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/attention_tile-inl.h"
#include "ops/cpu/dispatch-inl.h"

#ifndef HEDDLE_OPS_CPU_ATTENTION_FORWARD_ONCE
#define HEDDLE_OPS_CPU_ATTENTION_FORWARD_ONCE
namespace heddle::ops::cpu {

/// A call is cut into tasks: some consecutive blocks of rows of one (batch, key head). A task walks
/// over the keys once, so a tile of keys is copied once for all its blocks.
template <class T>
struct ForwardCall {
  AttentionProblem problem;
  HeadView<const T> q, k, v;
  HeadView<T> out;
  StatisticsView<T> lse;
  KeyBlock key_block;
  std::int64_t blocks, blocks_per_task, tasks_per_head;
  std::int64_t threads;

  std::int64_t tasks() const { return problem.batch * problem.groups * tasks_per_head; }
};

/// What a task covers.
struct ForwardTask {
  std::int64_t b, g, block0, blocks;
  std::int64_t row0, rows, first_key, last_key;

  template <class T>
  ForwardTask(const ForwardCall<T>& call, std::int64_t index) {
    const AttentionProblem& p = call.problem;
    const std::int64_t pairs = p.batch * p.groups;
    b = index % pairs / p.groups;
    g = index % p.groups;
    // The longest tasks, those of the last rows, come first.
    block0 = (call.tasks_per_head - 1 - index / pairs) * call.blocks_per_task;
    blocks = std::min(call.blocks_per_task, call.blocks - block0);
    row0 = block0 * kBlockRows;
    rows = std::min(blocks * kBlockRows, p.rows() - row0);
    first_key = p.first_key_of(b, row0);
    last_key = p.last_key_of(row0 + rows - 1);
  }
  TileRange tiles() const { return {first_key, last_key}; }
};

inline constexpr std::int64_t kMaxBlocksPerTask = 8;

}  // namespace heddle::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

/// What a block of rows carries from tile to tile.
template <class T>
struct ForwardBlock {
  BlockMask<T> mask;
  alignas(64) T max[kBlockRows], sum[kBlockRows];  ///< of scores in base 2
  alignas(64) T kept[kBlockRows];  ///< what the newest maximum leaves of older terms
  bool is_new;                     ///< no tile has been added
  T *q_transposed, *out;           ///< [padded width][kBlockRows], [kBlockRows][padded width]
};

template <class T>
void start_block(const ForwardCall<T>& call, std::int64_t b, std::int64_t g, std::int64_t index,
                 ForwardBlock<T>& block) {
  const AttentionProblem& p = call.problem;
  const std::int64_t stride = padded_width<T>(p.width);
  block.mask.set(p, b, index);
  // Finite, so that the difference to a row's first maximum is a number.
  std::fill_n(block.max, kBlockRows, std::numeric_limits<T>::lowest());
  std::fill_n(block.sum, kBlockRows, T{0});
  T* const rows = block.out;  // free until the first tile
  for (std::int64_t i = 0; i < block.mask.rows; ++i) {
    const std::int64_t row = block.mask.row0 + i;
    copy_padded(call.q.at(b, p.query_of(row), p.head_of(g, row)), p.width, rows + i * stride);
  }
  std::fill(rows + block.mask.rows * stride, rows + kBlockRows * stride, T{0});
  transpose_rows(p.width, static_cast<T>(p.rule.scale * kLog2E), rows, block.q_transposed);
  block.is_new = true;
}

/// Turns scores into 2^(score - max) and moves the block's maxima and sums on.
template <class T>
void softmax_tile(const Tile<T>& tile, T* s, ForwardBlock<T>& block) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  for (std::int64_t column = 0; column < tile.block.vectors() * kLanes<T>; column += kLanes<T>) {
    const std::int64_t seen = tile.keys_until(column + kLanes<T> - 1);
    T* const line = s + column;
    const V old_max = hn::Load(d, block.max + column);
    V max = old_max, max2 = old_max;
    if (tile.masked) {
      for (std::int64_t j = 0; j < seen; ++j) {
        const V score = masked_score(d, tile, j, column, hn::Load(d, line + j * kBlockRows));
        hn::Store(score, d, line + j * kBlockRows);
        max = hn::Max(max, score);
      }
    } else {
      std::int64_t j = 0;
      for (; j + 2 <= seen; j += 2) {
        max = hn::Max(max, hn::Load(d, line + j * kBlockRows));
        max2 = hn::Max(max2, hn::Load(d, line + (j + 1) * kBlockRows));
      }
      if (j < seen) max = hn::Max(max, hn::Load(d, line + j * kBlockRows));
      max = hn::Max(max, max2);
    }
    V sum = hn::Zero(d), sum2 = hn::Zero(d);
    std::int64_t j = 0;
    for (; j + 2 <= seen; j += 2) {
      const V p = exp2(d, hn::Sub(hn::Load(d, line + j * kBlockRows), max));
      const V p2 = exp2(d, hn::Sub(hn::Load(d, line + (j + 1) * kBlockRows), max));
      hn::Store(p, d, line + j * kBlockRows);
      hn::Store(p2, d, line + (j + 1) * kBlockRows);
      sum = hn::Add(sum, p);
      sum2 = hn::Add(sum2, p2);
    }
    if (j < seen) {
      const V p = exp2(d, hn::Sub(hn::Load(d, line + j * kBlockRows), max));
      hn::Store(p, d, line + j * kBlockRows);
      sum = hn::Add(sum, p);
    }
    clear_lines(s, column, seen, tile.keys);
    const V kept = exp2(d, hn::Sub(old_max, max));
    hn::Store(max, d, block.max + column);
    hn::Store(kept, d, block.kept + column);
    const V total = hn::MulAdd(hn::Load(d, block.sum + column), kept, hn::Add(sum, sum2));
    hn::Store(total, d, block.sum + column);
  }
}

/// What the block's rows become: divided by their sums, and written or merged.
template <class T>
void finish_block(const ForwardCall<T>& call, std::int64_t b, std::int64_t g,
                  ForwardBlock<T>& block) {
  const AttentionProblem& p = call.problem;
  const std::int64_t stride = padded_width<T>(p.width);
  const hn::ScalableTag<T> d;
  RowMerge<T> merge;
  for (std::int64_t column = 0; column < kBlockRows; column += kLanes<T>) {
    const auto log_sum = hn::Log(d, hn::Load(d, block.sum + column));
    const auto max = hn::Load(d, block.max + column);
    hn::Store(hn::MulAdd(max, hn::Set(d, static_cast<T>(kLn2)), log_sum), d,
              merge.new_lse + column);
  }
  for (std::int64_t i = 0; i < kBlockRows; ++i) {
    if (i >= block.mask.rows || block.mask.sees_none(i)) merge.new_lse[i] = kNoKeys<T>;
  }
  const auto for_rows = [&](const auto& body) {
    for (std::int64_t i = 0; i < block.mask.rows; ++i) {
      const std::int64_t row = block.mask.row0 + i;
      const std::int64_t s = p.query_of(row), h = p.head_of(g, row);
      body(i, block.out + i * stride, call.out.at(b, s, h), call.lse.at(b, h, s));
    }
  };
  if (call.key_block == KeyBlock::first) {
    for_rows([&](std::int64_t i, const T* row, T* out, T* lse) {
      *lse = merge.new_lse[i];
      if (block.mask.sees_none(i)) {
        std::fill_n(out, p.width, T{0});
      } else {
        copy_scaled(row, p.width, T{1} / block.sum[i], out);
      }
    });
    return;
  }
  std::fill_n(merge.old_lse, kBlockRows, kNoKeys<T>);
  for_rows([&](std::int64_t i, const T*, T*, const T* lse) { merge.old_lse[i] = *lse; });
  merge.compute();
  for_rows([&](std::int64_t i, const T* row, T* out, T* lse) {
    merge.apply(i, row, p.width, T{1} / block.sum[i], out, lse);
  });
}

/// What to bring in while the arithmetic of tile t of `tiles` runs: the next tile of keys, and a
/// share of the task's own output and of what the thread's next task will need first.
template <class T>
void plan_prefetch(const ForwardCall<T>& call, const ForwardTask& task, const ForwardTask& next,
                   std::int64_t t, std::int64_t tiles, Prefetcher& prefetcher) {
  const AttentionProblem& p = call.problem;
  const auto add_queries = [&](const auto& view, const ForwardTask& of) {
    const Share rows(of.rows, t, tiles);
    prefetcher.add(view, of.b, p.query_of(of.row0 + rows.begin), p.query_of(of.row0 + rows.end),
                   of.g * p.group(), p.group(), p.width);
  };
  const auto add_keys = [&](const ForwardTask& of, std::int64_t begin, std::int64_t end) {
    const std::int64_t stop = std::min(end, of.last_key + 1);
    prefetcher.add(call.k, of.b, begin, stop, of.g, 1, p.width);
    prefetcher.add(call.v, of.b, begin, stop, of.g, 1, p.width);
  };
  const std::int64_t key0 = (task.first_key / kTileKeys + t + 1) * kTileKeys;
  const std::int64_t next_key0 = next.first_key / kTileKeys * kTileKeys;
  const Share share(kTileKeys, t, tiles);
  prefetcher.clear();
  add_keys(task, key0, key0 + kTileKeys);
  add_queries(call.out, task);
  add_queries(call.q, next);
  add_keys(next, next_key0 + share.begin, next_key0 + share.end);
  // The last tiles are seen by the last blocks only.
  const std::int64_t blocks = std::min(task.blocks, tiles - t);
  prefetcher.spread(2 * kStripsPerProduct * blocks);
}

template <class T>
void run_tile(const ForwardCall<T>& call, const Tile<T>& tile, const T* keys, const T* values,
              T* scores, ForwardBlock<T>& block, Prefetcher& prefetcher) {
  const std::int64_t width = call.problem.width;
  multiply_keys_by_rows(tile, width, keys, block.q_transposed, scores, prefetcher);
  if (const double cap = call.problem.rule.cap; cap > 0.0) cap_scores(tile, cap, scores);
  softmax_tile(tile, scores, block);
  add_keys_to_rows<T>(tile, width, scores, values, block.is_new ? Start::zero : Start::scale,
                      block.kept, block.out, prefetcher);
  block.is_new = false;
}

template <class T>
void forward_task(const ForwardCall<T>& call, std::int64_t index) {
  const AttentionProblem& p = call.problem;
  const std::int64_t stride = padded_width<T>(p.width);
  const ForwardTask task(call, index);
  const ForwardTask next(call, std::min(index + call.threads, call.tasks() - 1));
  const TileRange tiles = task.tiles();
  if (tiles.count() == 0 && call.key_block == KeyBlock::further) return;

  Prefetcher prefetcher;
  ForwardBlock<T> blocks[kMaxBlocksPerTask];
  T *keys = nullptr, *values = nullptr, *scores = nullptr;
  const auto carve = [&](T* base) {
    Carver<T> scratch(base);
    keys = scratch.take(kTileKeys * stride);
    values = scratch.take(kTileKeys * stride);
    scores = scratch.take(kTileKeys * kBlockRows);
    for (std::int64_t n = 0; n < task.blocks; ++n) {
      blocks[n].q_transposed = scratch.take(stride * kBlockRows);
      blocks[n].out = scratch.take(kBlockRows * stride);
    }
    return scratch.used_bytes();
  };
  carve(reinterpret_cast<T*>(Scratch::of_this_thread().at_least(carve(nullptr))));

  for (std::int64_t n = 0; n < task.blocks; ++n) {
    start_block(call, task.b, task.g, task.block0 + n, blocks[n]);
  }
  for (std::int64_t t = 0; t < tiles.count(); ++t) {
    const std::int64_t key0 = (tiles.begin + t) * kTileKeys;
    for (std::int64_t j = 0; j < std::min(kTileKeys, task.last_key + 1 - key0); ++j) {
      copy_padded(call.k.at(task.b, key0 + j, task.g), p.width, keys + j * stride);
      copy_padded(call.v.at(task.b, key0 + j, task.g), p.width, values + j * stride);
    }
    plan_prefetch(call, task, next, t, tiles.count(), prefetcher);
    for (std::int64_t n = 0; n < task.blocks; ++n) {
      const Tile<T> tile(blocks[n].mask, key0);
      if (!tile.is_empty()) run_tile(call, tile, keys, values, scores, blocks[n], prefetcher);
    }
  }
  for (std::int64_t n = 0; n < task.blocks; ++n) finish_block(call, task.b, task.g, blocks[n]);
}

void forward_task_f32(const ForwardCall<float>& call, std::int64_t task) {
  forward_task(call, task);
}
#if HWY_TARGET == HWY_STATIC_TARGET  // see dispatch-inl.h
void forward_task_f64(const ForwardCall<double>& call, std::int64_t task) {
  forward_task(call, task);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
namespace {

HWY_EXPORT(forward_task_f32);

void run_task(const ForwardCall<float>& call, std::int64_t task) {
  HWY_DYNAMIC_DISPATCH(forward_task_f32)(call, task);
}
void run_task(const ForwardCall<double>& call, std::int64_t task) {
  HWY_STATIC_DISPATCH(forward_task_f64)(call, task);
}

template <class T>
void forward(const AttentionProblem& problem, const Tensor& q_BSHK, const Tensor& k_BTGK,
             const Tensor& v_BTGK, KeyBlock key_block, const Tensor& out_BSHK,
             const Tensor& lse_BHS, Stream& stream) {
  const std::int64_t blocks = blocks_in(problem.rows(), kBlockRows);
  const std::int64_t heads = problem.batch * problem.groups;
  // Enough tasks to keep all threads busy to the end. Results do not depend on the cut: a row's
  // sums run over tiles that start at fixed keys.
  const std::int64_t per_thread = blocks * heads / (4 * std::max(stream.threads(), 1));
  const std::int64_t per_task = std::clamp<std::int64_t>(per_thread, 1, kMaxBlocksPerTask);
  const ForwardCall<T> call{.problem = problem,
                            .q = HeadView<const T>(q_BSHK),
                            .k = HeadView<const T>(k_BTGK),
                            .v = HeadView<const T>(v_BTGK),
                            .out = HeadView<T>(out_BSHK),
                            .lse = StatisticsView<T>(lse_BHS),
                            .key_block = key_block,
                            .blocks = blocks,
                            .blocks_per_task = per_task,
                            .tasks_per_head = blocks_in(blocks, per_task),
                            .threads = stream.threads()};
  parallel_items(stream, call.tasks(), [&](std::int64_t task) { run_task(call, task); });
}

}  // namespace

void attention_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                       const AttentionMask& mask, const ScoreRule& rule, const Tensor& out_BSHK,
                       const Tensor& lse_BHS, Stream& stream) {
  attention_block_forward(q_BSHK, k_BTGK, v_BTGK, mask, rule, KeyBlock::first, out_BSHK, lse_BHS,
                          stream);
}

void attention_block_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                             const AttentionMask& mask, const ScoreRule& rule, KeyBlock block,
                             const Tensor& out_BSHK, const Tensor& lse_BHS, Stream& stream) {
  const AttentionProblem problem(q_BSHK, k_BTGK, mask, rule);
  if (q_BSHK.count() == 0) return;
  visit_float(q_BSHK.dtype(), [&](auto zero) {
    forward<decltype(zero)>(problem, q_BSHK, k_BTGK, v_BTGK, block, out_BSHK, lse_BHS, stream);
  });
}

}  // namespace heddle::ops::cpu
#endif
