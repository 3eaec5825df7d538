// What the codecs have in common on the CPU, for the SIMD target being compiled; included once per
// target by the files that dispatch.
//
// Tensors are worked through in tiles, which stay in the cache: sum of value and residual, test for
// values that are not finite, encoding, decoding, new residual. A codec gives two functions, which
// encode and decode up to a tile of values.
#if defined(HEDDLE_CODEC_CPU_TILES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CODEC_CPU_TILES_INL_H
#undef HEDDLE_CODEC_CPU_TILES_INL_H
#else
#define HEDDLE_CODEC_CPU_TILES_INL_H
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstring>

#include "codec/cpu/bad_values.h"
#include "codec/cpu/bytes.h"
#include "codec/cpu/dispatch.h"
#include "codec/value_codes.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::codec::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The loops without intrinsics are in the form that the compiler turns into vectors of this target.

/// The bits of the largest magnitude; of an infinity or NaN they are those of infinity or more.
inline std::uint32_t largest_bits(const float* HWY_RESTRICT x, std::int64_t n) {
  std::int32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffU);
    most = most > bits ? most : bits;
  }
  return static_cast<std::uint32_t>(most);
}

inline void sum_of(const float* HWY_RESTRICT x, const float* HWY_RESTRICT y,
                   float* HWY_RESTRICT sum, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = x[i] + y[i];
}
inline void difference_of(const float* HWY_RESTRICT x, const float* HWY_RESTRICT y,
                          float* HWY_RESTRICT difference, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) difference[i] = x[i] - y[i];
}
inline void add_to(const float* HWY_RESTRICT x, float* HWY_RESTRICT y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}

/// Of numbers added in pairs, half of their number apart.
template <int kCount>
inline double sum_in_pairs(double* sums) {
  for (int width = kCount / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

/// Values of a tile: a few thousand, in whole blocks.
inline std::int64_t tile_values(std::int64_t block) {
  constexpr std::int64_t kUsual = 4096;
  return block * std::max<std::int64_t>(1, kUsual / block);
}

/// Room for two tiles of floats, until the next call of it on this thread.
struct TileBuffers {
  explicit TileBuffers(std::int64_t tile) {
    const auto bytes = static_cast<std::size_t>(tile) * sizeof(float);
    std::byte* const at = ops::cpu::Scratch::of_this_thread().at_least(2 * bytes);
    first = reinterpret_cast<float*>(at);
    second = reinterpret_cast<float*>(at + bytes);
  }
  float *first, *second;
};

/// Tiles below which another thread does not pay for its start.
inline std::int64_t tile_grain(std::int64_t tile) {
  return std::max<std::int64_t>(1, ops::cpu::kGrain / tile);
}

/// encode(values, n, bytes) and decode(bytes, n, values) of up to a tile. The first returns
/// largest_bits of the values, and whatever it writes where these are not finite is given up.
template <class Name, class Encode, class Decode>
void encode_tiles(const Name& codec, const EncodeCall& call, Stream& stream, const Encode& encode,
                  const Decode& decode) {
  const std::int64_t tile = tile_values(codec.block());
  const std::size_t tile_bytes = codec.encoded_bytes(tile);
  const std::int64_t pieces = (call.values + call.piece - 1) / call.piece;
  const std::int64_t tiles = (call.piece + tile - 1) / tile;  // of a piece
  ops::cpu::parallel_for(
      stream, pieces * tiles, tile_grain(tile), [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
        const TileBuffers buffers(tile);
        for (std::int64_t at = begin; at < end; ++at) {
          const std::int64_t piece = at / tiles, in_piece = at % tiles;
          const std::int64_t first = piece * call.piece + in_piece * tile;
          const std::int64_t n =
              std::min({tile, call.piece - in_piece * tile, call.values - first});
          if (n <= 0) continue;
          std::byte* const to = call.bytes + static_cast<std::size_t>(piece) * call.piece_bytes +
                                static_cast<std::size_t>(in_piece) * tile_bytes;
          const float* from = call.x + first;
          float* const residual = call.residual == nullptr ? nullptr : call.residual + first;
          if (residual != nullptr) {
            sum_of(from, residual, buffers.first, n);
            from = buffers.first;
          }
          if (encode(from, n, to) >= kInfinityBits) {
            note_first_bad(call, first, from, n);
            std::memset(to, 0, codec.encoded_bytes(n));
            continue;
          }
          if (residual != nullptr) {
            decode(to, n, buffers.second);
            difference_of(from, buffers.second, residual, n);
          }
        }
      });
}

template <class Name, class Decode>
void decode_tiles(const Name& codec, const DecodeCall& call, Stream& stream, const Decode& decode) {
  const std::int64_t tile = tile_values(codec.block());
  const std::size_t tile_bytes = codec.encoded_bytes(tile);
  ops::cpu::parallel_for(
      stream, (call.values + tile - 1) / tile, tile_grain(tile),
      [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
        const TileBuffers buffers(tile);
        for (std::int64_t at = begin; at < end; ++at) {
          const std::int64_t first = at * tile, n = std::min(tile, call.values - first);
          const std::byte* const from = call.bytes + static_cast<std::size_t>(at) * tile_bytes;
          if (call.adds) {
            decode(from, n, buffers.first);
            add_to(buffers.first, call.y + first, n);
          } else {
            decode(from, n, call.y + first);
          }
        }
      });
}

/// Calls decode(bytes, n, values) for each block of a tile.
template <class Name, class Decode>
void decode_blocks(const Name& codec, const std::byte* bytes, std::int64_t n, float* y,
                   const Decode& decode) {
  const std::int64_t block = codec.block();
  const std::size_t block_bytes = codec.block_bytes(block);
  for (std::int64_t at = 0; at < n; at += block, bytes += block_bytes) {
    decode(bytes, std::min(block, n - at), y + at);
  }
}

/// Calls encode(values, n, largest_bits, bytes) for each block of a tile; returns the largest of
/// all. What comes next is asked for meanwhile: a codec goes over a block twice, and would wait for
/// memory in the first round only.
template <class Name, class Encode>
std::uint32_t encode_blocks(const Name& codec, const float* x, std::int64_t n, std::byte* bytes,
                            const Encode& encode) {
  constexpr std::int64_t kAhead = 1024, kLine = 16;  // in values
  const std::int64_t block = codec.block();
  const std::size_t block_bytes = codec.block_bytes(block);
  std::uint32_t most = 0;
  for (std::int64_t at = 0; at < n; at += block, bytes += block_bytes) {
    const std::int64_t count = std::min(block, n - at);
    for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(x + at + kAhead + i);
    const std::uint32_t largest = largest_bits(x + at, count);
    encode(x + at, count, largest, bytes);
    most = std::max(most, largest);
  }
  return most;
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::codec::cpu
HWY_AFTER_NAMESPACE();
#endif
