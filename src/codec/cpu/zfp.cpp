#include "codec/zfp.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cpu/zfp.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/cpu/bit_stream.h"
#include "codec/cpu/tiles-inl.h"
#include "codec/zfp_block.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::codec::cpu {
namespace HWY_NAMESPACE {

/// Calls body(values of the row of blocks, how many, its columns' first) block by block.
template <class Value, class Body>
void for_zfp_blocks(const Zfp& codec, Value* values, std::int64_t n, const Body& body) {
  for (std::int64_t at = 0; at < n; at += codec.row_values()) {
    for (std::int64_t block = 0; block < codec.row_blocks(); ++block) {
      body(values + at, std::min(codec.row_values(), n - at), 4 * block);
    }
  }
}

std::uint32_t encode_zfp_tile(const Zfp& codec, const float* x, std::int64_t n, std::byte* to) {
  const std::uint32_t largest = largest_bits(x, n);
  if (largest >= kInfinityBits) return largest;
  BitWriter out(to);
  const int bits = codec.block_bits();
  for_zfp_blocks(codec, x, n, [&](const float* row, std::int64_t count, std::int64_t column) {
    float block[16];
    std::uint16_t planes[16];
    if (codec.is_line()) {
      std::copy_n(row, count, block);
      zfp::continue_line(block, static_cast<int>(count), 1);
      zfp::encode_block<1>(block, bits, planes, out);
    } else {
      zfp::gather_block(
          codec.columns(), count, column, [&](std::int64_t i) { return row[i]; }, block);
      zfp::encode_block<2>(block, bits, planes, out);
    }
  });
  out.end();
  return largest;
}

void decode_zfp_tile(const Zfp& codec, const std::byte* from, std::int64_t n, float* y) {
  BitReader in(from, codec.encoded_bytes(n));
  const int bits = codec.block_bits();
  for_zfp_blocks(codec, y, n, [&](float* row, std::int64_t count, std::int64_t column) {
    float block[16];
    std::uint16_t planes[16];
    if (codec.is_line()) {
      zfp::decode_block<1>(in, bits, codec.truncates(), planes, block);
      std::copy_n(block, count, row);
    } else {
      zfp::decode_block<2>(in, bits, codec.truncates(), planes, block);
      zfp::scatter_block(codec.columns(), count, column, block,
                         [&](std::int64_t i, float value) { row[i] = value; });
    }
  });
}

void encode_zfp(const Zfp& codec, const EncodeCall& call, Stream& stream) {
  encode_tiles(
      codec, call, stream,
      [&](const float* x, std::int64_t n, std::byte* to) {
        return encode_zfp_tile(codec, x, n, to);
      },
      [&](const std::byte* from, std::int64_t n, float* y) { decode_zfp_tile(codec, from, n, y); });
}

void decode_zfp(const Zfp& codec, const DecodeCall& call, Stream& stream) {
  decode_tiles(codec, call, stream, [&](const std::byte* from, std::int64_t n, float* y) {
    decode_zfp_tile(codec, from, n, y);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::codec::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::codec::cpu {
HEDDLE_DISPATCH_CODEC(Zfp, zfp)
}  // namespace heddle::codec::cpu
#endif  // HWY_ONCE
