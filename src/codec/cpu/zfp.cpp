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

/// Values of each of the four rows of a block that begins at column `column` of a row of blocks
/// with n values; rows that have none come last.
void row_counts(const Zfp& codec, std::int64_t n, std::int64_t column, std::int64_t* counts) {
  for (std::int64_t row = 0; row < 4; ++row) {
    const std::int64_t in_row = std::min(codec.columns(), n - row * codec.columns());
    counts[row] = std::clamp<std::int64_t>(in_row - column, 0, 4);
  }
}

/// Continues a line of four of which `count` are there.
void continue_line(float* line, std::int64_t count, std::int64_t step) {
  if (count == 0) line[0] = 0.0F;
  if (count <= 1) line[step] = line[0];
  if (count <= 2) line[2 * step] = line[step];
  if (count <= 3) line[3 * step] = line[0];
}

void gather_block(const Zfp& codec, const float* x, std::int64_t n, std::int64_t column,
                  float* block) {
  std::int64_t counts[4], rows = 0;
  row_counts(codec, n, column, counts);
  for (std::int64_t row = 0; row < 4; ++row) {
    const float* const from = x + row * codec.columns() + column;
    for (std::int64_t i = 0; i < counts[row]; ++i) block[4 * row + i] = from[i];
    if (counts[row] > 0) {
      continue_line(block + 4 * row, counts[row], 1);
      ++rows;
    }
  }
  for (std::int64_t i = 0; i < 4; ++i) continue_line(block + i, rows, 4);
}

void scatter_block(const Zfp& codec, const float* block, std::int64_t n, std::int64_t column,
                   float* y) {
  std::int64_t counts[4];
  row_counts(codec, n, column, counts);
  for (std::int64_t row = 0; row < 4; ++row) {
    std::copy_n(block + 4 * row, counts[row], y + row * codec.columns() + column);
  }
}

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
    if (codec.is_line()) {
      std::copy_n(row, count, block);
      continue_line(block, count, 1);
      zfp::encode_block<1>(block, bits, out);
    } else {
      gather_block(codec, row, count, column, block);
      zfp::encode_block<2>(block, bits, out);
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
    if (codec.is_line()) {
      zfp::decode_block<1>(in, bits, codec.truncates(), block);
      std::copy_n(block, count, row);
    } else {
      zfp::decode_block<2>(in, bits, codec.truncates(), block);
      scatter_block(codec, block, count, column, row);
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
