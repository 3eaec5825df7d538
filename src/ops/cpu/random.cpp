#include "ops/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/random.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

constexpr std::int64_t kRandomBlock = 256;

/// Words 0 and 1 of philox(key, first + i) of base/rng.h. Each variable is an array over the block
/// so that every round is one loop over vectors: a 64-bit lane holds a 32-bit word and its product.
void philox_words(std::uint64_t key, std::uint64_t first, std::uint64_t* word0,
                  std::uint64_t* word1) {
  constexpr std::uint64_t kLow = 0xffffffffU;
  for (std::int64_t i = 0; i < kRandomBlock; ++i) {
    const std::uint64_t counter = first + static_cast<std::uint64_t>(i);
    std::uint64_t c0 = counter & kLow, c1 = counter >> 32, c2 = 0, c3 = 0;
    std::uint64_t k0 = key & kLow, k1 = key >> 32;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = 0xD2511F53U * c0, p1 = 0xCD9E8D57U * c2;
      c0 = (p1 >> 32) ^ c1 ^ k0;
      c1 = p1 & kLow;
      c2 = (p0 >> 32) ^ c3 ^ k1;
      c3 = p0 & kLow;
      k0 = (k0 + 0x9E3779B9U) & kLow;
      k1 = (k1 + 0xBB67AE85U) & kLow;
    }
    word0[i] = c0;
    word1[i] = c1;
  }
}

// The integer part is vectorised; logarithm and cosine are the C library's, because the values must
// equal random_normal's to the last bit.
void fill_normal(const Tensor& y, std::uint64_t key, std::uint64_t first_index, double stddev,
                 Stream& stream) {
  visit_float(y.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T* const to = y.data<T>();
    parallel_for(
        stream, y.count(), 4 * kRandomBlock, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
          alignas(64) std::uint64_t word0[kRandomBlock], word1[kRandomBlock];
          for (std::int64_t at = begin; at < end; at += kRandomBlock) {
            philox_words(key, first_index + static_cast<std::uint64_t>(at), word0, word1);
            const std::int64_t n = std::min(kRandomBlock, end - at);
            for (std::int64_t i = 0; i < n; ++i) {
              const double u1 = (static_cast<double>(word0[i]) + 0.5) * 0x1.0p-32;
              const double u2 = static_cast<double>(word1[i]) * 0x1.0p-32;
              to[at + i] = static_cast<T>(stddev * (std::sqrt(-2.0 * std::log(u1)) *
                                                    std::cos(2.0 * std::numbers::pi * u2)));
            }
          }
        });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops {
namespace cpu {
HWY_EXPORT(fill_normal);
}  // namespace cpu

void fill_normal(const Tensor& y, std::uint64_t key, std::uint64_t first_index, double stddev,
                 Stream& stream) {
  HEDDLE_CHECK(y.is_contiguous(), "random values for a strided {}", y.shape().text());
  using namespace cpu;
  HWY_DYNAMIC_DISPATCH(fill_normal)(y, key, first_index, stddev, stream);
}

}  // namespace heddle::ops
#endif  // HWY_ONCE
