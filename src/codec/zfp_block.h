#pragma once

#include <bit>
#include <cstdint>

#include "codec/inline.h"

// One block of ZFP at a fixed rate: 4 floats (kDims = 1) or 4 x 4 (kDims = 2) to and from so many
// bits, for every backend. Lindstrom, "Fixed-rate compressed floating-point arrays", 2014; the
// streams are those of libzfp 1.0.

// For loops whose body is large: unrolled, they would not fit a GPU's instruction cache.
#ifdef __CUDA_ARCH__
#define HEDDLE_CODEC_NO_UNROLL _Pragma("unroll 1")
#else
#define HEDDLE_CODEC_NO_UNROLL
#endif

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

// nvcc 13.0 takes std::countr_zero in device code for 32, so device code names its instructions.

/// How many bits up to the highest set one; 0 of 0.
HEDDLE_CODEC_INLINE int width_of(std::uint32_t value) {
#ifdef __CUDA_ARCH__
  int highest;  // -1: there is none
  asm("bfind.u32 %0, %1;" : "=r"(highest) : "r"(value));
  return highest + 1;
#else
  return 32 - std::countl_zero(value);
#endif
}
HEDDLE_CODEC_INLINE int ones_of(std::uint32_t value) {
#ifdef __CUDA_ARCH__
  return __popc(value);
#else
  return std::popcount(value);
#endif
}
HEDDLE_CODEC_INLINE std::uint32_t lowest_one(std::uint32_t value) { return value & (0U - value); }
/// Zeros up to the lowest one; 32 of 0.
HEDDLE_CODEC_INLINE int zeros_before(std::uint32_t one) { return ones_of(one - 1); }

HEDDLE_CODEC_INLINE std::uint32_t low_bits(std::uint32_t value, int count) {
  return value & ((std::uint32_t{1} << count) - 1);  // of less than 32
}

HEDDLE_CODEC_INLINE int least_of(int a, int b, int c) {
  const int least = a < b ? a : b;
  return least < c ? least : c;
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

// Bit planes. Of 16 coefficients the upper or lower 16 bits become 16 planes, plane p with bit p of
// coefficient i as its bit i. Rows and columns of 16 x 16 bits change places, two rows to a word (r
// and r + 8), by swapping ever smaller squares.

/// Byte `byte` of a and of b, then byte `byte + 1` of both, from the lowest on: two rows whose
/// squares of 8 x 8 are swapped.
template <int kByte>
HEDDLE_CODEC_INLINE std::uint32_t pair_bytes(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  return __byte_perm(a, b, 0x5140 + kByte * 0x1111);
#else
  a >>= 8 * kByte, b >>= 8 * kByte;
  return (a & 0xffU) | (b & 0xffU) << 8 | (a & 0xff00U) << 8 | (b & 0xff00U) << 16;
#endif
}
/// Swaps squares of kSide: the upper half of a's fields of 2 kSide bits with the lower half of b's.
template <int kSide, std::uint32_t kLower>
HEDDLE_CODEC_INLINE void swap_squares(std::uint32_t& a, std::uint32_t& b) {
  const std::uint32_t lower = (a & kLower) | (b << kSide & ~kLower);
  b = (a >> kSide & kLower) | (b & ~kLower);
  a = lower;
}
/// The squares of 4, 2 and 1.
HEDDLE_CODEC_INLINE void swap_small_squares(std::uint32_t* word) {
  for (int i = 0; i < 4; ++i) swap_squares<4, 0x0f0f0f0fU>(word[i], word[i + 4]);
  for (int i = 0; i < 8; i += i % 2 == 0 ? 1 : 3) {
    swap_squares<2, 0x33333333U>(word[i], word[i + 2]);
  }
  for (int i = 0; i < 8; i += 2) swap_squares<1, 0x55555555U>(word[i], word[i + 1]);
}

/// The planes of the upper (kByte = 2) or lower (0) 16 bits of 16 coefficients.
template <int kByte, class Planes>
HEDDLE_CODEC_INLINE void split_planes(const std::uint32_t* code, Planes& planes) {
  std::uint32_t word[8];
  for (int i = 0; i < 8; ++i) word[i] = pair_bytes<kByte>(code[i], code[i + 8]);
  swap_small_squares(word);
  for (int i = 0; i < 8; ++i) {
    planes[i] = static_cast<std::uint16_t>(word[i]);
    planes[i + 8] = static_cast<std::uint16_t>(word[i] >> 16);
  }
}
/// The inverse, into bits that are 0.
template <int kByte, class Planes>
HEDDLE_CODEC_INLINE void join_planes(const Planes& planes, std::uint32_t* code) {
  std::uint32_t word[8];
  for (int i = 0; i < 8; ++i) word[i] = pair_bytes<0>(planes[i], planes[i + 8]);
  swap_small_squares(word);
  for (int i = 0; i < 8; ++i) {
    code[i] |= (word[i] & 0xffffU) << (8 * kByte);
    code[i + 8] |= word[i] >> 16 << (8 * kByte);
  }
}

// 2^exponent, where that is a normal number.
HEDDLE_CODEC_INLINE double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}
HEDDLE_CODEC_INLINE float float_power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// The exponent e with the largest magnitude in [2^(e-1), 2^e), -126 at least, from its bits.
HEDDLE_CODEC_INLINE int largest_exponent(std::uint32_t largest_bits) {
  const int biased = static_cast<int>(largest_bits >> 23);
  return biased > 0 ? biased - 126 : -126;
}

/// The bits of a plane, at most 31.
struct PlaneBits {
  std::uint32_t bits;  ///< the lowest first; those above `count` mean nothing
  int count;
  int known;  ///< coefficients that are known from here on
};

/// Coefficients are known that have had a set bit, or one behind them had; here not all are. First
/// come the bits of known ones, then the others by groups. A group is a 1, zeros up to the next set
/// bit, and that; a 0 says that there are no more. So a set bit becomes two, its own and the 1 of
/// the group behind.
template <int kCount>
HEDDLE_CODEC_INLINE PlaneBits plane_bits(std::uint32_t plane, int known) {
  const std::uint32_t rest = plane >> known;
  std::uint32_t doubled = 0;
  int ones = 0;
  for (std::uint32_t left = rest; left != 0; ++ones) {
    const std::uint32_t one = lowest_one(left);
    left ^= one;
    doubled |= 3 * one << ones;
  }
  const int further = width_of(rest);
  // There is no group behind the last set bit, and the last coefficient goes without saying.
  int count = 1 + further + ones;
  std::uint32_t groups = doubled << 1 | 1U;
  if (known + further == kCount) {
    count -= 2;
  } else {
    groups ^= std::uint32_t{1} << (count - 1);
  }
  return {low_bits(plane, known) | groups << known, known + count, known + further};
}

/// The coefficients of a block's transform, in the order of its code, in negabinary; 0 up to 16.
template <int kDims>
HEDDLE_CODEC_INLINE void to_code(const float* values, int exponent, std::uint32_t* code) {
  constexpr int kCount = kSize<kDims>;
  // Two factors, because one may be too large for a float. Products are exact, or too small to
  // count.
  const int half_way = (30 - exponent) >> 1;
  const float first = float_power_of_two(half_way);
  const float second = float_power_of_two(30 - exponent - half_way);
  std::uint32_t line[kCount];
  for (int i = 0; i < kCount; ++i) {
    line[i] = static_cast<std::uint32_t>(static_cast<std::int32_t>(values[i] * first * second));
  }
  for (int i = 0; i < kCount; i += 4) forward_line(line + i, 1);
  if (kDims == 2) {
    for (int i = 0; i < 4; ++i) forward_line(line + i, 4);
  }
  for (int i = 0; i < 16; ++i) {
    code[i] = i < kCount ? (line[order<kDims>(i % kCount)] + kNegabinary) ^ kNegabinary : 0;
  }
}

/// Writes exactly `bits` bits to `out`: out.put(value, count) takes the low `count` < 32 bits of
/// value. `planes` is room for 16 numbers of 16 bits.
template <int kDims, class Planes, class BitWriter>
HEDDLE_CODEC_INLINE void encode_block(const float* values, int bits, Planes& planes,
                                      BitWriter& out) {
  constexpr int kCount = kSize<kDims>;
  std::uint32_t largest = 0;
  for (int i = 0; i < kCount; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffU;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest == 0) return out.put_zeros(bits);
  const int exponent = largest_exponent(largest);
  out.put(static_cast<std::uint32_t>(2 * (exponent + 127) + 1), kHeaderBits);
  std::uint32_t code[16];
  to_code<kDims>(values, exponent, code);

  int budget = bits - kHeaderBits, known = 0;
  const auto put_planes = [&](int plane) {
    HEDDLE_CODEC_NO_UNROLL
    for (; plane >= 0 && budget > 0 && known < kCount; --plane) {
      const PlaneBits next = plane_bits<kCount>(planes[plane], known);
      const int sent = next.count < budget ? next.count : budget;
      out.put(next.bits, sent);
      budget -= sent;
      known = next.known;
    }
    HEDDLE_CODEC_NO_UNROLL
    for (; plane >= 0 && budget >= kCount; --plane) {
      out.put(planes[plane], kCount);
      budget -= kCount;
    }
    if (plane < 0) return;
    out.put(planes[plane], budget);
    budget = 0;
  };
  split_planes<2>(code, planes);
  std::uint32_t any = 0;
  for (int i = 0; i < kCount; ++i) any |= code[i];
  // The first planes have nothing but zeros, of each of which a 0 says so.
  const int empty = least_of(32 - width_of(any), 15, budget);
  out.put(0, empty);
  budget -= empty;
  put_planes(15 - empty);
  if (budget == 0) return;
  split_planes<0>(code, planes);
  put_planes(15);
  out.put_zeros(budget);
}

/// What a plane says.
struct PlaneRead {
  std::uint32_t plane;
  int used;   ///< bits of the stream
  int known;  ///< coefficients that are known from here on
  int told;   ///< coefficients of which this plane has told something
};

/// The inverse of plane_bits: `window` begins with the plane, of which `budget` > 0 bits are there.
template <int kCount>
HEDDLE_CODEC_INLINE PlaneRead read_plane(std::uint32_t window, int known, int budget) {
  if (budget <= known) return {low_bits(window, budget), budget, known, budget};
  // Groups: of the ones, every other begins a group, and those between are coefficients'. A 0 where
  // a group might begin is the end. Whether the ones up to a bit are odd in number tells which is
  // which. Behind what is there, or can be, comes a 1: it ends a group that is cut short.
  const int last = kCount - 1 - known, most = 2 * last + 1, there = budget - known;
  const std::uint32_t stop = std::uint32_t{1} << (there < most ? there : most);
  const std::uint32_t groups = (window >> known & (stop - 1)) | stop;
  std::uint32_t odd = groups ^ groups << 1;
  odd ^= odd << 2;
  odd ^= odd << 4;
  odd ^= odd << 8;
  odd ^= odd << 16;
  const std::uint32_t end = lowest_one(~(odd | groups));  // 0: it is not there
  // A coefficient's 1 stands behind as many beginnings of groups as there are ones up to it.
  std::uint32_t rest = 0;
  int begun = 0;
  for (std::uint32_t left = groups & ~odd & (end - 1); left != 0;) {
    const std::uint32_t one = lowest_one(left);
    left ^= one;
    rest |= one >> ++begun;
  }
  int used = zeros_before(end) + 1;
  if (rest >> last != 0) {  // the last one is not written, and nothing comes behind it
    rest = low_bits(rest, last);
    used = last + ones_of(rest) + 1;
    rest |= std::uint32_t{1} << last;
  }
  const bool is_cut = used > there;
  const int now_known = known + width_of(rest);
  return {low_bits(window, known) | rest << known, known + (is_cut ? there : used), now_known,
          is_cut ? now_known : kCount};
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

/// The inverse of to_code.
template <int kDims>
HEDDLE_CODEC_INLINE void from_code(const std::uint32_t* code, int exponent, float* values) {
  constexpr int kCount = kSize<kDims>;
  std::uint32_t line[kCount];
  for (int i = 0; i < kCount; ++i) {
    line[order<kDims>(i)] = (code[i] ^ kNegabinary) - kNegabinary;
  }
  if (kDims == 2) {
    for (int i = 0; i < 4; ++i) inverse_line(line + i, 4);
  }
  for (int i = 0; i < kCount; i += 4) inverse_line(line + i, 1);
  if (exponent >= -96 && exponent <= 126) {
    // All results but 0 are normal floats, so only the conversion rounds.
    const float factor = float_power_of_two(exponent - 30);
    for (int i = 0; i < kCount; ++i) {
      values[i] = static_cast<float>(static_cast<std::int32_t>(line[i])) * factor;
    }
    return;
  }
  const double factor = power_of_two(exponent - 30);
  for (int i = 0; i < kCount; ++i) {
    const double value = static_cast<double>(static_cast<std::int32_t>(line[i])) * factor;
    values[i] = static_cast<float>(value > kLargest    ? kLargest
                                   : value < -kLargest ? -kLargest
                                                       : value);
  }
}

/// Reads exactly `bits` bits of `in`: in.window() is the next 32 bits, in.skip(count) goes on by
/// count < 32, in.skip_many(count) by any number. `planes` is room for 16 numbers of 16 bits.
template <int kDims, class Planes, class BitReader>
HEDDLE_CODEC_INLINE void decode_block(BitReader& in, int bits, bool truncates, Planes& planes,
                                      float* values) {
  constexpr int kCount = kSize<kDims>;
  const std::uint32_t header = low_bits(in.window(), kHeaderBits);
  if ((header & 1U) == 0) {
    in.skip_many(bits);
    for (int i = 0; i < kCount; ++i) values[i] = 0.0F;
    return;
  }
  in.skip(kHeaderBits);
  int budget = bits - kHeaderBits, known = 0, told = kCount, left = 32;  // planes that are not read
  for (int i = 0; i < 16; ++i) planes[i] = 0;
  const auto get_planes = [&](int first_left) {
    HEDDLE_CODEC_NO_UNROLL
    for (; left > first_left && budget > 0 && known < kCount;) {
      const PlaneRead next = read_plane<kCount>(in.window(), known, budget);
      in.skip(next.used);
      planes[--left - first_left] = static_cast<std::uint16_t>(next.plane);
      budget -= next.used;
      known = next.known;
      told = next.told;
    }
    HEDDLE_CODEC_NO_UNROLL
    for (; left > first_left && budget >= kCount; budget -= kCount) {
      planes[--left - first_left] = static_cast<std::uint16_t>(low_bits(in.window(), kCount));
      in.skip(kCount);
      told = kCount;
    }
    if (left == first_left || budget == 0) return;
    planes[--left - first_left] = static_cast<std::uint16_t>(low_bits(in.window(), budget));
    in.skip(budget);
    told = budget;
    budget = 0;
  };
  // As they were written: the first planes have nothing but a 0.
  const int empty = least_of(zeros_before(lowest_one(in.window())), 15, budget);
  in.skip(empty);
  budget -= empty;
  left -= empty;
  std::uint32_t code[16] = {};
  get_planes(16);
  join_planes<2>(planes, code);
  if (budget > 0) {
    for (int i = 0; i < 16; ++i) planes[i] = 0;
    get_planes(0);
    join_planes<0>(planes, code);
  }
  in.skip_many(budget);
  if (!truncates && budget == 0) unbias<kDims>(code, told, 32 - left);
  from_code<kDims>(code, static_cast<int>(header >> 1) - 127, values);
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
