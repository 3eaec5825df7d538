#include "codec/lossless.h"

#include <atomic>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cpu/lossless.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/cpu/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::codec::cpu {
namespace HWY_NAMESPACE {

/// A block taken apart. Arrays end with room for a whole vector.
struct Parts {
  static constexpr int kPlanes = 3, kRoom = Lossless::kBlock + 64;
  alignas(64) std::uint8_t plane[kPlanes][kRoom];
  alignas(64) std::uint8_t exponent[kRoom];
  alignas(64) std::uint8_t below[kRoom];  ///< base - exponent, or the mark of a rare one
};

void take_apart(const float* HWY_RESTRICT x, std::int64_t n, Parts& parts) {
  std::uint8_t* HWY_RESTRICT const low = parts.plane[0];
  std::uint8_t* HWY_RESTRICT const middle = parts.plane[1];
  std::uint8_t* HWY_RESTRICT const high = parts.plane[2];
  std::uint8_t* HWY_RESTRICT const exponent = parts.exponent;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(x[i]);
    low[i] = static_cast<std::uint8_t>(bits);
    middle[i] = static_cast<std::uint8_t>(bits >> 8);
    high[i] = static_cast<std::uint8_t>(((bits >> 16) & 0x7fU) | ((bits >> 24) & 0x80U));
    exponent[i] = static_cast<std::uint8_t>(bits >> 23);
  }
}

void put_together(const Parts& parts, std::int64_t n, float* HWY_RESTRICT y) {
  const std::uint8_t* HWY_RESTRICT const low = parts.plane[0];
  const std::uint8_t* HWY_RESTRICT const middle = parts.plane[1];
  const std::uint8_t* HWY_RESTRICT const high = parts.plane[2];
  const std::uint8_t* HWY_RESTRICT const exponent = parts.exponent;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t top = high[i];
    y[i] = std::bit_cast<float>(low[i] | (std::uint32_t{middle[i]} << 8) | ((top & 0x7fU) << 16) |
                                ((top & 0x80U) << 24) | (std::uint32_t{exponent[i]} << 23));
  }
}

bool has_any(const std::uint8_t* HWY_RESTRICT bytes, std::int64_t n) {
  std::uint8_t any = 0;
  for (std::int64_t i = 0; i < n; ++i) any |= bytes[i];
  return any != 0;
}

std::uint8_t largest_of(const std::uint8_t* HWY_RESTRICT bytes, std::int64_t n) {
  std::uint8_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) most = most > bytes[i] ? most : bytes[i];
  return most;
}

std::int64_t count_at_least(const std::uint8_t* HWY_RESTRICT bytes, std::int64_t n,
                            std::uint8_t least) {
  std::uint16_t count = 0;  // a block has 1024 values
  for (std::int64_t i = 0; i < n; ++i)
    count = static_cast<std::uint16_t>(count + (bytes[i] >= least));
  return count;
}

/// The smallest distance below the base that a width cannot express; 0 for width 0.
constexpr std::uint8_t mark_of(int width) { return static_cast<std::uint8_t>((1 << width) - 1); }

struct Width {
  int bits;
  std::int64_t rare;
};

Width best_width(const std::uint8_t* below, std::int64_t n) {
  Width best{0, n};
  std::int64_t least = n;
  for (int bits = 1; bits <= 7; ++bits) {
    const std::int64_t planes = bits * ((n + 7) / 8);
    if (planes >= least) break;
    const std::int64_t rare = count_at_least(below, n, mark_of(bits));
    if (planes + rare < least) best = {bits, rare}, least = planes + rare;
  }
  return best;
}

// Bits of bytes are stored and loaded by the mask of a vector, a whole one also where fewer values
// are left, or one by one where vectors are shorter than a byte of bits.

/// Bit `bit` of each byte, eight to a byte.
std::uint8_t* store_bits(const std::uint8_t* from, std::int64_t n, int bit, std::uint8_t* to) {
  const hn::ScalableTag<std::uint8_t> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  alignas(64) std::uint8_t bits[Lossless::kBlock / 8 + 64] = {};
  if (lanes >= 8) {
    const auto wanted = hn::Set(d, static_cast<std::uint8_t>(1 << bit));
    for (std::int64_t i = 0; i < n; i += lanes) {
      hn::StoreMaskBits(d, hn::TestBit(hn::Load(d, from + i), wanted), bits + i / 8);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      bits[i / 8] = static_cast<std::uint8_t>(bits[i / 8] | (from[i] >> bit & 1) << i % 8);
    }
  }
  const std::int64_t bytes = (n + 7) / 8;
  if (n % 8 != 0) bits[bytes - 1] = static_cast<std::uint8_t>(bits[bytes - 1] & ((1 << n % 8) - 1));
  std::memcpy(to, bits, static_cast<std::size_t>(bytes));
  return to + bytes;
}

/// Sets bit `bit` of each byte whose bit is set.
const std::uint8_t* load_bits(const std::uint8_t* from, std::int64_t n, int bit, std::uint8_t* to) {
  const hn::ScalableTag<std::uint8_t> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  alignas(64) std::uint8_t bits[Lossless::kBlock / 8 + 64] = {};
  const std::int64_t bytes = (n + 7) / 8;
  std::memcpy(bits, from, static_cast<std::size_t>(bytes));
  if (lanes >= 8) {
    const auto value = hn::Set(d, static_cast<std::uint8_t>(1 << bit));
    for (std::int64_t i = 0; i < n; i += lanes) {
      const auto set = hn::IfThenElseZero(hn::LoadMaskBits(d, bits + i / 8), value);
      hn::Store(hn::Or(hn::Load(d, to + i), set), d, to + i);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = static_cast<std::uint8_t>(to[i] | (bits[i / 8] >> i % 8 & 1) << bit);
    }
  }
  return from + bytes;
}

void distances_below(const std::uint8_t* HWY_RESTRICT exponent, std::int64_t n, std::uint8_t base,
                     std::uint8_t* HWY_RESTRICT below) {
  for (std::int64_t i = 0; i < n; ++i) below[i] = static_cast<std::uint8_t>(base - exponent[i]);
}

void cap_at(std::uint8_t* HWY_RESTRICT below, std::int64_t n, std::uint8_t most) {
  for (std::int64_t i = 0; i < n; ++i) below[i] = below[i] < most ? below[i] : most;
}

/// Returns the words written.
std::uint32_t encode_lossless_block(const float* x, std::int64_t n, std::byte* to, Parts& parts) {
  take_apart(x, n, parts);
  const std::uint8_t base = largest_of(parts.exponent, n);
  distances_below(parts.exponent, n, base, parts.below);
  const Width width = best_width(parts.below, n);
  auto* const begin = reinterpret_cast<std::uint8_t*>(to);
  std::uint8_t* out = begin + Lossless::kHeaderBytes;
  unsigned present = 0;
  for (int plane = 0; plane < Parts::kPlanes; ++plane) {
    if (!has_any(parts.plane[plane], n)) continue;
    present |= 1U << plane;
    std::memcpy(out, parts.plane[plane], static_cast<std::size_t>(n));
    out += n;
  }
  const std::uint8_t mark = mark_of(width.bits);
  cap_at(parts.below, n, mark);
  for (int bit = 0; bit < width.bits; ++bit) out = store_bits(parts.below, n, bit, out);
  if (width.rare > 0) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (parts.below[i] == mark) *out++ = parts.exponent[i];
    }
  }
  begin[0] = base;
  begin[1] = static_cast<std::uint8_t>(static_cast<unsigned>(width.bits) | (present << 4));
  store(static_cast<std::uint16_t>(width.rare), to, 1);
  while ((out - begin) % 4 != 0) *out++ = 0;
  return static_cast<std::uint32_t>((out - begin) / 4);
}

/// Whether the bytes are those of a block of n values.
bool decode_lossless_block(const std::byte* from, std::int64_t size_bytes, std::int64_t n, float* y,
                           Parts& parts) {
  const auto* in = reinterpret_cast<const std::uint8_t*>(from);
  if (size_bytes < static_cast<std::int64_t>(Lossless::kHeaderBytes)) return false;
  const std::uint8_t base = in[0];
  const int width = in[1] & 7;
  const unsigned present = in[1] >> 4;
  const std::int64_t rare = load<std::uint16_t>(from, 1);
  const std::int64_t needed = static_cast<std::int64_t>(Lossless::kHeaderBytes) +
                              std::popcount(present & 7U) * n + width * ((n + 7) / 8) + rare;
  if ((needed + 3) / 4 * 4 != size_bytes) return false;
  in += Lossless::kHeaderBytes;
  for (int plane = 0; plane < Parts::kPlanes; ++plane) {
    const bool is_there = (present >> plane & 1U) != 0;
    if (is_there) {
      std::memcpy(parts.plane[plane], in, static_cast<std::size_t>(n));
      in += n;
    } else {
      std::memset(parts.plane[plane], 0, static_cast<std::size_t>(n));
    }
  }
  std::memset(parts.below, 0, sizeof parts.below);
  for (int bit = 0; bit < width; ++bit) in = load_bits(in, n, bit, parts.below);
  distances_below(parts.below, n, base, parts.exponent);
  if (rare > 0) {
    const std::uint8_t mark = mark_of(width);
    const std::uint8_t* const end = in + rare;
    for (std::int64_t i = 0; i < n; ++i) {
      if (parts.below[i] != mark) continue;
      if (in == end) return false;
      parts.exponent[i] = *in++;
    }
    if (in != end) return false;
  }
  put_together(parts, n, y);
  return true;
}

/// Each thread packs a run of blocks tightly, from where they would begin if those before it were
/// as large as can be; then the runs are moved together, and their ends in the table with them.
void encode_lossless_piece(const Lossless& codec, const float* x, std::int64_t n, std::byte* to,
                           Stream& stream) {
  constexpr std::int64_t kBlock = Lossless::kBlock;
  const std::int64_t blocks = codec.blocks(n);
  const std::int64_t runs = std::clamp<std::int64_t>(blocks / 16, 1, stream.threads());
  const std::size_t table = codec.table_bytes(n);
  const auto begin_of = [&](std::int64_t run) { return blocks * run / runs; };
  const auto place_of = [&](std::int64_t run) {
    return to + table +
           static_cast<std::size_t>(begin_of(run)) * (Lossless::kHeaderBytes + 4 * kBlock);
  };
  ops::cpu::parallel_items(stream, runs, [&](std::int64_t run) HWY_ATTR {
    Parts parts;
    std::uint32_t words = 0;
    for (std::int64_t at = begin_of(run); at < begin_of(run + 1); ++at) {
      words += encode_lossless_block(x + at * kBlock, std::min(kBlock, n - at * kBlock),
                                     place_of(run) + 4 * static_cast<std::size_t>(words), parts);
      store(words, to, at);
    }
  });
  auto filled = static_cast<std::uint32_t>(table / 4);
  for (std::int64_t run = 0; run < runs; ++run) {
    const auto words = load<std::uint32_t>(to, begin_of(run + 1) - 1);
    std::byte* const place = to + 4 * static_cast<std::size_t>(filled);
    if (place != place_of(run))
      std::memmove(place, place_of(run), 4 * static_cast<std::size_t>(words));
    for (std::int64_t at = begin_of(run); at < begin_of(run + 1); ++at) {
      store(load<std::uint32_t>(to, at) + filled, to, at);
    }
    filled += words;
  }
}

void encode_lossless(const Lossless& codec, const EncodeCall& call, Stream& stream) {
  std::byte* to = call.bytes;
  for (std::int64_t first = 0; first < call.values; first += call.piece, to += call.piece_bytes) {
    encode_lossless_piece(codec, call.x + first, std::min(call.piece, call.values - first), to,
                          stream);
  }
}

void decode_lossless(const Lossless& codec, const DecodeCall& call, Stream& stream) {
  constexpr std::int64_t kBlock = Lossless::kBlock;
  const std::int64_t blocks = codec.blocks(call.values);
  const std::size_t table = codec.table_bytes(call.values);
  if (call.size_bytes < table) codec.refuse_damaged();
  const auto end_of = [&](std::int64_t block) {
    return block < 0 ? table : 4 * static_cast<std::size_t>(load<std::uint32_t>(call.bytes, block));
  };
  for (std::int64_t at = 0; at < blocks; ++at) {
    if (end_of(at) < end_of(at - 1) || end_of(at) > call.size_bytes) codec.refuse_damaged();
  }
  std::atomic<bool> is_damaged = false;
  ops::cpu::parallel_for(
      stream, blocks, tile_grain(kBlock), [&](std::int64_t first, std::int64_t last) HWY_ATTR {
        const TileBuffers buffers(kBlock);
        Parts parts;
        for (std::int64_t at = first; at < last; ++at) {
          const std::size_t begin = end_of(at - 1), end = end_of(at);
          const std::int64_t n = std::min(kBlock, call.values - at * kBlock);
          float* const y = call.y + at * kBlock;
          float* const to = call.adds ? buffers.first : y;
          if (!decode_lossless_block(call.bytes + begin, static_cast<std::int64_t>(end - begin), n,
                                     to, parts)) {
            is_damaged = true;
          } else if (call.adds) {
            add_to(to, y, n);
          }
        }
      });
  if (is_damaged) codec.refuse_damaged();
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::codec::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::codec::cpu {
HEDDLE_DISPATCH_CODEC(Lossless, lossless)
}  // namespace heddle::codec::cpu
#endif  // HWY_ONCE
