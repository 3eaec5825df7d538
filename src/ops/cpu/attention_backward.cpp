#include <algorithm>
#include <limits>
#include <optional>

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
  HeadView<const T> dout, q, k, v;
  std::optional<HeadView<const T>> out;  ///< absent: delta is given
  StatisticsView<const T> lse;
  HeadView<T> dq, dk, dv;
  bool adds;                ///< to dq, dk and dv, which otherwise are written
  StatisticsView<T> delta;  ///< the sum over K of dout * out
};

/// A part of one (batch, key head): the tiles of some blocks of rows and some tiles of keys, and
/// which gradients to take from them. A gradient is only right if the part holds all its terms:
/// all tiles for dq, all blocks for dk and dv. Where delta is not given, it is written with dq and
/// read without.
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

/// The lse in base 2; infinite for a row that saw no key, so that no probability comes of it.
template <class T>
T base_2(T lse) {
  if (lse == kNoKeys<T>) return std::numeric_limits<T>::infinity();
  return lse * static_cast<T>(kLog2E);
}

/// block.mask has been set.
template <class T>
void load_block(const BackwardCall<T>& call, const BackwardPart& part, BackwardBlock<T>& block) {
  const AttentionProblem& p = call.problem;
  const std::int64_t stride = padded_width<T>(p.width);
  std::fill_n(block.lse, kBlockRows, T{0});
  std::fill_n(block.delta, kBlockRows, T{0});
  for (std::int64_t i = 0; i < block.mask.rows; ++i) {
    const std::int64_t row = block.mask.row0 + i;
    const std::int64_t s = p.query_of(row), h = p.head_of(part.g, row);
    const T* const dout = call.dout.at(part.b, s, h);
    copy_padded(call.q.at(part.b, s, h), p.width, block.q + i * stride);
    copy_padded(dout, p.width, block.dout + i * stride);
    block.lse[i] = base_2(*call.lse.at(part.b, h, s));
    T& delta = *call.delta.at(part.b, h, s);
    if (call.out && part.wants_dq) delta = dot(dout, call.out->at(part.b, s, h), p.width);
    block.delta[i] = delta;
  }
  for (T* rows : {block.q, block.dout}) {
    std::fill(rows + block.mask.rows * stride, rows + kBlockRows * stride, T{0});
  }
  transpose_rows(p.width, static_cast<T>(p.rule.scale * kLog2E), block.q, block.q_transposed);
  transpose_rows(p.width, T{1}, block.dout, block.dout_transposed);
  block.is_new = true;
}

/// Turns scores into probabilities and their gradient into that of the scores; with kCapped, of
/// what they were before they were capped.
template <bool kCapped, class T>
void gradient_tile(const Tile<T>& tile, const BackwardBlock<T>& block, double cap, T* p, T* ds) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  for (std::int64_t column = 0; column < tile.block.vectors() * kLanes<T>; column += kLanes<T>) {
    const std::int64_t seen = tile.keys_until(column + kLanes<T> - 1);
    const V lse = hn::Load(d, block.lse + column), delta = hn::Load(d, block.delta + column);
    for (std::int64_t j = 0; j < seen; ++j) {
      T *const p_line = p + j * kBlockRows + column, *const ds_line = ds + j * kBlockRows + column;
      const V in_sight = hn::Load(d, p_line);
      const V score = tile.masked ? masked_score(d, tile, j, column, in_sight) : in_sight;
      const V probability = exp2(d, hn::Sub(score, lse));
      hn::Store(probability, d, p_line);
      V gradient = hn::Mul(probability, hn::Sub(hn::Load(d, ds_line), delta));
      if constexpr (kCapped) {
        gradient = hn::Mul(gradient, capped_slope(d, in_sight, static_cast<T>(cap * kLog2E)));
      }
      hn::Store(gradient, d, ds_line);
    }
    clear_lines(p, column, seen, tile.keys);
    clear_lines(ds, column, seen, tile.keys);
  }
}

/// What to bring in while the arithmetic of block n with `tiles` tiles runs: the rows of the next
/// block, the place of this block's dq, and a share of dk and dv and of the next part's keys.
template <class T>
void plan_prefetch(const BackwardCall<T>& call, const BackwardPart& part, std::int64_t tiles,
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
  const auto add_next_block = [&](const HeadView<const T>& view) {
    add_block(view, is_last ? next_b : part.b, is_last ? next_g : part.g,
              is_last ? part.block_begin : n + 1);
  };
  for (const auto* view : {&call.q, &call.dout}) add_next_block(*view);
  if (call.out) add_next_block(*call.out);
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
  const std::int64_t products = 2 + (part.wants_dkv ? 2 : 0) + (part.wants_dq ? 1 : 0);
  prefetcher.spread(tiles * products * kStripsPerProduct);
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

  const auto put = [&](const T* from, T factor, T* to) {
    call.adds ? blend(from, p.width, factor, T{1}, to) : copy_scaled(from, p.width, factor, to);
  };
  for (std::int64_t n = part.block_begin; n < part.block_end; ++n) {
    block.mask.set(p, part.b, n);
    const TileRange seen = block.mask.tiles();
    const std::int64_t first = std::max(part.tile_begin, seen.begin);
    const std::int64_t end = std::min(part.tile_end, seen.end);
    if (first >= end) continue;
    load_block(call, part, block);
    plan_prefetch(call, part, end - first, n, prefetcher);
    for (std::int64_t t = first; t < end; ++t) {
      const Tile<T> tile(block.mask, t * kTileKeys);
      const std::int64_t at = (tile.key0 - begin) * stride;
      multiply_keys_by_rows(tile, p.width, x.k + at, block.q_transposed, x.p, prefetcher);
      multiply_keys_by_rows(tile, p.width, x.v + at, block.dout_transposed, x.ds, prefetcher);
      if (p.rule.cap > 0.0) {
        cap_scores(tile, p.rule.cap, x.p);
        gradient_tile<true>(tile, block, p.rule.cap, x.p, x.ds);
      } else {
        gradient_tile<false>(tile, block, 0.0, x.p, x.ds);
      }
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
      put(block.dq + i * stride, static_cast<T>(p.rule.scale),
          call.dq.at(part.b, p.query_of(row), p.head_of(part.g, row)));
    }
  }
  if (!part.wants_dkv) return;
  for (std::int64_t j = 0; j < keys; ++j) {
    put(x.dk + j * stride, static_cast<T>(p.rule.scale), call.dk.at(part.b, begin + j, part.g));
    put(x.dv + j * stride, T{1}, call.dv.at(part.b, begin + j, part.g));
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
                    .tile_end = TileRange(0, p.last_key_of(last_row)).end,
                    .wants_dq = true,
                    .wants_dkv = false,
                    .next_pair = (i + stream.threads()) % pairs});
  });
  parallel_items(stream, pairs * tiles, [&](std::int64_t i) {
    const std::int64_t tile = i / pairs;
    const std::int64_t first_query =
        std::clamp<std::int64_t>(tile * kTileKeys - p.query_offset, 0, p.queries);
    run_part(call, {.b = i % pairs / p.groups,
                    .g = i % p.groups,
                    .block_begin = first_query * p.group() / kBlockRows,
                    .block_end = blocks,
                    .tile_begin = tile,
                    .tile_end = tile + 1,
                    .wants_dq = false,
                    .wants_dkv = true,
                    .next_pair = (i + stream.threads()) % pairs});
  });
}

}  // namespace

void attention_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BSGK,
                        const Tensor& v_BSGK, const Tensor& out_BSHK, const Tensor& lse_BHS,
                        const AttentionMask& mask, const ScoreRule& rule, const Tensor& dq_BSHK,
                        const Tensor& dk_BSGK, const Tensor& dv_BSGK, const Tensor& delta_BHS,
                        Stream& stream) {
  const AttentionProblem problem(q_BSHK, k_BSGK, mask, rule);
  if (q_BSHK.count() == 0) return;
  visit_float(q_BSHK.dtype(), [&](auto zero) {
    using T = decltype(zero);
    backward(BackwardCall<T>{.problem = problem,
                             .dout = HeadView<const T>(dout_BSHK),
                             .q = HeadView<const T>(q_BSHK),
                             .k = HeadView<const T>(k_BSGK),
                             .v = HeadView<const T>(v_BSGK),
                             .out = HeadView<const T>(out_BSHK),
                             .lse = StatisticsView<const T>(lse_BHS),
                             .dq = HeadView<T>(dq_BSHK),
                             .dk = HeadView<T>(dk_BSGK),
                             .dv = HeadView<T>(dv_BSGK),
                             .adds = false,
                             .delta = StatisticsView<T>(delta_BHS)},
             stream);
  });
}

void attention_block_backward(const Tensor& dout_BSHK, const Tensor& q_BSHK, const Tensor& k_BTGK,
                              const Tensor& v_BTGK, const Tensor& lse_BHS, const Tensor& delta_BHS,
                              const AttentionMask& mask, const ScoreRule& rule,
                              const Tensor& dq_BSHK, const Tensor& dk_BTGK, const Tensor& dv_BTGK,
                              Stream& stream) {
  const AttentionProblem problem(q_BSHK, k_BTGK, mask, rule);
  if (q_BSHK.count() == 0 || k_BTGK.count() == 0) return;
  visit_float(q_BSHK.dtype(), [&](auto zero) {
    using T = decltype(zero);
    backward(BackwardCall<T>{.problem = problem,
                             .dout = HeadView<const T>(dout_BSHK),
                             .q = HeadView<const T>(q_BSHK),
                             .k = HeadView<const T>(k_BTGK),
                             .v = HeadView<const T>(v_BTGK),
                             .out = std::nullopt,
                             .lse = StatisticsView<const T>(lse_BHS),
                             .dq = HeadView<T>(dq_BSHK),
                             .dk = HeadView<T>(dk_BTGK),
                             .dv = HeadView<T>(dv_BTGK),
                             .adds = true,
                             .delta = StatisticsView<T>(delta_BHS)},
             stream);
  });
}

}  // namespace heddle::ops::cpu
#endif
