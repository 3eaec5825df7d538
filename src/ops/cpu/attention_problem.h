#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/attention.h"

namespace heddle::ops::cpu {

/// Attention is computed tile by tile: a block of rows against a tile of keys. Tiles start at
/// multiples of these, whatever the number of threads: that fixes the order of all sums.
inline constexpr std::int64_t kBlockRows = 64;
inline constexpr std::int64_t kTileKeys = 64;

/// Range `step` of [0, count) cut into `steps` consecutive ranges.
struct Share {
  std::int64_t begin, end;
  Share(std::int64_t count, std::int64_t step, std::int64_t steps)
      : begin(count * step / steps), end(count * (step + 1) / steps) {}
};

inline constexpr std::int64_t blocks_in(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

/// The tiles of keys that hold the keys from `first_key` to `last_key`, of which there may be none.
struct TileRange {
  std::int64_t begin, end;
  TileRange(std::int64_t first_key, std::int64_t last_key)
      : begin(first_key / kTileKeys),
        end(first_key > last_key ? begin : last_key / kTileKeys + 1) {}
  std::int64_t count() const { return end - begin; }
};

/// A [batch, position, head, K] tensor whose last dimension is adjacent in memory.
template <class T>
struct HeadView {
  T* data;
  std::int64_t batch, position, head;  // strides

  explicit HeadView(const Tensor& t)
      : data(t.data<std::remove_const_t<T>>()),
        batch(t.stride(0)),
        position(t.stride(1)),
        head(t.stride(2)) {}
  T* at(std::int64_t b, std::int64_t s, std::int64_t h) const {
    return data + b * batch + s * position + h * head;
  }
};

/// A [batch, head, position] tensor of rows' statistics.
template <class T>
struct StatisticsView {
  T* data;
  std::int64_t batch, head;  // strides

  explicit StatisticsView(const Tensor& t)
      : data(t.data<std::remove_const_t<T>>()), batch(t.stride(0)), head(t.stride(1)) {}
  T* at(std::int64_t b, std::int64_t h, std::int64_t s) const {
    return data + b * batch + h * head + s;
  }
};

/// Sizes and mask of one call. The query heads that share a key/value head are folded into one
/// sequence of rows: row r is query r / group() of head r % group() of the group. Their keys are
/// the same, so a block of rows needs one pass over them, and blocks stay full when there are few
/// queries.
///
/// Keys are counted from the first one given, whatever their positions. A row that sees none has a
/// first key behind its last.
struct AttentionProblem {
  std::int64_t batch, queries, keys, heads, groups, width;
  /// Query s sees no key behind this + s; negative where the first queries see none.
  std::int64_t query_offset;
  ScoreRule rule;

  AttentionProblem(const Tensor& q_BSHK, const Tensor& k_BTGK, const AttentionMask& mask,
                   const ScoreRule& rule);

  std::int64_t group() const { return heads / groups; }
  std::int64_t rows() const { return queries * group(); }
  std::int64_t query_of(std::int64_t row) const { return row / group(); }
  std::int64_t head_of(std::int64_t g, std::int64_t row) const {
    return g * group() + row % group();
  }
  std::int64_t last_key_of(std::int64_t row) const {
    return std::min(query_offset + query_of(row), keys - 1);
  }
  std::int64_t first_key_of(std::int64_t b, std::int64_t row) const {
    if (document_start_ == nullptr) return 0;
    const std::int64_t ahead = document_start_[b * document_stride_ + query_of(row)] - key_offset_;
    if (ahead <= 0) return 0;
    return std::min(step_ == 1 ? ahead : blocks_in(ahead, step_), keys);
  }

 private:
  const std::int32_t* document_start_ = nullptr;  // absent: 0
  std::int64_t document_stride_ = 0, key_offset_, step_;
};

}  // namespace heddle::ops::cpu
