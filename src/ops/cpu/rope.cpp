#include "ops/rope.h"

#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rope.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"
#include "ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE void rotate(T* low, T* high, const T* cosine, const T* sine, T sign, std::int64_t n) {
  for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto c = hn::LoadU(d, cosine + i);
    const auto s = hn::Mul(hn::LoadU(d, sine + i), hn::Set(d, sign));
    const auto a = hn::LoadU(d, low + i), b = hn::LoadU(d, high + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, low + i);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, high + i);
  });
}

/// The same for pairs that lie beside each other.
template <class T>
HWY_INLINE void rotate_neighbours(T* x, const T* cosine, const T* sine, T sign, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto c = hn::LoadU(d, cosine + i);
    const auto s = hn::Mul(hn::LoadU(d, sine + i), hn::Set(d, sign));
    hn::Vec<decltype(d)> a, b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    hn::StoreInterleaved2(hn::NegMulAdd(b, s, hn::Mul(a, c)), hn::MulAdd(a, s, hn::Mul(b, c)), d,
                          x + 2 * i);
  }
  for (; i < n; ++i) {
    const T a = x[2 * i], b = x[2 * i + 1], s = sign * sine[i];
    x[2 * i] = a * cosine[i] - b * s;
    x[2 * i + 1] = b * cosine[i] + a * s;
  }
}

void rope(const Tensor& x_BSHK, const Tensor& positions_BS, const Tensor& cos_PR,
          const Tensor& sin_PR, RopePairs pairs, bool inverse, Stream& stream) {
  visit_float(x_BSHK.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const std::int64_t sequence = x_BSHK.size(1), heads = x_BSHK.size(2), half = cos_PR.size(1);
    const T sign = inverse ? T{-1} : T{1};
    T* const x = x_BSHK.data<T>();
    const T *cosines = cos_PR.data<T>(), *sines = sin_PR.data<T>();
    const std::int32_t* const positions = positions_BS.data<std::int32_t>();
    const std::int64_t grain = kGrain / std::max<std::int64_t>(heads * half * 2, 1) + 1;
    parallel_for(stream, x_BSHK.size(0) * sequence, grain,
                 [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
                   for (std::int64_t token = begin; token < end; ++token) {
                     const std::int64_t b = token / sequence, s = token % sequence;
                     const std::int64_t position = positions[b * positions_BS.stride(0) + s];
                     T* head = x + b * x_BSHK.stride(0) + s * x_BSHK.stride(1);
                     const T* const cosine = cosines + position * cos_PR.stride(0);
                     const T* const sine = sines + position * sin_PR.stride(0);
                     for (std::int64_t h = 0; h < heads; ++h, head += x_BSHK.stride(2)) {
                       if (pairs == RopePairs::halves) {
                         rotate(head, head + half, cosine, sine, sign, half);
                       } else {
                         rotate_neighbours(head, cosine, sine, sign, half);
                       }
                     }
                   }
                 });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
HWY_EXPORT(rope);

void rope(const Tensor& x_BSHK, const Tensor& positions_BS, const Tensor& cos_PR,
          const Tensor& sin_PR, RopePairs pairs, bool inverse, Stream& stream) {
  const std::int32_t* const positions = positions_BS.data<std::int32_t>();
  for (std::int64_t b = 0; b < positions_BS.size(0); ++b) {
    for (std::int64_t s = 0; s < positions_BS.size(1); ++s) {
      const std::int32_t position = positions[b * positions_BS.stride(0) + s];
      HEDDLE_CHECK(position >= 0 && position < cos_PR.size(0), "position {} of a table of {}",
                   position, cos_PR.size(0));
    }
  }
  HEDDLE_DISPATCH(rope, x_BSHK.dtype())
  (x_BSHK, positions_BS, cos_PR, sin_PR, pairs, inverse, stream);
}

}  // namespace heddle::ops::cpu
#endif  // HWY_ONCE
