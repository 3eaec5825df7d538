#include "codec/bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cpu/bf16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/cpu/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::codec::cpu {
namespace HWY_NAMESPACE {

std::uint32_t encode_bf16_tile(const float* HWY_RESTRICT x, std::int64_t n,
                               std::byte* HWY_RESTRICT to) {
  for (std::int64_t i = 0; i < n; ++i) store(bf16_bits(x[i]), to, i);
  return largest_bits(x, n);
}

void decode_bf16_tile(const std::byte* HWY_RESTRICT from, std::int64_t n, float* HWY_RESTRICT y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = from_bf16_bits(load<std::uint16_t>(from, i));
}

void encode_bf16(const Bf16& codec, const EncodeCall& call, Stream& stream) {
  encode_tiles(codec, call, stream, encode_bf16_tile, decode_bf16_tile);
}

void decode_bf16(const Bf16& codec, const DecodeCall& call, Stream& stream) {
  decode_tiles(codec, call, stream, decode_bf16_tile);
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::codec::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::codec::cpu {

HEDDLE_DISPATCH_CODEC(Bf16, bf16)
}  // namespace heddle::codec::cpu
#endif  // HWY_ONCE
