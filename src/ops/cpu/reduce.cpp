#include "ops/reduce.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/backend.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/reduce.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"
#include "ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

double block_of_squares(const double* x, std::int64_t n) {
  return sum_vectors<double>(n, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, x + i);
    return hn::Mul(v, v);
  });
}

double block_of_squares(const float* x, std::int64_t n) {
  return sum_vectors<double>(n, [=](auto d, std::int64_t i) HWY_ATTR {
    const hn::Rebind<float, decltype(d)> narrow;
    const auto v = hn::PromoteTo(d, hn::LoadU(narrow, x + i));
    return hn::Mul(v, v);
  });
}

double sum_of_squares(const Tensor& x, Stream& stream) {
  constexpr std::int64_t kBlock = 8192;
  const std::int64_t count = x.count(), blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<std::size_t>(blocks));
  visit_float(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const T* const from = x.data<T>();
    parallel_for(stream, blocks, 2, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t first = block * kBlock;
        sums[static_cast<std::size_t>(block)] =
            block_of_squares(from + first, std::min(kBlock, count - first));
      }
    });
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

/// The first element whose exponent bits are all ones, or -1. Blocks are tested whole, without
/// branches; only a bad one is looked at closely.
template <class Bits>
std::int64_t first_with_exponent(const Bits* x, std::int64_t n, Bits exponent) {
  constexpr std::int64_t kBlock = 4096;
  const hn::ScalableTag<Bits> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto mask = hn::Set(d, exponent);
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t last = std::min(first + kBlock, n);
    auto found = hn::Zero(d);
    std::int64_t i = first;
    for (; i + lanes <= last; i += lanes) {
      const auto bits = hn::And(hn::LoadU(d, x + i), mask);
      found = hn::Or(found, hn::VecFromMask(d, hn::Eq(bits, mask)));
    }
    if (!hn::AllTrue(d, hn::Eq(found, hn::Zero(d)))) i = first;
    for (; i < last; ++i) {
      if ((x[i] & exponent) == exponent) return i;
    }
  }
  return -1;
}

template <class Bits>
std::int64_t first_with_exponent(const Tensor& x, Bits exponent, Stream& stream) {
  const Bits* const from = reinterpret_cast<const Bits*>(x.bytes());
  std::atomic<std::int64_t> first{x.count()};
  parallel_for(stream, x.count(), kGrain, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    const std::int64_t at = first_with_exponent(from + begin, end - begin, exponent);
    if (at < 0) return;
    std::int64_t known = first.load();
    while (begin + at < known && !first.compare_exchange_weak(known, begin + at)) {
    }
  });
  return first.load() == x.count() ? -1 : first.load();
}

std::int64_t first_non_finite(const Tensor& x, Stream& stream) {
  switch (x.dtype()) {
    case DType::f32: return first_with_exponent<std::uint32_t>(x, 0x7f800000U, stream);
    case DType::f64: return first_with_exponent<std::uint64_t>(x, 0x7ff0000000000000U, stream);
    case DType::bf16: return first_with_exponent<std::uint16_t>(x, 0x7f80U, stream);
    case DType::f16: return first_with_exponent<std::uint16_t>(x, 0x7c00U, stream);
    default: return -1;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
HWY_EXPORT(sum_of_squares);
HWY_EXPORT(first_non_finite);

double sum_of_squares(const Tensor& x, Stream& stream) {
  return HEDDLE_DISPATCH(sum_of_squares, x.dtype())(x, stream);
}

void add_sum_of_squares(const Tensor& x, const Tensor& sum, Stream& stream) {
  sum.host<double>()[0] += sum_of_squares(x, stream);
}

void clip_factor(const Tensor& sums, double limit, const Tensor& factor, Stream&) {
  const auto values = sums.host<double>();
  const double norm = std::sqrt(values[0]);
  const bool is_finite = std::ranges::all_of(values, [](double v) { return std::isfinite(v); });
  const double clipped = limit > 0.0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
  factor.host<float>()[0] =
      is_finite ? static_cast<float>(clipped) : std::numeric_limits<float>::quiet_NaN();
}

void divide_by_norm(const Tensor& x, const Tensor& sum, double least, Stream& stream) {
  scale(x, 1.0 / std::max(std::sqrt(sum.host<double>()[0]), least), stream);
}

void add_sum(const Tensor& x, const Tensor& sum, Stream&) {
  const auto add = [&](const auto& terms) {
    sum.host<double>()[0] = std::accumulate(terms.begin(), terms.end(), sum.host<double>()[0]);
  };
  x.dtype() == DType::f32 ? add(x.host<float>()) : add(x.host<double>());
}

std::int64_t first_non_finite(const Tensor& x, Stream& stream) {
  return HWY_DYNAMIC_DISPATCH(first_non_finite)(x, stream);
}

void mark_non_finite(const Tensor& x, const Tensor& mark, Stream& stream) {
  if (first_non_finite(x, stream) < 0) return;
  mark.host<double>()[0] = std::numeric_limits<double>::quiet_NaN();
}

}  // namespace heddle::ops::cpu
#endif  // HWY_ONCE
