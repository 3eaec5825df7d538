// The logistic and the normal distribution for the SIMD target being compiled; included once per
// target by the files that dispatch.
#if defined(HEDDLE_OPS_CPU_PROBABILITY_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_OPS_CPU_PROBABILITY_INL_H
#undef HEDDLE_OPS_CPU_PROBABILITY_INL_H
#else
#define HEDDLE_OPS_CPU_PROBABILITY_INL_H
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A probability and its complement, each to full relative precision in both tails.
template <class V>
struct Probability {
  V p, q;
};

/// 1 / (1 + exp(-x)). Only exp of a negative number is taken, so nothing overflows.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Probability<V> sigmoid(D d, V x) {
  const V e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  const V near_one = hn::Div(hn::Set(d, 1), hn::Add(hn::Set(d, 1), e));
  const V near_zero = hn::Mul(e, near_one);
  const auto negative = hn::Lt(x, hn::Zero(d));
  return {hn::IfThenElse(negative, near_zero, near_one),
          hn::IfThenElse(negative, near_one, near_zero)};
}

/// cap * tanh(x / cap).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V capped(D d, V x, hn::TFromD<D> cap) {
  using T = hn::TFromD<D>;
  // tanh u = 1 - 2 / (1 + exp 2u), from the smaller of the two tails.
  const V u = hn::Mul(hn::Abs(x), hn::Set(d, T{-2} / cap));
  const V tail = hn::Expm1(d, u);  // in (-1, 0]
  const V tanh = hn::Div(hn::Neg(tail), hn::Add(tail, hn::Set(d, T{2})));
  return hn::CopySign(hn::Mul(tanh, hn::Set(d, cap)), x);
}

/// The derivative of capped(x), from its value.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V capped_slope(D d, V value, hn::TFromD<D> cap) {
  using T = hn::TFromD<D>;
  const V tanh = hn::Mul(value, hn::Set(d, T{1} / cap));
  return hn::NegMulAdd(tanh, tanh, hn::Set(d, T{1}));
}

/// The normal distribution's density (without 1 / sqrt(2 pi)) and cumulative probability.
template <class V>
struct Normal {
  V bell, p;
};

/// For float: P(-|x|) = exp(-x^2 / 2) t R(t) with t = 1 / (1 + 0.3 |x|), where R interpolates the
/// ratio in Chebyshev nodes for |x| <= 14.5 (relative error 5e-9); exp is 0 beyond.
template <class D, class V = hn::Vec<D>, std::enable_if_t<sizeof(hn::TFromD<D>) == 4>* = nullptr>
HWY_INLINE Normal<V> normal(D d, V x) {
  constexpr float kRatio[] = {0.1196877477F,  0.1195504315F,   0.1104184111F, 0.07751790108F,
                              0.09871138235F, -0.08421348152F, 0.1975505846F, -0.2325244073F,
                              0.114257453F,   -0.02095602424F};
  const V bell = hn::Exp(d, hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5F)));
  const V t = hn::Div(hn::Set(d, 1.0F), hn::MulAdd(hn::Abs(x), hn::Set(d, 0.3F), hn::Set(d, 1.0F)));
  V ratio = hn::Set(d, kRatio[9]);
  for (int power = 8; power >= 0; --power) {
    ratio = hn::MulAdd(ratio, t, hn::Set(d, kRatio[power]));
  }
  const V tail = hn::Mul(bell, hn::Mul(t, ratio));
  const V p = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0F), tail));
  return {bell, p};
}

/// Double precision serves gradient checks: the C library's functions, lane by lane.
template <class D, class V = hn::Vec<D>, std::enable_if_t<sizeof(hn::TFromD<D>) == 8>* = nullptr>
HWY_INLINE Normal<V> normal(D d, V x) {
  HWY_ALIGN double in[hn::MaxLanes(d)], p[hn::MaxLanes(d)], bell[hn::MaxLanes(d)];
  hn::Store(x, d, in);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
    p[i] = 0.5 * std::erfc(in[i] * -0.70710678118654752440);
    bell[i] = std::exp(-0.5 * in[i] * in[i]);
  }
  return {hn::Load(d, bell), hn::Load(d, p)};
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();
#endif
