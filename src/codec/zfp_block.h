#pragma once

#include <bit>
#include <cstdint>

#include "codec/inline.h"

// One block of ZFP at a fixed rate: 4 floats (kDims = 1) or 4 x 4 (kDims = 2) to and from so many
// bits, for every backend. Lindstrom, "Fixed-rate compressed floating-point arrays", 2014; the
// streams are those of libzfp 1.0.

namespace heddle::codec::zfp {

inline constexpr int kHeaderBits = 9;  ///< that something is there, and the largest exponent
inline constexpr std::uint32_t kNegabinary = 0xaaaaaaaaU;
inline constexpr double kLargest = 0x1.fffffep127;  ///< of floats
template <int kDims>
inline constexpr int kSize = kDims == 1 ? 4 : 16;

/// Coefficient i of a block's code is number order(i) of its transform: by total degree.
template <int kDims>
HEDDLE_CODEC_INLINE int order(int i) {
  constexpr std::uint8_t kOrder[16] = {0, 1, 4, 5, 2, 8, 6, 9, 3, 12, 10, 7, 13, 11, 14, 15};
  return kDims == 1 ? i : kOrder[i];
}

/// Of a value that is not 0. nvcc 13.0 takes std::countr_zero in device code for 32.
HEDDLE_CODEC_INLINE int trailing_zeros(std::uint32_t value) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(value)) - 1;
#else
  return std::countr_zero(value);
#endif
}

/// Of 16 bits.
HEDDLE_CODEC_INLINE int leading_zeros_of_16(std::uint32_t value) {
#ifdef __CUDA_ARCH__
  return __clz(static_cast<int>(value)) - 16;
#else
  return std::countl_zero(value) - 16;
#endif
}
HEDDLE_CODEC_INLINE int ones_of(std::uint32_t value) {
#ifdef __CUDA_ARCH__
  return __popc(value);
#else
  return std::popcount(value);
#endif
}

/// Of 16 bits, from the lowest on: a set one becomes two, the others stay.
HEDDLE_CODEC_INLINE std::uint32_t doubled_ones(std::uint32_t value) {
  // Those of 0 to 7 and of 8 to 15, a byte each.
  constexpr std::uint64_t kLow = 0x3f1e1b0c0f060300U, kHigh = 0xff7e7b3c6f363318U;
  std::uint32_t doubled = 0;
  int at = 0;
  for (int i = 0; i < 16; i += 4) {
    const std::uint32_t four = value >> i & 15U;
    const auto expanded =
        static_cast<std::uint32_t>((four < 8 ? kLow : kHigh) >> (four % 8 * 8) & 255U);
    doubled |= expanded << at;
    at += 4 + ones_of(four);
  }
  return doubled;
}

HEDDLE_CODEC_INLINE std::uint32_t low_bits(std::uint32_t value, int count) {
  return value & ((std::uint32_t{1} << count) - 1);  // of less than 32
}

// The transform of a line of four, at a distance of `step`, in integers that wrap.

HEDDLE_CODEC_INLINE std::int32_t half(std::uint32_t value) {
  return static_cast<std::int32_t>(value) >> 1;
}
/// p becomes the mean, q its distance to it.
HEDDLE_CODEC_INLINE void part(std::uint32_t& p, std::uint32_t& q) {
  p = static_cast<std::uint32_t>(half(p + q));
  q -= p;
}
HEDDLE_CODEC_INLINE void join(std::uint32_t& p, std::uint32_t& q) {
  q += p;
  p = 2 * p - q;
}
HEDDLE_CODEC_INLINE void forward_line(std::uint32_t* line, int step) {
  std::uint32_t a = line[0], b = line[step], c = line[2 * step], d = line[3 * step];
  part(a, d);
  part(c, b);
  part(a, c);
  part(d, b);
  d += static_cast<std::uint32_t>(half(b));
  b -= static_cast<std::uint32_t>(half(d));
  line[0] = a, line[step] = b, line[2 * step] = c, line[3 * step] = d;
}
HEDDLE_CODEC_INLINE void inverse_line(std::uint32_t* line, int step) {
  std::uint32_t a = line[0], b = line[step], c = line[2 * step], d = line[3 * step];
  b += static_cast<std::uint32_t>(half(d));
  d -= static_cast<std::uint32_t>(half(b));
  join(d, b);
  join(a, c);
  join(c, b);
  join(a, d);
  line[0] = a, line[step] = b, line[2 * step] = c, line[3 * step] = d;
}

/// 2^exponent, where that is a normal double.
HEDDLE_CODEC_INLINE double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// The exponent e with the largest magnitude in [2^(e-1), 2^e), -126 at least, from its bits.
HEDDLE_CODEC_INLINE int largest_exponent(std::uint32_t largest_bits) {
  const int biased = static_cast<int>(largest_bits >> 23);
  return biased > 0 ? biased - 126 : -126;
}

/// Writes exactly `bits` bits to `out`: out.put(value, count) takes the low `count` < 32 bits of
/// value, of which no others are set.
template <int kDims, class BitWriter>
HEDDLE_CODEC_INLINE void encode_block(const float* values, int bits, BitWriter& out) {
  constexpr int kCount = kSize<kDims>;
  std::uint32_t largest = 0;
  for (int i = 0; i < kCount; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffU;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest == 0) return out.put_zeros(bits);
  const int exponent = largest_exponent(largest);
  out.put(static_cast<std::uint32_t>(2 * (exponent + 127) + 1), kHeaderBits);
  int budget = bits - kHeaderBits;

  // Double, because the factor of tiny values is too large for a float.
  const double factor = power_of_two(30 - exponent);
  std::uint32_t line[kCount], code[kCount];
  for (int i = 0; i < kCount; ++i) {
    line[i] = static_cast<std::uint32_t>(
        static_cast<std::int32_t>(static_cast<double>(values[i]) * factor));
  }
  for (int i = 0; i < kCount; i += 4) forward_line(line + i, 1);
  if (kDims == 2) {
    for (int i = 0; i < 4; ++i) forward_line(line + i, 4);
  }
  for (int i = 0; i < kCount; ++i) {
    code[i] = (line[order<kDims>(i)] + kNegabinary) ^ kNegabinary;
  }
  int known = 0;  // coefficients that have had a set bit, or one behind them had
  for (int plane = 31; plane >= 0 && budget > 0; --plane) {
    std::uint32_t left = 0;  // the highest bits of all, which then go
    for (int i = kCount - 1; i >= 0; --i) {
      left = left << 1 | code[i] >> 31;
      code[i] <<= 1;
    }
    // At most 31 bits: those of known coefficients, and then the others by groups. A group is a 1,
    // zeros up to the next set bit, and that; a 0 says that there are no more. So a set bit becomes
    // two, its own and the 1 of the group behind it.
    const std::uint32_t rest = left >> known;
    const int further = 16 - leading_zeros_of_16(rest);  // coefficients that become known
    const bool has_last = further > 0 && known + further == kCount;
    std::uint64_t groups = std::uint64_t{doubled_ones(rest)} << 1 | 1U;
    // There is no group behind the last set bit, and the last coefficient goes without saying.
    int count = 1 + further + ones_of(rest);
    if (has_last) {
      count -= 2;
    } else {
      groups &= ~(std::uint64_t{1} << (count - 1));
    }
    if (known == kCount) count = 0;
    const int all = known + count, sent = all < budget ? all : budget;
    const auto plane_bits = static_cast<std::uint32_t>(groups << known) | low_bits(left, known);
    out.put(low_bits(plane_bits, sent), sent);
    budget -= sent;
    known += further;
  }
  out.put_zeros(budget);
}

/// What truncation took on the average is given back: the middle of what a coefficient may have
/// been. `precision` planes are there of all coefficients, of the first `further` one more.
template <int kDims>
HEDDLE_CODEC_INLINE void unbias(std::uint32_t* code, int further, int precision) {
  if (precision <= 0 || precision >= 31) return;
  for (int i = 0; i < kSize<kDims>; ++i) {
    code[i] += (kNegabinary >> (i < further ? 2 : 1)) >> precision;
  }
}

/// Reads exactly `bits` bits of `in`: in.get(count) gives the next count < 32, in.peek(count) does
/// so too and leaves them there, in.skip(count) goes on.
template <int kDims, class BitReader>
HEDDLE_CODEC_INLINE void decode_block(BitReader& in, int bits, bool truncates, float* values) {
  constexpr int kCount = kSize<kDims>;
  if (in.peek(1) == 0) {
    in.skip(bits);
    for (int i = 0; i < kCount; ++i) values[i] = 0.0F;
    return;
  }
  const int exponent = static_cast<int>(in.get(kHeaderBits) >> 1) - 127;
  int budget = bits - kHeaderBits, known = 0, further = 0, plane = 32;
  std::uint32_t code[kCount] = {};
  while (budget > 0 && plane > 0) {
    --plane;
    // At most 31 bits, as encode_block puts them.
    std::uint32_t window = in.peek(31);
    further = known < budget ? known : budget;
    std::uint32_t found = low_bits(window, further);
    window >>= further;
    int used = further, left = budget - further;
    while (left > 0 && known < kCount) {
      const bool is_group = (window & 1U) != 0;
      window >>= 1;
      --left;
      ++used;
      if (!is_group) {
        further = kCount;
        break;
      }
      const int to_last = kCount - 1 - known, most = to_last < left ? to_last : left;
      const std::uint32_t next = low_bits(window, most);
      const int zeros = next == 0 ? most : trailing_zeros(next);
      const int run = next == 0 ? most : zeros + 1;
      window >>= run;
      left -= run;
      used += run;
      known += zeros;
      found |= std::uint32_t{1} << known;
      further = ++known;
    }
    in.skip(used);
    budget = left;
    found <<= 32 - kCount;
    for (int i = kCount - 1; i >= 0; --i) {
      code[i] = code[i] << 1 | found >> 31;
      found <<= 1;
    }
  }
  for (int i = 0; i < kCount; ++i) code[i] = plane < 32 ? code[i] << plane : 0;
  in.skip(budget);
  if (!truncates && budget == 0) unbias<kDims>(code, further, 32 - plane);

  std::uint32_t line[kCount];
  for (int i = 0; i < kCount; ++i) {
    line[order<kDims>(i)] = (code[i] ^ kNegabinary) - kNegabinary;
  }
  if (kDims == 2) {
    for (int i = 0; i < 4; ++i) inverse_line(line + i, 4);
  }
  for (int i = 0; i < kCount; i += 4) inverse_line(line + i, 1);
  const double factor = power_of_two(exponent - 30);
  for (int i = 0; i < kCount; ++i) {
    const double value = static_cast<double>(static_cast<std::int32_t>(line[i])) * factor;
    values[i] = static_cast<float>(value > kLargest    ? kLargest
                                   : value < -kLargest ? -kLargest
                                                       : value);
  }
}

// Blocks of 4 x 4 in an array of `columns` columns, of which n values are there from the block's
// rows on; `column` is the block's first.

/// Values of row `row` of the block; rows that have none come last.
HEDDLE_CODEC_INLINE int values_of_row(std::int64_t columns, std::int64_t n, std::int64_t column,
                                      int row) {
  const std::int64_t left = n - row * columns, in_row = left < columns ? left : columns;
  const std::int64_t count = in_row - column;
  return count < 0 ? 0 : count < 4 ? static_cast<int>(count) : 4;
}

/// Continues a line of four of which `count` are there, as ZFP does.
HEDDLE_CODEC_INLINE void continue_line(float* line, int count, int step) {
  if (count == 0) line[0] = 0.0F;
  if (count <= 1) line[step] = line[0];
  if (count <= 2) line[2 * step] = line[step];
  if (count <= 3) line[3 * step] = line[0];
}

/// value(i) is value i of the block's rows.
template <class Value>
HEDDLE_CODEC_INLINE void gather_block(std::int64_t columns, std::int64_t n, std::int64_t column,
                                      const Value& value, float* block) {
  int rows = 0;
  for (int row = 0; row < 4; ++row) {
    const int count = values_of_row(columns, n, column, row);
    for (int i = 0; i < 4; ++i) {
      block[4 * row + i] = i < count ? value(row * columns + column + i) : 0.0F;
    }
    continue_line(block + 4 * row, count, 1);
    rows += count > 0 ? 1 : 0;
  }
  for (int i = 0; i < 4; ++i) continue_line(block + i, rows, 4);
}

/// Calls put(i, value) for the values of a block that are there.
template <class Put>
HEDDLE_CODEC_INLINE void scatter_block(std::int64_t columns, std::int64_t n, std::int64_t column,
                                       const float* block, const Put& put) {
  for (int row = 0; row < 4; ++row) {
    const int count = values_of_row(columns, n, column, row);
    for (int i = 0; i < 4; ++i) {
      if (i < count) put(row * columns + column + i, block[4 * row + i]);
    }
  }
}

}  // namespace heddle::codec::zfp
