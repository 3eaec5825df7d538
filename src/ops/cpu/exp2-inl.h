// Vector 2^x for the SIMD target being compiled; included once per target by the files that
// dispatch.
#if defined(HEDDLE_OPS_CPU_EXP2_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_OPS_CPU_EXP2_INL_H
#undef HEDDLE_OPS_CPU_EXP2_INL_H
#else
#define HEDDLE_OPS_CPU_EXP2_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Constants of exp2: (2^f - 1) / f on [-1/2, 1/2] as a polynomial, highest power first (Chebyshev
/// fit, relative error of 2^f 5e-9 and 8e-18), the number that, added, rounds to an integer and
/// leaves it in the low bits, and the smallest normal exponent.
template <class T>
struct Exp2Constants;

template <>
struct Exp2Constants<float> {
  static constexpr float kPolynomial[] = {0.00015453162945120690F, 0.0013390863364671234F,
                                          0.0096180825572778515F,  0.055503571142190778F,
                                          0.24022650760568127F,    0.69314718802622878F};
  static constexpr float kRound = 0x1.8p23F;
  static constexpr float kMin = -126.0F;
  static constexpr int kMantissaBits = 23;
};

template <>
struct Exp2Constants<double> {
  static constexpr double kPolynomial[] = {
      4.4549605981865184e-10, 7.0725859492692237e-9,  1.0178062445845774e-7, 1.3215442587921690e-6,
      1.5252733829836118e-5,  1.5403530441736050e-4,  1.3333558146416935e-3, 9.6181291076068885e-3,
      5.5504108664821594e-2,  2.4022650695910098e-01, 6.9314718055994531e-01};
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kMin = -1022.0;
  static constexpr int kMantissaBits = 52;
};

/// 2^x for x <= 0 (and up to the largest exponent), within 2 units in the last place; exactly 1 at
/// 0, exactly 0 where the result would be subnormal (so also at -inf), NaN for NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2(D d, V x) {
  using T = hn::TFromD<D>;
  using C = Exp2Constants<T>;
  const hn::RebindToSigned<D> di;
  const V round = hn::Set(d, C::kRound);
  const V shifted = hn::Add(x, round);
  const V f = hn::Sub(x, hn::Sub(shifted, round));
  V p = hn::Set(d, C::kPolynomial[0]);
  for (std::size_t i = 1; i < std::size(C::kPolynomial); ++i) {
    p = hn::MulAdd(p, f, hn::Set(d, C::kPolynomial[i]));
  }
  p = hn::MulAdd(p, f, hn::Set(d, T{1}));
  const auto exponent = hn::ShiftLeft<C::kMantissaBits>(hn::BitCast(di, shifted));
  const V power = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, C::kMin)), power);
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();
#endif
