#include "codec/fp8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cpu/fp8.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/cpu/block_scale.h"
#include "codec/cpu/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::codec::cpu {
namespace HWY_NAMESPACE {

/// e4m3 of a value, 448 at most: rounded to nearest even.
inline std::uint8_t e4m3_of(float value) {
  constexpr float kDenormalShift = 0x1p14F;  // behind it the last bit of a float is worth 2^-9
  constexpr std::uint32_t kRebias = (127 - 7) << 3, kLargest = 0x7e;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t normal = ((magnitude + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20) - kRebias;
  const std::uint32_t denormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + kDenormalShift) -
      std::bit_cast<std::uint32_t>(kDenormalShift);
  const std::uint32_t code = magnitude < std::bit_cast<std::uint32_t>(0x1p-6F) ? denormal : normal;
  return static_cast<std::uint8_t>((code < kLargest ? code : kLargest) | ((bits >> 24) & 0x80U));
}

inline float from_e4m3(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fU;
  const float normal = std::bit_cast<float>((magnitude << 20) + ((127U - 7U) << 23));
  const float denormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9F;
  const float value = magnitude < 8 ? denormal : normal;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | ((code & 0x80U) << 24));
}

void encode_e4m3_codes(const float* HWY_RESTRICT x, std::int64_t n, float scale,
                       std::uint8_t* HWY_RESTRICT codes) {
  for (std::int64_t i = 0; i < n; ++i) codes[i] = e4m3_of(x[i] / scale);
}

void decode_e4m3_codes(const std::uint8_t* HWY_RESTRICT codes, std::int64_t n, float scale,
                       float* HWY_RESTRICT y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = from_e4m3(codes[i]) * scale;
}

void decode_fp8_tile(const Fp8& codec, const std::byte* from, std::int64_t n, float* y) {
  decode_blocks(codec, from, n, y,
                [](const std::byte* bytes, std::int64_t count, float* to) HWY_ATTR {
                  decode_e4m3_codes(reinterpret_cast<const std::uint8_t*>(bytes + 4), count,
                                    load<float>(bytes), to);
                });
}

std::uint32_t encode_fp8_tile(const Fp8& codec, const float* x, std::int64_t n, std::byte* to) {
  return encode_blocks(codec, x, n, to,
                       [](const float* values, std::int64_t count, std::uint32_t largest,
                          std::byte* bytes) HWY_ATTR {
                         const float scale = block_scale(largest, 448.0F);
                         store(scale, bytes);
                         encode_e4m3_codes(values, count, divisor(scale),
                                           reinterpret_cast<std::uint8_t*>(bytes + sizeof scale));
                       });
}

void encode_fp8(const Fp8& codec, const EncodeCall& call, Stream& stream) {
  encode_tiles(
      codec, call, stream,
      [&](const float* x, std::int64_t n, std::byte* to)
          HWY_ATTR { return encode_fp8_tile(codec, x, n, to); },
      [&](const std::byte* from, std::int64_t n, float* y)
          HWY_ATTR { decode_fp8_tile(codec, from, n, y); });
}

void decode_fp8(const Fp8& codec, const DecodeCall& call, Stream& stream) {
  decode_tiles(codec, call, stream, [&](const std::byte* from, std::int64_t n, float* y) HWY_ATTR {
    decode_fp8_tile(codec, from, n, y);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::codec::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::codec::cpu {
HEDDLE_DISPATCH_CODEC(Fp8, fp8)
}  // namespace heddle::codec::cpu
#endif  // HWY_ONCE
