#include "codec/fp8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cpu/fp8.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/cpu/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::codec::cpu {
namespace HWY_NAMESPACE {

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
