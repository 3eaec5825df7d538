#include "codec/e3m0.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cpu/e3m0.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/cpu/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::codec::cpu {
namespace HWY_NAMESPACE {

void encode_e3m0_codes(const float* HWY_RESTRICT x, std::int64_t n, float scale,
                       std::uint8_t* HWY_RESTRICT codes) {
  const std::int64_t half = (n + 1) / 2;
  const float* HWY_RESTRICT const high = x + half;
  for (std::int64_t i = 0; i < n / 2; ++i) {
    codes[i] = static_cast<std::uint8_t>(e3m0_of(x[i] / scale) | (e3m0_of(high[i] / scale) << 4));
  }
  if (half > n / 2) codes[half - 1] = static_cast<std::uint8_t>(e3m0_of(x[half - 1] / scale));
}

void decode_e3m0_codes(const std::uint8_t* HWY_RESTRICT codes, std::int64_t n, float scale,
                       float* HWY_RESTRICT y) {
  const std::int64_t half = (n + 1) / 2;
  for (std::int64_t i = 0; i < half; ++i) y[i] = from_e3m0(codes[i] & 15U) * scale;
  for (std::int64_t i = 0; i < n / 2; ++i) y[half + i] = from_e3m0(codes[i] >> 4) * scale;
}

void decode_e3m0_tile(const E3m0& codec, const std::byte* from, std::int64_t n, float* y) {
  decode_blocks(
      codec, from, n, y, [](const std::byte* bytes, std::int64_t count, float* to) HWY_ATTR {
        const float scale = from_bf16_bits(load<std::uint16_t>(bytes));
        decode_e3m0_codes(reinterpret_cast<const std::uint8_t*>(bytes + 2), count, scale, to);
      });
}

std::uint32_t encode_e3m0_tile(const E3m0& codec, const float* x, std::int64_t n, std::byte* to) {
  return encode_blocks(
      codec, x, n, to,
      [](const float* values, std::int64_t count, std::uint32_t largest, std::byte* bytes)
          HWY_ATTR {
            const std::uint16_t stored = bf16_bits(std::bit_cast<float>(largest));
            store(stored, bytes);
            // Where the scale rounds to zero all values decode to it, whatever their codes.
            const float scale = stored == 0 ? 1.0F : from_bf16_bits(stored);
            encode_e3m0_codes(values, count, scale, reinterpret_cast<std::uint8_t*>(bytes + 2));
          });
}

void encode_e3m0(const E3m0& codec, const EncodeCall& call, Stream& stream) {
  encode_tiles(
      codec, call, stream,
      [&](const float* x, std::int64_t n, std::byte* to)
          HWY_ATTR { return encode_e3m0_tile(codec, x, n, to); },
      [&](const std::byte* from, std::int64_t n, float* y)
          HWY_ATTR { decode_e3m0_tile(codec, from, n, y); });
}

void decode_e3m0(const E3m0& codec, const DecodeCall& call, Stream& stream) {
  decode_tiles(codec, call, stream, [&](const std::byte* from, std::int64_t n, float* y) HWY_ATTR {
    decode_e3m0_tile(codec, from, n, y);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::codec::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::codec::cpu {
HEDDLE_DISPATCH_CODEC(E3m0, e3m0)
}  // namespace heddle::codec::cpu
#endif  // HWY_ONCE
