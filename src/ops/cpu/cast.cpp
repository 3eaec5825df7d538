#include "ops/cast.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/cast.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// convert(from, to, n), one for each pair that is converted directly. The loops without intrinsics
// are in the form that the compiler turns into vectors of this target.

void convert(const float* from, double* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(from[i]);
}

void convert(const double* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
}

void convert(const BFloat16* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i].bits) << 16);
  }
}

void convert(const float* from, BFloat16* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
    to[i].bits = static_cast<std::uint16_t>((is_nan ? bits | 0x00400000U : rounded) >> 16);
  }
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// Targets with instructions for half precision.
void convert(const Float16* from, float* to, std::int64_t n) {
  const hn::ScalableTag<float> wide;
  const hn::Rebind<hwy::float16_t, decltype(wide)> narrow;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(wide));
  const auto* const halves = reinterpret_cast<const hwy::float16_t*>(from);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::PromoteTo(wide, hn::LoadU(narrow, halves + i)), wide, to + i);
  }
  for (; i < n; ++i) to[i] = to_float(from[i]);
}

void convert(const float* from, Float16* to, std::int64_t n) {
  const hn::ScalableTag<float> wide;
  const hn::Rebind<hwy::float16_t, decltype(wide)> narrow;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(wide));
  auto* const halves = reinterpret_cast<hwy::float16_t*>(to);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::DemoteTo(narrow, hn::LoadU(wide, from + i)), narrow, halves + i);
  }
  for (; i < n; ++i) to[i] = to_float16(from[i]);
}
#else
void convert(const Float16* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
}

void convert(const float* from, Float16* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = to_float16(from[i]);
}
#endif

/// Double to float such that a second rounding, to a narrower type, gives what one rounding would:
/// toward zero, with the last bit set where anything was lost ("round to odd").
float narrow_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  float toward_zero = nearest;
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) {
    toward_zero = std::nextafter(nearest, 0.0F);
  }
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(toward_zero) | 1U);
}

/// The other pairs go through float, a block at a time.
template <class From, class To>
void convert(const From* from, To* to, std::int64_t n) {
  constexpr std::int64_t kBlock = 512;
  alignas(64) float block[kBlock];
  for (std::int64_t at = 0; at < n; at += kBlock) {
    const std::int64_t size = std::min(kBlock, n - at);
    if constexpr (std::is_same_v<From, double>) {
      for (std::int64_t i = 0; i < size; ++i) block[i] = narrow_to_odd(from[at + i]);
    } else {
      convert(from + at, block, size);
    }
    convert(block, to + at, size);
  }
}

/// convert for bytes of any alignment: by way of aligned blocks where they need it.
template <class From, class To>
void convert_bytes(const std::byte* from, std::byte* to, std::int64_t n) {
  const auto is_aligned = [](const std::byte* at, std::size_t alignment) {
    return reinterpret_cast<std::uintptr_t>(at) % alignment == 0;
  };
  if constexpr (std::is_same_v<From, To>) {
    if (n > 0) std::memmove(to, from, static_cast<std::size_t>(n) * sizeof(To));
  } else if (is_aligned(from, alignof(From)) && is_aligned(to, alignof(To))) {
    convert(reinterpret_cast<const From*>(from), reinterpret_cast<To*>(to), n);
  } else {
    constexpr std::int64_t kBlock = 512;
    From source[kBlock];
    To target[kBlock];
    for (std::int64_t at = 0; at < n; at += kBlock) {
      const auto size = static_cast<std::size_t>(std::min(kBlock, n - at));
      std::memcpy(source, from + static_cast<std::size_t>(at) * sizeof(From), size * sizeof(From));
      convert(source, target, static_cast<std::int64_t>(size));
      std::memcpy(to + static_cast<std::size_t>(at) * sizeof(To), target, size * sizeof(To));
    }
  }
}

template <class From>
void cast_from(const std::byte* from, std::byte* to, DType to_dtype, std::int64_t n) {
  switch (to_dtype) {
    case DType::f32: return convert_bytes<From, float>(from, to, n);
    case DType::f64: return convert_bytes<From, double>(from, to, n);
    case DType::bf16: return convert_bytes<From, BFloat16>(from, to, n);
    case DType::f16: return convert_bytes<From, Float16>(from, to, n);
    default: return;
  }
}

void cast_elements(const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype,
                   std::int64_t n) {
  switch (from_dtype) {
    case DType::f32: return cast_from<float>(from, to, to_dtype, n);
    case DType::f64: return cast_from<double>(from, to, to_dtype, n);
    case DType::bf16: return cast_from<BFloat16>(from, to, to_dtype, n);
    case DType::f16: return cast_from<Float16>(from, to, to_dtype, n);
    default: return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
namespace {

HWY_EXPORT(cast_elements);

void check_floating(DType from, DType to) {
  HEDDLE_CHECK(is_floating(from) && is_floating(to), "cast from {} to {}", name_of(from),
               name_of(to));
}

}  // namespace

void cast(const Tensor& x, const Tensor& y, Stream& stream) {
  check_floating(x.dtype(), y.dtype());
  const auto from_size = static_cast<std::int64_t>(size_of(x.dtype()));
  const auto to_size = static_cast<std::int64_t>(size_of(y.dtype()));
  const std::int64_t chunks = (x.count() + 63) / 64;
  parallel_for(stream, chunks, kGrain / 64, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * 64, size = std::min(end * 64, x.count()) - first;
    cast_bytes(x.bytes() + first * from_size, x.dtype(), y.bytes() + first * to_size, y.dtype(),
               size);
  });
}

}  // namespace heddle::ops::cpu

void heddle::ops::cast_bytes(const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype,
                             std::int64_t count) {
  using namespace cpu;
  check_floating(from_dtype, to_dtype);
  HWY_DYNAMIC_DISPATCH(cast_elements)(from, from_dtype, to, to_dtype, count);
}
#endif  // HWY_ONCE
