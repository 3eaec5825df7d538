#include "codec/top_k.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cpu/top_k.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/cpu/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::codec::cpu {
namespace HWY_NAMESPACE {

std::int64_t count_at_least(const float* HWY_RESTRICT x, std::int64_t n, std::int32_t least) {
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    count += (std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff) >= least ? 1 : 0;
  }
  return count;
}

/// The largest threshold (bits of a magnitude) that at least `kept` values reach, or any that just
/// so many reach: found bit by bit.
std::int32_t threshold_of(const float* x, std::int64_t n, std::int64_t kept) {
  std::int32_t threshold = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const std::int32_t tried = threshold | (1 << bit);
    const std::int64_t count = count_at_least(x, n, tried);
    if (count == kept) return tried;
    if (count > kept) threshold = tried;
  }
  return threshold;
}

/// The two magnitudes that stand for all kept ones.
struct Levels {
  float low, high;
  float middle() const { return 0.5F * low + 0.5F * high; }
};

/// Of the magnitudes above `least`, in the order that TopK tells; and how many these are.
double sum_above(const float* x, const std::uint16_t* indices, std::int64_t kept, double least,
                 std::int64_t& count) {
  double sums[TopK::kLanes] = {};
  count = 0;
  for (std::int64_t i = 0; i < kept; ++i) {
    const double magnitude = std::fabs(static_cast<double>(x[indices[i]]));
    if (magnitude <= least) continue;
    sums[i % TopK::kLanes] += magnitude;
    ++count;
  }
  return sum_in_pairs<TopK::kLanes>(sums);
}

Levels levels_of(const float* x, const std::uint16_t* indices, std::int64_t kept) {
  std::int64_t highs = 0;
  const double sum = sum_above(x, indices, kept, -1.0, highs);
  double low = sum / static_cast<double>(kept), high = low, middle = low;
  for (int round = 0; round < TopK::kRounds; ++round) {
    const double high_sum = sum_above(x, indices, kept, middle, highs);
    if (highs > 0) high = high_sum / static_cast<double>(highs);
    if (highs < kept) low = (sum - high_sum) / static_cast<double>(kept - highs);
    middle = 0.5 * (low + high);
  }
  return {from_bf16_bits(bf16_bits(static_cast<float>(std::max(low, 0.0)))),
          from_bf16_bits(bf16_bits(static_cast<float>(high)))};
}

/// The indices of the `kept` largest of n, ascending.
void choose(const float* x, std::int64_t n, std::int64_t kept, std::uint16_t* indices) {
  const std::int32_t threshold = threshold_of(x, n, kept);
  std::int64_t at_threshold = kept - count_at_least(x, n, threshold + 1), found = 0;
  for (std::int64_t i = 0; i < n && found < kept; ++i) {
    const auto magnitude = static_cast<std::int32_t>(magnitude_bits(x[i]));
    if (magnitude < threshold) continue;
    if (magnitude == threshold && at_threshold-- <= 0) continue;
    indices[found++] = static_cast<std::uint16_t>(i);
  }
}

void encode_chunk(const TopK& codec, const float* x, std::int64_t n, std::byte* to,
                  std::uint16_t* indices) {
  const std::int64_t kept = codec.kept_of(n);
  choose(x, n, kept, indices);
  const Levels levels = levels_of(x, indices, kept);
  store(bf16_bits(levels.low), to, 0);
  store(bf16_bits(levels.high), to, 1);
  auto* out = reinterpret_cast<std::uint8_t*>(to + 4);
  std::uint64_t bits = 0;
  int filled = 0;
  const auto put = [&](std::uint64_t value, int width) {
    bits |= value << filled;
    for (filled += width; filled >= 8; filled -= 8, bits >>= 8) {
      *out++ = static_cast<std::uint8_t>(bits);
    }
  };
  const auto end_byte = [&] {
    if (filled > 0) put(0, 8 - filled);
  };
  for (std::int64_t i = 0; i < kept; ++i) put(indices[i], codec.index_bits());
  end_byte();
  for (std::int64_t i = 0; i < kept; ++i) {
    const float value = x[indices[i]];
    put((std::fabs(value) > levels.middle() ? 1U : 0U) | (std::signbit(value) ? 2U : 0U), 2);
  }
  end_byte();
}

/// Damaged indices that lie behind the chunk are left out.
void decode_chunk(const TopK& codec, const std::byte* from, std::int64_t n, float* y) {
  std::memset(y, 0, static_cast<std::size_t>(n) * sizeof(float));
  const std::int64_t kept = codec.kept_of(n);
  const float levels[] = {from_bf16_bits(load<std::uint16_t>(from, 0)),
                          from_bf16_bits(load<std::uint16_t>(from, 1))};
  const auto* index = reinterpret_cast<const std::uint8_t*>(from + 4);
  const std::uint8_t* const codes = index + codec.index_bytes(kept);
  const std::uint64_t mask = (std::uint64_t{1} << codec.index_bits()) - 1;
  std::uint64_t bits = 0;
  int filled = 0;
  for (std::int64_t i = 0; i < kept; ++i) {
    for (; filled < codec.index_bits(); filled += 8) bits |= std::uint64_t{*index++} << filled;
    const auto at = static_cast<std::int64_t>(bits & mask);
    bits >>= codec.index_bits();
    filled -= codec.index_bits();
    const unsigned code = codes[i / 4] >> (i % 4 * 2);
    const float magnitude = levels[code & 1U];
    if (at < n) y[at] = (code & 2U) != 0 ? -magnitude : magnitude;
  }
}

void decode_top_k_tile(const TopK& codec, const std::byte* from, std::int64_t n, float* y) {
  decode_blocks(codec, from, n, y, [&](const std::byte* bytes, std::int64_t count, float* to) {
    decode_chunk(codec, bytes, count, to);
  });
}

std::uint32_t encode_top_k_tile(const TopK& codec, const float* x, std::int64_t n, std::byte* to) {
  std::uint16_t indices[TopK::kMostKept];
  return encode_blocks(
      codec, x, n, to,
      [&](const float* values, std::int64_t count, std::uint32_t largest, std::byte* bytes) {
        if (largest < kInfinityBits) encode_chunk(codec, values, count, bytes, indices);
      });
}

void encode_top_k(const TopK& codec, const EncodeCall& call, Stream& stream) {
  encode_tiles(
      codec, call, stream,
      [&](const float* x, std::int64_t n, std::byte* to) {
        return encode_top_k_tile(codec, x, n, to);
      },
      [&](const std::byte* from, std::int64_t n, float* y) {
        decode_top_k_tile(codec, from, n, y);
      });
}

void decode_top_k(const TopK& codec, const DecodeCall& call, Stream& stream) {
  decode_tiles(codec, call, stream, [&](const std::byte* from, std::int64_t n, float* y) {
    decode_top_k_tile(codec, from, n, y);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::codec::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::codec::cpu {
HEDDLE_DISPATCH_CODEC(TopK, top_k)
}  // namespace heddle::codec::cpu
#endif  // HWY_ONCE
