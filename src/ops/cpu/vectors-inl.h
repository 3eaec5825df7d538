// Loops over vectors for the SIMD target being compiled; included once per target by the files that
// dispatch.
#if defined(HEDDLE_OPS_CPU_VECTORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_OPS_CPU_VECTORS_INL_H
#undef HEDDLE_OPS_CPU_VECTORS_INL_H
#else
#define HEDDLE_OPS_CPU_VECTORS_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls body(d, i) for i stepping through [0, n) by whole vectors, then by single elements: `d` is
/// the tag of the vector to load and store at i. Nothing beyond n is touched.
template <class T, class Body>
HWY_INLINE void for_vectors(std::int64_t n, const Body& body) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(d, i);
  const hn::CappedTag<T, 1> one;
  for (; i < n; ++i) body(one, i);
}

/// Sum over [0, n) of body(d, i), a vector, in four interleaved chains so that the latency of the
/// additions is hidden. The order depends on n only.
template <class T, class Body>
HWY_INLINE T sum_vectors(std::int64_t n, const Body& body) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, body(d, i));
    s1 = hn::Add(s1, body(d, i + lanes));
    s2 = hn::Add(s2, body(d, i + 2 * lanes));
    s3 = hn::Add(s3, body(d, i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::Add(s0, body(d, i));
  const auto sum = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
  T total = hn::GetLane(hn::SumOfLanes(d, sum));
  const hn::CappedTag<T, 1> one;
  for (; i < n; ++i) total += hn::GetLane(body(one, i));
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();
#endif
