// Products of small matrices that lie in cache, for the SIMD target being compiled; included once
// per target by the files that dispatch.
#if defined(HEDDLE_OPS_CPU_TILE_MATMUL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_OPS_CPU_TILE_MATMUL_INL_H
#undef HEDDLE_OPS_CPU_TILE_MATMUL_INL_H
#else
#define HEDDLE_OPS_CPU_TILE_MATMUL_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
inline constexpr std::int64_t kLanes =
    static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<T>()));

/// Rows and vectors of the result held in registers: 24 of 32 with AVX-512, 12 of 16 with AVX2.
inline constexpr std::int64_t kStripRows = 6;
inline constexpr std::int64_t kPanelVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;

/// What a product is added to: nothing, c, or c with a factor per row.
enum class Start { zero, add, scale };

/// c = start(c) + a b for a strip of rows of c. a(i, k) = a[i * a_row + k * a_inner], so that
/// either operand order of a product and its transpose can be read in place. Rows of b and c are
/// whole aligned vectors.
template <class T>
struct StripProduct {
  const T* a;
  std::int64_t a_row, a_inner;
  const T* b;
  std::int64_t b_row;
  T* c;
  std::int64_t c_row;
  std::int64_t inner;
  Start start;
  const T* scale = nullptr;  ///< Start::scale: the factor of each row of c
};

template <int kRows, int kVectors, class T>
HWY_NOINLINE void multiply_block(const StripProduct<T>& x) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kN = kLanes<T>;
  V sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      if (x.start == Start::zero) {
        sum[i][v] = hn::Zero(d);
      } else {
        sum[i][v] = hn::Load(d, x.c + i * x.c_row + v * kN);
        if (x.start == Start::scale) sum[i][v] = hn::Mul(sum[i][v], hn::Set(d, x.scale[i]));
      }
    }
  }
  const T *a = x.a, *b = x.b;
  const std::int64_t a_row = x.a_row, a_inner = x.a_inner, b_row = x.b_row;
  for (std::int64_t k = x.inner; k > 0; --k) {
    V right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = hn::Load(d, b + v * kN);
    for (int i = 0; i < kRows; ++i) {
      const V left = hn::Set(d, a[i * a_row]);
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(left, right[v], sum[i][v]);
    }
    a += a_inner;
    b += b_row;
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) hn::Store(sum[i][v], d, x.c + i * x.c_row + v * kN);
  }
}

template <int kRows, class T>
HWY_INLINE void multiply_panel(std::int64_t vectors, const StripProduct<T>& x) {
  if constexpr (kPanelVectors == 4) {
    if (vectors == 4) return multiply_block<kRows, 4>(x);
    if (vectors == 3) return multiply_block<kRows, 3>(x);
  }
  if (vectors == 2) return multiply_block<kRows, 2>(x);
  multiply_block<kRows, 1>(x);
}

/// The product for `rows` <= kStripRows rows and any number of vectors of c.
template <class T>
HWY_INLINE void multiply_strip(std::int64_t rows, std::int64_t vectors, StripProduct<T> x) {
  while (vectors > 0) {
    const std::int64_t panels = (vectors + kPanelVectors - 1) / kPanelVectors;
    const std::int64_t width = (vectors + panels - 1) / panels;
    if (rows == kStripRows) {
      multiply_panel<kStripRows>(width, x);
    } else {
      StripProduct<T> rest = x;
      for (std::int64_t left = rows; left > 0;) {
        const std::int64_t step = left >= 4 ? 4 : 1;
        step == 4 ? multiply_panel<4>(width, rest) : multiply_panel<1>(width, rest);
        rest.a += step * rest.a_row;
        rest.c += step * rest.c_row;
        if (rest.scale != nullptr) rest.scale += step;
        left -= step;
      }
    }
    x.b += width * kLanes<T>;
    x.c += width * kLanes<T>;
    vectors -= width;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();
#endif
