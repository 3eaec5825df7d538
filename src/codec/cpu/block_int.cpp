#include "codec/block_int.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cpu/block_int.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/cpu/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::codec::cpu {
namespace HWY_NAMESPACE {

void encode_int8_codes(const float* HWY_RESTRICT x, std::int64_t n, float scale,
                       std::int8_t* HWY_RESTRICT codes) {
  for (std::int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<std::int8_t>(nearest_code(x[i] / scale, 127));
  }
}

void decode_int8_codes(const std::int8_t* HWY_RESTRICT codes, std::int64_t n, float scale,
                       float* HWY_RESTRICT y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(codes[i]) * scale;
}

void encode_int4_codes(const float* HWY_RESTRICT x, std::int64_t n, float scale,
                       std::uint8_t* HWY_RESTRICT codes) {
  const std::int64_t half = (n + 1) / 2;
  const float* HWY_RESTRICT const high = x + half;
  for (std::int64_t i = 0; i < n / 2; ++i) {
    codes[i] = static_cast<std::uint8_t>((nearest_code(x[i] / scale, 7) & 15) |
                                         (nearest_code(high[i] / scale, 7) << 4));
  }
  if (half > n / 2) {
    codes[half - 1] = static_cast<std::uint8_t>(nearest_code(x[half - 1] / scale, 7) & 15);
  }
}

void decode_int4_codes(const std::int8_t* HWY_RESTRICT codes, std::int64_t n, float scale,
                       float* HWY_RESTRICT y) {
  const std::int64_t half = (n + 1) / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    y[i] = static_cast<float>(static_cast<std::int8_t>(codes[i] << 4) >> 4) * scale;
  }
  for (std::int64_t i = 0; i < n / 2; ++i) y[half + i] = static_cast<float>(codes[i] >> 4) * scale;
}

void decode_int_tile(const BlockInt& codec, const std::byte* from, std::int64_t n, float* y) {
  decode_blocks(codec, from, n, y,
                [&](const std::byte* bytes, std::int64_t count, float* to) HWY_ATTR {
                  const float scale = load<float>(bytes);
                  const auto* const codes = reinterpret_cast<const std::int8_t*>(bytes + 4);
                  if (codec.bits() == 8) {
                    decode_int8_codes(codes, count, scale, to);
                  } else {
                    decode_int4_codes(codes, count, scale, to);
                  }
                });
}

std::uint32_t encode_int_tile(const BlockInt& codec, const float* x, std::int64_t n,
                              std::byte* to) {
  return encode_blocks(
      codec, x, n, to,
      [&](const float* values, std::int64_t count, std::uint32_t largest, std::byte* bytes)
          HWY_ATTR {
            const float scale = block_scale(largest, static_cast<float>(codec.largest_code()));
            store(scale, bytes);
            if (codec.bits() == 8) {
              encode_int8_codes(values, count, divisor(scale),
                                reinterpret_cast<std::int8_t*>(bytes + sizeof scale));
            } else {
              encode_int4_codes(values, count, divisor(scale),
                                reinterpret_cast<std::uint8_t*>(bytes + sizeof scale));
            }
          });
}

void encode_block_int(const BlockInt& codec, const EncodeCall& call, Stream& stream) {
  encode_tiles(
      codec, call, stream,
      [&](const float* x, std::int64_t n, std::byte* to)
          HWY_ATTR { return encode_int_tile(codec, x, n, to); },
      [&](const std::byte* from, std::int64_t n, float* y)
          HWY_ATTR { decode_int_tile(codec, from, n, y); });
}

void decode_block_int(const BlockInt& codec, const DecodeCall& call, Stream& stream) {
  decode_tiles(codec, call, stream, [&](const std::byte* from, std::int64_t n, float* y) HWY_ATTR {
    decode_int_tile(codec, from, n, y);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::codec::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::codec::cpu {
HEDDLE_DISPATCH_CODEC(BlockInt, block_int)
}  // namespace heddle::codec::cpu
#endif  // HWY_ONCE
