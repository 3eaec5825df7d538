#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/attention.h"
#include "ops/cpu/attention_problem.h"
#include "ops/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/attention_tile-inl.h"

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
  T* lse;  // [batch, heads, queries]
  std::int64_t blocks, blocks_per_task, tasks_per_head;
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
  T *q_transposed, *out;           ///< [padded width][kBlockRows] and its transpose
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
  transpose_rows(p.width, static_cast<T>(p.scale * kLog2E), rows, block.q_transposed);
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

template <class T>
void finish_block(const ForwardCall<T>& call, std::int64_t b, std::int64_t g,
                  ForwardBlock<T>& block) {
  const AttentionProblem& p = call.problem;
  const hn::ScalableTag<T> d;
  alignas(64) T lse[kBlockRows];
  for (std::int64_t column = 0; column < kBlockRows; column += kLanes<T>) {
    const auto log_sum = hn::Log(d, hn::Load(d, block.sum + column));
    const auto max = hn::Load(d, block.max + column);
    hn::Store(hn::MulAdd(max, hn::Set(d, static_cast<T>(kLn2)), log_sum), d, lse + column);
  }
  for (std::int64_t i = 0; i < block.mask.rows; ++i) {
    const std::int64_t row = block.mask.row0 + i;
    const std::int64_t s = p.query_of(row), h = p.head_of(g, row);
    copy_scaled(block.out + i * padded_width<T>(p.width), p.width, T{1} / block.sum[i],
                call.out.at(b, s, h));
    call.lse[(b * p.heads + h) * p.queries + s] = lse[i];
  }
}

template <class T>
void forward_task(const ForwardCall<T>& call, std::int64_t task) {
  const AttentionProblem& p = call.problem;
  const std::int64_t stride = padded_width<T>(p.width);
  // The longest tasks, those of the last rows, come first.
  const std::int64_t heads = p.batch * p.groups, part = call.tasks_per_head - 1 - task / heads;
  const std::int64_t b = task % heads / p.groups, g = task % p.groups;
  const std::int64_t block0 = part * call.blocks_per_task;
  const std::int64_t count = std::min(call.blocks_per_task, call.blocks - block0);

  ForwardBlock<T> blocks[kMaxBlocksPerTask];
  T *keys = nullptr, *values = nullptr, *scores = nullptr;
  const auto carve = [&](T* base) {
    Carver<T> scratch(base);
    keys = scratch.take(kTileKeys * stride);
    values = scratch.take(kTileKeys * stride);
    scores = scratch.take(kTileKeys * kBlockRows);
    for (std::int64_t n = 0; n < count; ++n) {
      blocks[n].q_transposed = scratch.take(stride * kBlockRows);
      blocks[n].out = scratch.take(kBlockRows * stride);
    }
    return scratch.used_bytes();
  };
  carve(reinterpret_cast<T*>(Scratch::of_this_thread().at_least(carve(nullptr))));

  for (std::int64_t n = 0; n < count; ++n) start_block(call, b, g, block0 + n, blocks[n]);
  const std::int64_t end = blocks[count - 1].mask.last_key + 1;
  std::int64_t key0 = blocks[0].mask.first_key / kTileKeys * kTileKeys;
  for (; key0 < end; key0 += kTileKeys) {
    for (std::int64_t j = 0; j < std::min(kTileKeys, end - key0); ++j) {
      copy_padded(call.k.at(b, key0 + j, g), p.width, keys + j * stride);
      copy_padded(call.v.at(b, key0 + j, g), p.width, values + j * stride);
    }
    for (std::int64_t n = 0; n < count; ++n) {
      const Tile<T> tile(blocks[n].mask, key0);
      if (tile.is_empty()) continue;
      multiply_keys_by_rows(tile, p.width, keys, blocks[n].q_transposed, scores);
      softmax_tile(tile, scores, blocks[n]);
      add_keys_to_rows<T>(tile, p.width, scores, values,
                          blocks[n].is_new ? Start::zero : Start::scale, blocks[n].kept,
                          blocks[n].out);
      blocks[n].is_new = false;
    }
  }
  for (std::int64_t n = 0; n < count; ++n) finish_block(call, b, g, blocks[n]);
}

void forward_task_f32(const ForwardCall<float>& call, std::int64_t task) {
  forward_task(call, task);
}
void forward_task_f64(const ForwardCall<double>& call, std::int64_t task) {
  forward_task(call, task);
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops {
namespace cpu {
namespace {

HWY_EXPORT(forward_task_f32);
HWY_EXPORT(forward_task_f64);

void run_task(const ForwardCall<float>& call, std::int64_t task) {
  HWY_DYNAMIC_DISPATCH(forward_task_f32)(call, task);
}
void run_task(const ForwardCall<double>& call, std::int64_t task) {
  HWY_DYNAMIC_DISPATCH(forward_task_f64)(call, task);
}

template <class T>
void forward(const AttentionProblem& problem, const Tensor& q_BSHK, const Tensor& k_BTGK,
             const Tensor& v_BTGK, const Tensor& out_BSHK, const Tensor& lse_BHS, Stream& stream) {
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
                            .lse = lse_BHS.data<T>(),
                            .blocks = blocks,
                            .blocks_per_task = per_task,
                            .tasks_per_head = blocks_in(blocks, per_task)};
  parallel_items(stream, heads * call.tasks_per_head,
                 [&](std::int64_t task) { run_task(call, task); });
}

}  // namespace
}  // namespace cpu

void attention_forward(const Tensor& q_BSHK, const Tensor& k_BTGK, const Tensor& v_BTGK,
                       const AttentionMask& mask, double scale, const Tensor& out_BSHK,
                       const Tensor& lse_BHS, Stream& stream) {
  const cpu::AttentionProblem problem(q_BSHK, k_BTGK, v_BTGK, mask, scale);
  HEDDLE_CHECK(out_BSHK.shape() == q_BSHK.shape(), "out {}", out_BSHK.shape().text());
  HEDDLE_CHECK(lse_BHS.shape() == (Shape{problem.batch, problem.heads, problem.queries}) &&
                   lse_BHS.is_contiguous(),
               "lse {}", lse_BHS.shape().text());
  if (q_BSHK.count() == 0) return;
  if (q_BSHK.dtype() == DType::f64) {
    cpu::forward<double>(problem, q_BSHK, k_BTGK, v_BTGK, out_BSHK, lse_BHS, stream);
  } else {
    cpu::forward<float>(problem, q_BSHK, k_BTGK, v_BTGK, out_BSHK, lse_BHS, stream);
  }
}

}  // namespace heddle::ops
#endif
