// Rows of heads, and the statistics of a block of them, for the SIMD target being compiled;
// included once per target by the files that dispatch.
#if defined(HEDDLE_OPS_CPU_ATTENTION_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_OPS_CPU_ATTENTION_ROWS_INL_H
#undef HEDDLE_OPS_CPU_ATTENTION_ROWS_INL_H
#else
#define HEDDLE_OPS_CPU_ATTENTION_ROWS_INL_H
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/cpu/attention_problem.h"
#include "ops/cpu/exp2-inl.h"
#include "ops/cpu/tile_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr double kLog2E = 1.44269504088896340736;

/// to = from * factor for a row of `width`.
template <class T>
HWY_INLINE void copy_scaled(const T* from, std::int64_t width, T factor, T* to) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, factor);
  std::int64_t i = 0;
  for (; i + kLanes<T> <= width; i += kLanes<T>) {
    hn::StoreU(hn::Mul(hn::LoadU(d, from + i), scale), d, to + i);
  }
  for (; i < width; ++i) to[i] = from[i] * factor;
}

/// to = to * kept + from * factor for a row of `width`.
template <class T>
HWY_INLINE void blend(const T* from, std::int64_t width, T factor, T kept, T* to) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, factor), keep = hn::Set(d, kept);
  std::int64_t i = 0;
  for (; i + kLanes<T> <= width; i += kLanes<T>) {
    const auto old = hn::Mul(hn::LoadU(d, to + i), keep);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, from + i), scale, old), d, to + i);
  }
  for (; i < width; ++i) to[i] = to[i] * kept + from[i] * factor;
}

/// Copies a row of `width` into scratch and fills it up with zeros.
template <class T>
HWY_INLINE void copy_padded(const T* from, std::int64_t width, T* to) {
  const hn::ScalableTag<T> d;
  std::int64_t i = 0;
  for (; i + kLanes<T> <= width; i += kLanes<T>) hn::Store(hn::LoadU(d, from + i), d, to + i);
  if (i == width) return;
  hn::Store(hn::Zero(d), d, to + i);
  std::copy(from + i, from + width, to + i);
}

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

/// An lse of no keys.
template <class T>
inline constexpr T kNoKeys = -std::numeric_limits<T>::infinity();

/// How results over two sets of keys become one, row by row.
template <class T>
struct RowMerge {
  alignas(64) T old_lse[kBlockRows], new_lse[kBlockRows];  ///< what is merged
  alignas(64) T old_share[kBlockRows], new_share[kBlockRows], lse[kBlockRows];

  /// lse = log(exp(old) + exp(new)) and the shares of old and new in it. Only the difference of the
  /// two is ever raised to a power, and it is not positive: nothing overflows. One of them may be
  /// kNoKeys; rows where both are mean nothing afterwards.
  void compute() {
    const hn::ScalableTag<T> d;
    const auto one = hn::Set(d, T{1});
    for (std::int64_t i = 0; i < kBlockRows; i += kLanes<T>) {
      const auto a = hn::Load(d, old_lse + i), b = hn::Load(d, new_lse + i);
      const auto distance = hn::Abs(hn::Sub(a, b));
      const auto ratio = exp2(d, hn::Mul(distance, hn::Set(d, static_cast<T>(-kLog2E))));
      const auto larger = hn::Div(one, hn::Add(one, ratio)), smaller = hn::Mul(ratio, larger);
      const auto old_is_larger = hn::Ge(a, b);
      hn::Store(hn::IfThenElse(old_is_larger, larger, smaller), d, old_share + i);
      hn::Store(hn::IfThenElse(old_is_larger, smaller, larger), d, new_share + i);
      hn::Store(hn::Add(hn::Max(a, b), hn::Log1p(d, ratio)), d, lse + i);
    }
  }

  /// Merges row i of the new result, times `factor`, into a row of the old one.
  HWY_INLINE void apply(std::int64_t i, const T* row, std::int64_t width, T factor, T* out,
                        T* out_lse) const {
    if (new_lse[i] == kNoKeys<T>) return;
    *out_lse = lse[i];
    if (old_lse[i] == kNoKeys<T>) return copy_scaled(row, width, factor, out);
    blend(row, width, new_share[i] * factor, old_share[i], out);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();
#endif
