// Attention on one tile (a block of rows and a tile of keys) for the SIMD target being compiled;
// included once per target by the files that dispatch.
//
// Scores of a tile are held transposed, a line per key with the rows (queries) across the lanes:
// maxima, sums and masks of the softmax then need no operation across lanes, keys and values are
// read as they lie, and each of the seven products of forward and backward finds its operands in
// place; only q and dout are transposed, once per block.
#if defined(HEDDLE_OPS_CPU_ATTENTION_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_OPS_CPU_ATTENTION_TILE_INL_H
#undef HEDDLE_OPS_CPU_ATTENTION_TILE_INL_H
#else
#define HEDDLE_OPS_CPU_ATTENTION_TILE_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/cpu/attention_problem.h"
#include "ops/cpu/attention_rows-inl.h"
#include "ops/cpu/exp2-inl.h"
#include "ops/cpu/prefetch.h"
#include "ops/cpu/probability-inl.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Steps of the prefetcher in one product of a whole tile.
inline constexpr std::int64_t kStripsPerProduct = (kBlockRows + kStripRows - 1) / kStripRows;
inline constexpr double kLn2 = 0.69314718055994530942;

/// The head width rounded up to whole vectors: the length of a row in scratch, zero at its end.
template <class T>
std::int64_t padded_width(std::int64_t width) {
  return blocks_in(width, kLanes<T>) * kLanes<T>;
}

/// Which keys each row of a block sees.
template <class T>
struct BlockMask {
  std::int64_t row0, rows, group, query_offset;
  std::int64_t first_key, last_key;        ///< no row sees any before or behind these
  std::int64_t common_first, common_last;  ///< seen by every row, if not empty
  alignas(64) T first[kBlockRows], last[kBlockRows];

  void set(const AttentionProblem& p, std::int64_t b, std::int64_t block) {
    row0 = block * kBlockRows;
    rows = std::min(kBlockRows, p.rows() - row0);
    group = p.group();
    query_offset = p.query_offset;
    for (std::int64_t i = 0; i < kBlockRows; ++i) {
      const std::int64_t row = row0 + std::min(i, rows - 1);
      first[i] = static_cast<T>(p.first_key_of(b, row));
      last[i] = static_cast<T>(p.last_key_of(row));
    }
    first_key = p.first_key_of(b, row0);
    last_key = p.last_key_of(row0 + rows - 1);
    common_first = p.first_key_of(b, row0 + rows - 1);
    common_last = p.last_key_of(row0);
  }
  std::int64_t vectors() const { return blocks_in(rows, kLanes<T>); }
  TileRange tiles() const { return {first_key, last_key}; }
  bool sees_none(std::int64_t i) const { return first[i] > last[i]; }
};

/// A tile of keys as one block sees it.
template <class T>
struct Tile {
  const BlockMask<T>& block;
  std::int64_t key0, keys;
  bool masked;  ///< some row does not see some key

  /// The tile that starts at key0, cut after the last key that the block sees.
  Tile(const BlockMask<T>& mask, std::int64_t first)
      : block(mask),
        key0(first),
        keys(std::min(kTileKeys, mask.last_key + 1 - first)),
        masked(first < mask.common_first || first + keys - 1 > mask.common_last) {}

  bool is_empty() const { return keys <= 0 || key0 + keys <= block.first_key; }
  /// Rows at the start of the block that are too early to see key j of the tile.
  std::int64_t rows_before(std::int64_t j) const {
    const std::int64_t row = (key0 + j - block.query_offset) * block.group - block.row0;
    return std::clamp<std::int64_t>(row, 0, block.rows);
  }
  /// Keys at the start of the tile that are not too late for row i.
  std::int64_t keys_until(std::int64_t i) const {
    const std::int64_t row = block.row0 + std::min(i, block.rows - 1);
    return std::clamp<std::int64_t>(block.query_offset + row / block.group + 1 - key0, 0, keys);
  }
};

/// s[j][i] = keys[j] . rows[i]: the scores, and the gradient of the probabilities. Vectors of rows
/// that see none of a strip's keys are not written.
template <class T>
void multiply_keys_by_rows(const Tile<T>& tile, std::int64_t width, const T* keys,
                           const T* rows_transposed, T* s, Prefetcher& prefetcher) {
  const std::int64_t stride = padded_width<T>(width);
  for (std::int64_t j = 0; j < tile.keys; j += kStripRows) {
    const std::int64_t skipped = tile.rows_before(j) / kLanes<T>;
    prefetcher.step();
    multiply_strip<T>(std::min(kStripRows, tile.keys - j), tile.block.vectors() - skipped,
                      {.a = keys + j * stride,
                       .a_row = stride,
                       .a_inner = 1,
                       .b = rows_transposed + skipped * kLanes<T>,
                       .b_row = kBlockRows,
                       .c = s + j * kBlockRows + skipped * kLanes<T>,
                       .c_row = kBlockRows,
                       .inner = width,
                       .start = Start::zero});
  }
}

/// Scores in base 2 become cap * tanh(score / cap) in base 2.
template <class T>
void cap_scores(const Tile<T>& tile, double cap, T* s) {
  const hn::ScalableTag<T> d;
  for (std::int64_t column = 0; column < tile.block.vectors() * kLanes<T>; column += kLanes<T>) {
    const std::int64_t seen = tile.keys_until(column + kLanes<T> - 1);
    for (std::int64_t j = 0; j < seen; ++j) {
      T* const at = s + j * kBlockRows + column;
      hn::Store(capped(d, hn::Load(d, at), static_cast<T>(cap * kLog2E)), d, at);
    }
  }
}

/// to[i] = start(to[i]) + sum over j of p[j][i] * keys[j]; `factor` for Start::scale.
template <class T>
void add_keys_to_rows(const Tile<T>& tile, std::int64_t width, const T* p, const T* keys,
                      Start start, const T* factor, T* to, Prefetcher& prefetcher) {
  const std::int64_t stride = padded_width<T>(width);
  for (std::int64_t i = 0; i < tile.block.rows; i += kStripRows) {
    prefetcher.step();
    multiply_strip<T>(std::min(kStripRows, tile.block.rows - i), stride / kLanes<T>,
                      {.a = p + i,
                       .a_row = 1,
                       .a_inner = kBlockRows,
                       .b = keys,
                       .b_row = stride,
                       .c = to + i * stride,
                       .c_row = stride,
                       .inner = tile.keys_until(i + kStripRows - 1),
                       .start = start,
                       .scale = factor == nullptr ? nullptr : factor + i});
  }
}

/// to[j] += sum over i of p[j][i] * rows[i].
template <class T>
void add_rows_to_keys(const Tile<T>& tile, std::int64_t width, const T* p, const T* rows, T* to,
                      Prefetcher& prefetcher) {
  const std::int64_t stride = padded_width<T>(width);
  for (std::int64_t j = 0; j < tile.keys; j += kStripRows) {
    const std::int64_t skipped = tile.rows_before(j);
    prefetcher.step();
    multiply_strip<T>(std::min(kStripRows, tile.keys - j), stride / kLanes<T>,
                      {.a = p + j * kBlockRows + skipped,
                       .a_row = kBlockRows,
                       .a_inner = 1,
                       .b = rows + skipped * stride,
                       .b_row = stride,
                       .c = to + j * stride,
                       .c_row = stride,
                       .inner = tile.block.rows - skipped,
                       .start = Start::add});
  }
}

/// -infinity where the row does not see the key.
template <class D, class T, class V = hn::Vec<D>>
HWY_INLINE V masked_score(D d, const Tile<T>& tile, std::int64_t j, std::int64_t column, V score) {
  const V key = hn::Set(d, static_cast<T>(tile.key0 + j));
  const auto is_seen = hn::And(hn::Ge(hn::Load(d, tile.block.last + column), key),
                               hn::Le(hn::Load(d, tile.block.first + column), key));
  return hn::IfThenElse(is_seen, score, hn::Set(d, -std::numeric_limits<T>::infinity()));
}

/// Columns [column, column + one vector) of lines [begin, end) become zero.
template <class T>
HWY_INLINE void clear_lines(T* lines, std::int64_t column, std::int64_t begin, std::int64_t end) {
  const hn::ScalableTag<T> d;
  for (std::int64_t j = begin; j < end; ++j) {
    hn::Store(hn::Zero(d), d, lines + j * kBlockRows + column);
  }
}

#if HWY_TARGET == HWY_SCALAR

/// to[d][i] = from[i][d] * factor for the kBlockRows rows in scratch, of padded width.
template <class T>
void transpose_rows(std::int64_t width, T factor, const T* from, T* to) {
  for (std::int64_t i = 0; i < kBlockRows; ++i) {
    for (std::int64_t d = 0; d < width; ++d) to[d * kBlockRows + i] = from[i * width + d] * factor;
  }
}

#else

/// A vector whose 128-bit blocks come from every kBlock-th row, kBlock being the lanes in a block.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_blocks(D d, const T* from, std::int64_t stride) {
  if constexpr (hn::MaxLanes(D()) * sizeof(T) <= 16) {
    return hn::Load(d, from);
  } else {
    const hn::Half<D> half;
    constexpr auto kHalf = static_cast<std::int64_t>(hn::MaxLanes(hn::Half<D>()));
    return hn::Combine(d, load_blocks(half, from + kHalf * stride, stride),
                       load_blocks(half, from, stride));
  }
}

/// to[d][i] = from[i][d] * factor for the kBlockRows rows in scratch, of padded width.
template <class T>
void transpose_rows(std::int64_t width, T factor, const T* from, T* to) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, factor);
  const std::int64_t stride = padded_width<T>(width);
  for (std::int64_t i = 0; i < kBlockRows; i += kLanes<T>) {
    for (std::int64_t column = 0; column < stride; column += 16 / sizeof(T)) {
      const T* const source = from + i * stride + column;
      T* const target = to + column * kBlockRows + i;
      const auto a0 = load_blocks(d, source, stride), a1 = load_blocks(d, source + stride, stride);
      if constexpr (sizeof(T) == 8) {
        hn::Store(hn::Mul(hn::InterleaveLower(d, a0, a1), scale), d, target);
        hn::Store(hn::Mul(hn::InterleaveUpper(d, a0, a1), scale), d, target + kBlockRows);
      } else {
        const auto a2 = load_blocks(d, source + 2 * stride, stride);
        const auto a3 = load_blocks(d, source + 3 * stride, stride);
        const auto even01 = hn::InterleaveLower(d, a0, a2), even23 = hn::InterleaveUpper(d, a0, a2);
        const auto odd01 = hn::InterleaveLower(d, a1, a3), odd23 = hn::InterleaveUpper(d, a1, a3);
        hn::Store(hn::Mul(hn::InterleaveLower(d, even01, odd01), scale), d, target);
        hn::Store(hn::Mul(hn::InterleaveUpper(d, even01, odd01), scale), d, target + kBlockRows);
        hn::Store(hn::Mul(hn::InterleaveLower(d, even23, odd23), scale), d,
                  target + 2 * kBlockRows);
        hn::Store(hn::Mul(hn::InterleaveUpper(d, even23, odd23), scale), d,
                  target + 3 * kBlockRows);
      }
    }
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();
#endif
