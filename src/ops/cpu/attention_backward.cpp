#include <algorithm>

#include "ops/attention.h"
#include "ops/cpu/attention_problem.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/attention_tile-inl.h"
#include "ops/cpu/dispatch-inl.h"

#ifndef HEDDLE_OPS_CPU_ATTENTION_BACKWARD_ONCE
#define HEDDLE_OPS_CPU_ATTENTION_BACKWARD_ONCE
namespace heddle::ops::cpu {

template <class T>
struct BackwardCall {
  AttentionProblem problem;
  HeadView<const T> dout, q, k, v, out;
  const T* lse;  // [batch, heads, queries]
  HeadView<T> dq, dk, dv;
  T* delta;  // like lse: the sum over K of dout * out
};

/// A part of one (batch, key head): the tiles of some blocks of rows and some tiles of keys, and
/// which gradients to take from them. A gradient is only right if the part holds all its terms:
/// all tiles for dq, all blocks for dk and dv. delta is written with dq and read without.
struct BackwardPart {
  std::int64_t b, g;
  std::int64_t block_begin, block_end, tile_begin, tile_end;
  bool wants_dq, wants_dkv;
  std::int64_t next_pair;  ///< b * groups + g of the part that this thread will probably run next
};

}  // namespace heddle::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

/// A block of rows in scratch.
template <class T>
struct BackwardBlock {
  BlockMask<T> mask;
  bool is_new;                                       ///< nothing has been added to dq
  alignas(64) T lse[kBlockRows], delta[kBlockRows];  ///< lse in base 2
  T *q_transposed, *dout_transposed;                 ///< [padded width][kBlockRows], q in base 2
  T *q, *dout, *dq;                                  ///< [kBlockRows][padded width]
};

template <class T>
struct BackwardScratch {
  T *k, *v, *dk, *dv;  ///< the part's keys, [keys][padded width]
  T *p, *ds;           ///< [kTileKeys][kBlockRows]
  BackwardBlock<T> block;

  std::size_t carve(T* base, std::int64_t keys, std::int64_t width) {
    const std::int64_t stride = padded_width<T>(width);
    Carver<T> scratch(base);
    for (T** rows : {&k, &v, &dk, &dv}) *rows = scratch.take(keys * stride);
    for (T** tile : {&p, &ds}) *tile = scratch.take(kTileKeys * kBlockRows);
    for (T** columns : {&block.q_transposed, &block.dout_transposed}) {
      *columns = scratch.take(stride * kBlockRows);
    }
    for (T** rows : {&block.q, &block.dout, &block.dq}) *rows = scratch.take(kBlockRows * stride);
    return scratch.used_bytes();
  }
};

template <class T>
T dot(const T* a, const T* b, std::int64_t n) {
  const hn::ScalableTag<T> d;
  auto sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) {
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  }
  T total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

template <class T>
void load_block(const BackwardCall<T>& call, const BackwardPart& part, std::int64_t index,
                BackwardBlock<T>& block) {
  const AttentionProblem& p = call.problem;
  const std::int64_t stride = padded_width<T>(p.width);
  block.mask.set(p, part.b, index);
  std::fill_n(block.lse, kBlockRows, T{0});
  std::fill_n(block.delta, kBlockRows, T{0});
  for (std::int64_t i = 0; i < block.mask.rows; ++i) {
    const std::int64_t row = block.mask.row0 + i;
    const std::int64_t s = p.query_of(row), h = p.head_of(part.g, row);
    const std::int64_t at = (part.b * p.heads + h) * p.queries + s;
    const T* const dout = call.dout.at(part.b, s, h);
    copy_padded(call.q.at(part.b, s, h), p.width, block.q + i * stride);
    copy_padded(dout, p.width, block.dout + i * stride);
    block.lse[i] = call.lse[at] * static_cast<T>(kLog2E);
    if (part.wants_dq) call.delta[at] = dot(dout, call.out.at(part.b, s, h), p.width);
    block.delta[i] = call.delta[at];
  }
  for (T* rows : {block.q, block.dout}) {
    std::fill(rows + block.mask.rows * stride, rows + kBlockRows * stride, T{0});
  }
  transpose_rows(p.width, static_cast<T>(p.scale * kLog2E), block.q, block.q_transposed);
  transpose_rows(p.width, T{1}, block.dout, block.dout_transposed);
  block.is_new = true;
}

/// Turns scores into probabilities and their gradient into that of the scores.
template <class T>
void gradient_tile(const Tile<T>& tile, const BackwardBlock<T>& block, T* p, T* ds) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  for (std::int64_t column = 0; column < tile.block.vectors() * kLanes<T>; column += kLanes<T>) {
    const std::int64_t seen = tile.keys_until(column + kLanes<T> - 1);
    const V lse = hn::Load(d, block.lse + column), delta = hn::Load(d, block.delta + column);
    for (std::int64_t j = 0; j < seen; ++j) {
      T *const p_line = p + j * kBlockRows + column, *const ds_line = ds + j * kBlockRows + column;
      V score = hn::Load(d, p_line);
      if (tile.masked) score = masked_score(d, tile, j, column, score);
      const V probability = exp2(d, hn::Sub(score, lse));
      hn::Store(probability, d, p_line);
      hn::Store(hn::Mul(probability, hn::Sub(hn::Load(d, ds_line), delta)), d, ds_line);
    }
    clear_lines(p, column, seen, tile.keys);
    clear_lines(ds, column, seen, tile.keys);
  }
}

/// What to bring in while the arithmetic of block n runs: the rows of the next block, the place of
/// this block's dq, and a share of dk and dv and of the next part's keys.
template <class T>
void plan_prefetch(const BackwardCall<T>& call, const BackwardPart& part, const BlockMask<T>& block,
                   std::int64_t n, Prefetcher& prefetcher) {
  const AttentionProblem& p = call.problem;
  const bool is_last = n + 1 == part.block_end;
  const std::int64_t next_b = part.next_pair / p.groups, next_g = part.next_pair % p.groups;
  const auto add_block = [&](const auto& view, std::int64_t b, std::int64_t g, std::int64_t index) {
    const std::int64_t row0 = index * kBlockRows, end = std::min(row0 + kBlockRows, p.rows());
    prefetcher.add(view, b, p.query_of(row0), p.query_of(end - 1) + 1, g * p.group(), p.group(),
                   p.width);
  };
  prefetcher.clear();
  for (const auto* view : {&call.q, &call.dout, &call.out}) {
    add_block(*view, is_last ? next_b : part.b, is_last ? next_g : part.g,
              is_last ? part.block_begin : n + 1);
  }
  if (part.wants_dq) add_block(call.dq, part.b, part.g, n);
  if (part.wants_dkv) {
    const std::int64_t begin = part.tile_begin * kTileKeys;
    const std::int64_t keys = std::min(part.tile_end * kTileKeys, p.keys) - begin;
    const Share share(keys, n - part.block_begin, part.block_end - part.block_begin);
    for (const auto* view : {&call.dk, &call.dv}) {
      prefetcher.add(*view, part.b, begin + share.begin, begin + share.end, part.g, 1, p.width);
    }
    for (const auto* view : {&call.k, &call.v}) {
      prefetcher.add(*view, next_b, begin + share.begin, begin + share.end, next_g, 1, p.width);
    }
  }
  const std::int64_t first = std::max(part.tile_begin, block.first_key / kTileKeys);
  const std::int64_t end = std::min(part.tile_end, block.last_key / kTileKeys + 1);
  const std::int64_t products = 2 + (part.wants_dkv ? 2 : 0) + (part.wants_dq ? 1 : 0);
  prefetcher.spread((end - first) * products * kStripsPerProduct);
}

template <class T>
void backward_part(const BackwardCall<T>& call, const BackwardPart& part) {
  const AttentionProblem& p = call.problem;
  const std::int64_t stride = padded_width<T>(p.width);
  const std::int64_t begin = part.tile_begin * kTileKeys;
  const std::int64_t keys = std::min(part.tile_end * kTileKeys, p.keys) - begin;
  BackwardScratch<T> x;
  const std::size_t bytes = x.carve(nullptr, keys, p.width);
  x.carve(reinterpret_cast<T*>(Scratch::of_this_thread().at_least(bytes)), keys, p.width);
  BackwardBlock<T>& block = x.block;
  Prefetcher prefetcher;

  for (std::int64_t j = 0; j < keys; ++j) {
    copy_padded(call.k.at(part.b, begin + j, part.g), p.width, x.k + j * stride);
    copy_padded(call.v.at(part.b, begin + j, part.g), p.width, x.v + j * stride);
  }
  std::fill_n(x.dk, keys * stride, T{0});
  std::fill_n(x.dv, keys * stride, T{0});

  for (std::int64_t n = part.block_begin; n < part.block_end; ++n) {
    load_block(call, part, n, block);
    plan_prefetch(call, part, block.mask, n, prefetcher);
    for (std::int64_t t = part.tile_begin; t < part.tile_end; ++t) {
      const Tile<T> tile(block.mask, t * kTileKeys);
      if (tile.is_empty()) continue;
      const std::int64_t at = (tile.key0 - begin) * stride;
      multiply_keys_by_rows(tile, p.width, x.k + at, block.q_transposed, x.p, prefetcher);
      multiply_keys_by_rows(tile, p.width, x.v + at, block.dout_transposed, x.ds, prefetcher);
      gradient_tile(tile, block, x.p, x.ds);
      if (part.wants_dkv) {
        add_rows_to_keys(tile, p.width, x.p, block.dout, x.dv + at, prefetcher);
        add_rows_to_keys(tile, p.width, x.ds, block.q, x.dk + at, prefetcher);
      }
      if (part.wants_dq) {
        add_keys_to_rows<T>(tile, p.width, x.ds, x.k + at, block.is_new ? Start::zero : Start::add,
                            nullptr, block.dq, prefetcher);
        block.is_new = false;
      }
    }
    if (!part.wants_dq) continue;
    for (std::int64_t i = 0; i < block.mask.rows; ++i) {
      const std::int64_t row = block.mask.row0 + i;
      copy_scaled(block.dq + i * stride, p.width, static_cast<T>(p.scale),
                  call.dq.at(part.b, p.query_of(row), p.head_of(part.g, row)));
    }
  }
  if (!part.wants_dkv) return;
  for (std::int64_t j = 0; j < keys; ++j) {
    copy_scaled(x.dk + j * stride, p.width, static_cast<T>(p.scale),
                call.dk.at(part.b, begin + j, part.g));
    copy_scaled(x.dv + j * stride, p.width, T{1}, call.dv.at(part.b, begin + j, part.g));
  }
}

void backward_part_f32(const BackwardCall<float>& call, const BackwardPart& part) {
  backward_part(call, part);
}
#if HWY_TARGET == HWY_STATIC_TARGET  // see dispatch-inl.h
void backward_part_f64(const BackwardCall<double>& call, const BackwardPart& part) {
  backward_part(call, part);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
namespace {

HWY_EXPORT(backward_part_f32);

void run_part(const BackwardCall<float>& call, const BackwardPart& part) {
  HWY_DYNAMIC_DISPATCH(backward_part_f32)(call, part);
}
void run_part(const BackwardCall<double>& call, const BackwardPart& part) {
  HWY_STATIC_DISPATCH(backward_part_f64)(call, part);
}

/// Where there are (batch, key head) pairs enough for all threads, each is one part: five products
/// per tile. Otherwise dq is taken in parts by blocks of rows, then dk and dv in parts by tiles of
/// keys: seven products, but many parts. Both add up each gradient in the same order, so the choice
/// may depend on the number of threads.
template <class T>
void backward(const BackwardCall<T>& call, Stream& stream) {
  const AttentionProblem& p = call.problem;
  const std::int64_t pairs = p.batch * p.groups;
  const std::int64_t blocks = blocks_in(p.rows(), kBlockRows), tiles = blocks_in(p.keys, kTileKeys);
  const std::int64_t rounds = blocks_in(pairs, stream.threads());
  if (7 * pairs >= 5 * rounds * stream.threads()) {
    parallel_items(stream, pairs, [&](std::int64_t i) {
      run_part(call, {.b = i / p.groups,
                      .g = i % p.groups,
                      .block_begin = 0,
                      .block_end = blocks,
                      .tile_begin = 0,
                      .tile_end = tiles,
                      .wants_dq = true,
                      .wants_dkv = true,
                      .next_pair = std::min(i + stream.threads(), pairs - 1)});
    });
    return;
  }
  parallel_items(stream, pairs * blocks, [&](std::int64_t i) {
    const std::int64_t block = blocks - 1 - i / pairs;  // the longest first
    const std::int64_t last_row = std::min((block + 1) * kBlockRows, p.rows()) - 1;
    run_part(call, {.b = i % pairs / p.groups,
                    .g = i % p.groups,
                    .block_begin = block,
                    .block_end = block + 1,
                    .tile_begin = 0,
                    .tile_end = p.last_key_of(last_row) / kTileKeys + 1,
                    .wants_dq = true,
                    .wants_dkv = false,
                    .next_pair = (i + stream.threads()) % pairs});
  });
  parallel_items(stream, pairs * tiles, [&](std::int64_t i) {
    const std::int64_t tile = i / pairs;
    run_part(call, {.b = i % pairs / p.groups,
                    .g = i % p.groups,
                    .block_begin = tile * kTileKeys * p.group() / kBlockRows,
                    .block_end = blocks,
                    .tile_begin = tile,
                    .tile_end = tile + 1,
                    .wants_dq = false,
                    .wants_dkv = true,
                    .next_pair = (i + stream.threads()) % pairs});
  });
}

template <class T>
BackwardCall<T> backward_call(const AttentionProblem& problem, const Tensor& dout, const Tensor& q,
                              const Tensor& k, const Tensor& v, const Tensor& out,
                              const Tensor& lse, const Tensor& dq, const Tensor& dk,
                              const Tensor& dv, const Tensor& delta) {
  return {.problem = problem,
          .dout = HeadView<const T>(dout),
          .q = HeadView<const T>(q),
          .k = HeadView<const T>(k),
          .v = HeadView<const T>(v),
          .out = HeadView<const T>(out),
          .lse = lse.data<T>(),
          .dq = HeadView<T>(dq),
          .dk = HeadView<T>(dk),
          .dv = HeadView<T>(dv),
          .delta = delta.data<T>()};
}

}  // namespace

void attention_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BSGK,
                        const Tensor& v_BSGK, const Tensor& out_BSHK, const Tensor& lse_BHS,
                        const AttentionMask& mask, double scale, const Tensor& dq_BSHK,
                        const Tensor& dk_BSGK, const Tensor& dv_BSGK, const Tensor& delta_BHS,
                        Stream& stream) {
  const AttentionProblem problem(q_BSHK, k_BSGK, mask, scale);
  if (q_BSHK.count() == 0) return;
  visit_float(q_BSHK.dtype(), [&](auto zero) {
    const auto call =
        backward_call<decltype(zero)>(problem, dout_BSHK, q_BSHK, k_BSGK, v_BSGK, out_BSHK, lse_BHS,
                                      dq_BSHK, dk_BSGK, dv_BSGK, delta_BHS);
    backward(call, stream);
  });
}

}  // namespace heddle::ops::cpu
#endif
