#include "codec/sign.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cpu/sign.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/cpu/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::codec::cpu {
namespace HWY_NAMESPACE {

/// In an order that is the same on every target.
double sum_of_magnitudes(const float* HWY_RESTRICT x, std::int64_t n) {
  constexpr int kLanes = Sign::kLanes;
  alignas(64) double sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(std::fabs(x[i + lane]));
    }
  }
  for (int lane = 0; i < n; ++i, ++lane) sums[lane] += static_cast<double>(std::fabs(x[i]));
  return sum_in_pairs<kLanes>(sums);
}

// Bits are stored and loaded by the mask of a vector where that fills bytes, 64 at a time because
// these functions may touch 8 bytes.

void store_signs(const float* HWY_RESTRICT x, std::int64_t n, std::uint8_t* HWY_RESTRICT bits) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  if (lanes >= 8) {
    for (; i + 64 <= n; i += 64) {
      alignas(64) std::uint8_t word[64] = {};
      for (std::int64_t j = 0; j < 64; j += lanes) {
        hn::StoreMaskBits(d, hn::Ge(hn::LoadU(d, x + i + j), hn::Zero(d)), word + j / 8);
      }
      std::memcpy(bits + i / 8, word, 8);
    }
  }
  for (; i < n; i += 8) {
    unsigned byte = 0;
    for (std::int64_t j = i; j < std::min(i + 8, n); ++j) byte |= (x[j] >= 0.0F) << (j - i);
    bits[i / 8] = static_cast<std::uint8_t>(byte);
  }
}

void load_signs(const std::uint8_t* HWY_RESTRICT bits, std::int64_t n, float scale,
                float* HWY_RESTRICT y) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto plus = hn::Set(d, scale), minus = hn::Set(d, -scale);
  std::int64_t i = 0;
  if (lanes >= 8) {
    for (; i + 64 <= n; i += 64) {
      alignas(64) std::uint8_t word[16] = {};
      std::memcpy(word, bits + i / 8, 8);
      for (std::int64_t j = 0; j < 64; j += lanes) {
        hn::StoreU(hn::IfThenElse(hn::LoadMaskBits(d, word + j / 8), plus, minus), d, y + i + j);
      }
    }
  }
  for (; i < n; ++i) y[i] = (bits[i / 8] >> (i % 8) & 1) != 0 ? scale : -scale;
}

/// residual = x - decoded, where x is given with its residual in it.
void sign_residual(const float* HWY_RESTRICT x, std::int64_t n, float scale,
                   float* HWY_RESTRICT residual) {
  for (std::int64_t i = 0; i < n; ++i) residual[i] = x[i] - (x[i] >= 0.0F ? scale : -scale);
}

/// x, or its sum with the residual in `buffer`.
const float* sum_with_residual(const EncodeCall& call, std::int64_t first, std::int64_t n,
                               float* buffer) {
  if (call.residual == nullptr) return call.x + first;
  sum_of(call.x + first, call.residual + first, buffer, n);
  return buffer;
}

/// The signs of values of one piece, of which `first`, a multiple of 8 in its piece, is the first.
void store_signs_of(const EncodeCall& call, std::int64_t first, const float* x, std::int64_t n) {
  const std::int64_t piece = first / call.piece, in_piece = first % call.piece;
  std::byte* const to = call.bytes + static_cast<std::size_t>(piece) * call.piece_bytes;
  store_signs(x, n, reinterpret_cast<std::uint8_t*>(to + sizeof(float)) + in_piece / 8);
}

/// Whether each tile of the tensor lies in one piece, so that signs can be stored while magnitudes
/// are added up.
bool has_whole_tiles(const EncodeCall& call) {
  return call.piece == call.values || call.piece % Sign::kTile == 0;
}

/// Sums of magnitudes by tile into the workspace, signs where they can be. Returns whether all
/// values are finite.
bool measure(const EncodeCall& call, Stream& stream) {
  auto* const sums = reinterpret_cast<double*>(call.workspace);
  std::atomic<bool> is_finite = true;
  const std::int64_t tiles = (call.values + Sign::kTile - 1) / Sign::kTile;
  ops::cpu::parallel_for(
      stream, tiles, tile_grain(Sign::kTile), [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
        const TileBuffers buffers(Sign::kTile);
        for (std::int64_t at = begin; at < end; ++at) {
          const std::int64_t first = at * Sign::kTile;
          const std::int64_t n = std::min(Sign::kTile, call.values - first);
          const float* const x = sum_with_residual(call, first, n, buffers.first);
          sums[at] = sum_of_magnitudes(x, n);
          if (has_whole_tiles(call)) store_signs_of(call, first, x, n);
          if (!std::isfinite(sums[at])) {
            note_first_bad(call, first, x, n);
            is_finite = false;
          }
        }
      });
  return is_finite;
}

/// What the first round could not do: signs of pieces that cut tiles, and residuals.
void finish(const EncodeCall& call, float scale, Stream& stream) {
  const std::int64_t pieces = (call.values + call.piece - 1) / call.piece;
  const std::int64_t tiles = (call.piece + Sign::kTile - 1) / Sign::kTile;  // of a piece
  ops::cpu::parallel_for(
      stream, pieces * tiles, tile_grain(Sign::kTile),
      [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
        const TileBuffers buffers(Sign::kTile);
        for (std::int64_t at = begin; at < end; ++at) {
          const std::int64_t in_piece = at % tiles * Sign::kTile;
          const std::int64_t first = at / tiles * call.piece + in_piece;
          const std::int64_t n =
              std::min({Sign::kTile, call.piece - in_piece, call.values - first});
          if (n <= 0) continue;
          const float* const x = sum_with_residual(call, first, n, buffers.first);
          if (!has_whole_tiles(call)) store_signs_of(call, first, x, n);
          if (call.residual != nullptr) sign_residual(x, n, scale, call.residual + first);
        }
      });
}

void encode_sign(const Sign& codec, const EncodeCall& call, Stream& stream) {
  if (!measure(call, stream)) {
    std::memset(call.bytes, 0, codec.encoded_bytes(call.values, call.piece));
    return;
  }
  const auto* const sums = reinterpret_cast<const double*>(call.workspace);
  double lanes[Sign::kTileLanes] = {};
  for (std::int64_t at = 0; at * Sign::kTile < call.values; ++at) {
    lanes[at % Sign::kTileLanes] += sums[at];
  }
  const auto scale =
      static_cast<float>(sum_in_pairs<Sign::kTileLanes>(lanes) / static_cast<double>(call.values));
  std::byte* to = call.bytes;
  for (std::int64_t first = 0; first < call.values; first += call.piece, to += call.piece_bytes) {
    store(scale, to);
  }
  if (call.residual != nullptr || !has_whole_tiles(call)) finish(call, scale, stream);
}

void decode_sign(const Sign&, const DecodeCall& call, Stream& stream) {
  const float scale = load<float>(call.bytes);
  const auto* const bits = reinterpret_cast<const std::uint8_t*>(call.bytes + sizeof scale);
  ops::cpu::parallel_for(stream, (call.values + Sign::kTile - 1) / Sign::kTile,
                         tile_grain(Sign::kTile),
                         [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
                           const TileBuffers buffers(Sign::kTile);
                           for (std::int64_t at = begin; at < end; ++at) {
                             const std::int64_t first = at * Sign::kTile,
                                                n = std::min(Sign::kTile, call.values - first);
                             if (call.adds) {
                               load_signs(bits + first / 8, n, scale, buffers.first);
                               add_to(buffers.first, call.y + first, n);
                             } else {
                               load_signs(bits + first / 8, n, scale, call.y + first);
                             }
                           }
                         });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::codec::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::codec::cpu {
HEDDLE_DISPATCH_CODEC(Sign, sign)
}  // namespace heddle::codec::cpu
#endif  // HWY_ONCE
