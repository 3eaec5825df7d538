#include "ops/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/rng.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/random.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kRandomBlock = 256;

/// Words 0 and 1 of philox(key, first + i) of base/rng.h.
#if HWY_TARGET == HWY_SCALAR
void philox_words(std::uint64_t key, std::uint64_t first, std::uint64_t* word0,
                  std::uint64_t* word1) {
  for (std::int64_t i = 0; i < kRandomBlock; ++i) {
    const auto block = philox(key, first + static_cast<std::uint64_t>(i));
    word0[i] = block[0];
    word1[i] = block[1];
  }
}
#else
// A lane of 64 bits holds one 32-bit word, so that it has room for the product.
void philox_words(std::uint64_t key, std::uint64_t first, std::uint64_t* word0,
                  std::uint64_t* word1) {
  const hn::ScalableTag<std::uint64_t> d;
  const hn::Repartition<std::uint32_t, decltype(d)> halves;
  const auto low = hn::Set(d, 0xffffffffU);
  const auto times = [&](auto word, std::uint32_t factor) HWY_ATTR {
    return hn::MulEven(hn::BitCast(halves, word), hn::Set(halves, factor));
  };
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < kRandomBlock; i += lanes) {
    const auto counter = hn::Iota(d, first + static_cast<std::uint64_t>(i));
    auto c0 = hn::And(counter, low), c1 = hn::ShiftRight<32>(counter);
    auto c2 = hn::Zero(d), c3 = hn::Zero(d);
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const auto p0 = times(c0, 0xD2511F53U), p1 = times(c2, 0xCD9E8D57U);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, k0));
      c1 = hn::And(p1, low);
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, k1));
      c3 = hn::And(p0, low);
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    hn::StoreU(c0, d, word0 + i);
    hn::StoreU(c1, d, word1 + i);
  }
}
#endif

/// y[i] = stddev * random_normal(key, first + i) for a block, in loops of which all but two are
/// vectors: logarithm and cosine are the C library's, because the values must equal random_normal's
/// to the last bit.
template <class T>
void normal_block(std::uint64_t key, std::uint64_t first, double stddev, T* y, std::int64_t n) {
  alignas(64) std::uint64_t word0[kRandomBlock], word1[kRandomBlock];
  alignas(64) double radius[kRandomBlock], wave[kRandomBlock];
  philox_words(key, first, word0, word1);
  for (std::int64_t i = 0; i < kRandomBlock; ++i) {
    // Words have 32 bits, which a signed conversion takes as well, and faster.
    radius[i] = (static_cast<double>(static_cast<std::int64_t>(word0[i])) + 0.5) * 0x1.0p-32;
    wave[i] = 2.0 * std::numbers::pi *
              (static_cast<double>(static_cast<std::int64_t>(word1[i])) * 0x1.0p-32);
  }
  for (std::int64_t i = 0; i < n; ++i) radius[i] = std::log(radius[i]);
  for (std::int64_t i = 0; i < n; ++i) wave[i] = std::cos(wave[i]);
  const hn::ScalableTag<double> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < kRandomBlock; i += lanes) {
    const auto root = hn::Sqrt(hn::Mul(hn::Load(d, radius + i), hn::Set(d, -2.0)));
    hn::Store(hn::Mul(hn::Mul(root, hn::Load(d, wave + i)), hn::Set(d, stddev)), d, radius + i);
  }
  for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(radius[i]);
}

void fill_normal(const Tensor& y, std::uint64_t key, std::uint64_t first_index, double stddev,
                 Stream& stream) {
  visit_float(y.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T* const to = y.data<T>();
    parallel_for(stream, y.count(), 4 * kRandomBlock,
                 [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
                   for (std::int64_t at = begin; at < end; at += kRandomBlock) {
                     normal_block(key, first_index + static_cast<std::uint64_t>(at), stddev,
                                  to + at, std::min(kRandomBlock, end - at));
                   }
                 });
  });
}

/// Two values to a block of Philox's words, of which a row may begin with the second.
template <class T, bool kAdds>
void dropout_row(const T* x, std::uint64_t key, std::uint64_t first, std::uint64_t dropped, T scale,
                 T* y, std::int64_t n) {
  alignas(64) std::uint64_t word0[kRandomBlock], word1[kRandomBlock];
  std::uint64_t block = first / 2;
  auto odd = static_cast<std::int64_t>(first % 2);
  for (std::int64_t at = 0; at < n; block += kRandomBlock, odd = 0) {
    philox_words(key, block, word0, word1);
    const std::int64_t end = std::min(n, at + 2 * kRandomBlock - odd);
    for (std::int64_t i = odd; at < end; ++i, ++at) {
      const std::uint64_t word = (i % 2 == 0 ? word0 : word1)[i / 2];
      const T value = word < dropped ? T{0} : x[at] * scale;
      y[at] = kAdds ? y[at] + value : value;
    }
  }
}

template <bool kAdds>
void dropout_rows(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI, Stream& stream) {
  visit_float(x_TI.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const std::int64_t width = x_TI.size(1);
    const auto* const numbers = mask.rows_T.defined() ? mask.rows_T.data<std::int64_t>() : nullptr;
    const auto dropped = static_cast<std::uint64_t>(std::llround(mask.rate * 0x1.0p32));
    const auto scale = static_cast<T>(1.0 / (1.0 - mask.rate));
    const T* const from = x_TI.data<T>();
    T* const to = y_TI.data<T>();
    parallel_for(stream, x_TI.size(0),
                 std::max<std::int64_t>(1, 4 * kRandomBlock / std::max<std::int64_t>(1, width)),
                 [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
                   for (std::int64_t t = begin; t < end; ++t) {
                     const std::uint64_t row = numbers != nullptr
                                                   ? static_cast<std::uint64_t>(numbers[t])
                                                   : mask.first_row + static_cast<std::uint64_t>(t);
                     dropout_row<T, kAdds>(from + t * x_TI.stride(0), mask.key,
                                           row * static_cast<std::uint64_t>(mask.columns) +
                                               static_cast<std::uint64_t>(mask.first_column),
                                           dropped, scale, to + t * y_TI.stride(0), width);
                   }
                 });
  });
}

void dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI, Stream& stream) {
  dropout_rows<false>(x_TI, mask, y_TI, stream);
}

void add_dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI, Stream& stream) {
  dropout_rows<true>(x_TI, mask, y_TI, stream);
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
HWY_EXPORT(fill_normal);
HWY_EXPORT(dropout);
HWY_EXPORT(add_dropout);

void fill_normal(const Tensor& y, std::uint64_t key, std::uint64_t first_index, double stddev,
                 Stream& stream) {
  HEDDLE_DISPATCH(fill_normal, y.dtype())(y, key, first_index, stddev, stream);
}

void dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI, Stream& stream) {
  HEDDLE_DISPATCH(dropout, x_TI.dtype())(x_TI, mask, y_TI, stream);
}

void add_dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI, Stream& stream) {
  HEDDLE_DISPATCH(add_dropout, x_TI.dtype())(x_TI, mask, y_TI, stream);
}

}  // namespace heddle::ops::cpu
#endif  // HWY_ONCE
