#pragma once

#include <bit>
#include <cstdint>

// One block of ZFP at a fixed rate: 4 floats (kDims = 1) or 4 x 4 (kDims = 2) to and from so many
// bits, for every backend. Lindstrom, "Fixed-rate compressed floating-point arrays", 2014; the
// streams are those of libzfp 1.0.

// Always inlined: so they are compiled for the instruction set of their caller.
#ifdef __CUDACC__
#define HEDDLE_ZFP_INLINE __host__ __device__ __forceinline__
#else
#define HEDDLE_ZFP_INLINE __attribute__((always_inline)) inline
#endif

namespace heddle::codec::zfp {

inline constexpr int kHeaderBits = 9;  ///< that something is there, and the largest exponent
inline constexpr std::uint32_t kNegabinary = 0xaaaaaaaaU;
inline constexpr double kLargest = 0x1.fffffep127;  ///< of floats
template <int kDims>
inline constexpr int kSize = kDims == 1 ? 4 : 16;

/// Coefficient i of a block's code is number order(i) of its transform: by total degree.
template <int kDims>
HEDDLE_ZFP_INLINE int order(int i) {
  constexpr std::uint8_t kOrder[16] = {0, 1, 4, 5, 2, 8, 6, 9, 3, 12, 10, 7, 13, 11, 14, 15};
  return kDims == 1 ? i : kOrder[i];
}

HEDDLE_ZFP_INLINE std::uint32_t low_bits(std::uint32_t value, int count) {
  return value & ((std::uint32_t{1} << count) - 1);  // of less than 32
}

// The transform of a line of four, at a distance of `step`, in integers that wrap.

HEDDLE_ZFP_INLINE std::int32_t half(std::uint32_t value) {
  return static_cast<std::int32_t>(value) >> 1;
}
/// p becomes the mean, q its distance to it.
HEDDLE_ZFP_INLINE void part(std::uint32_t& p, std::uint32_t& q) {
  p = static_cast<std::uint32_t>(half(p + q));
  q -= p;
}
HEDDLE_ZFP_INLINE void join(std::uint32_t& p, std::uint32_t& q) {
  q += p;
  p = 2 * p - q;
}
HEDDLE_ZFP_INLINE void forward_line(std::uint32_t* line, int step) {
  std::uint32_t a = line[0], b = line[step], c = line[2 * step], d = line[3 * step];
  part(a, d);
  part(c, b);
  part(a, c);
  part(d, b);
  d += static_cast<std::uint32_t>(half(b));
  b -= static_cast<std::uint32_t>(half(d));
  line[0] = a, line[step] = b, line[2 * step] = c, line[3 * step] = d;
}
HEDDLE_ZFP_INLINE void inverse_line(std::uint32_t* line, int step) {
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
HEDDLE_ZFP_INLINE double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// The exponent e with the largest magnitude in [2^(e-1), 2^e), -126 at least, from its bits.
HEDDLE_ZFP_INLINE int largest_exponent(std::uint32_t largest_bits) {
  const int biased = static_cast<int>(largest_bits >> 23);
  return biased > 0 ? biased - 126 : -126;
}

/// Writes exactly `bits` bits to `out`: out.put(value, count) takes the low `count` < 32 bits of
/// value, of which no others are set.
template <int kDims, class BitWriter>
HEDDLE_ZFP_INLINE void encode_block(const float* values, int bits, BitWriter& out) {
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
    std::uint32_t left = 0;
    for (int i = 0; i < kCount; ++i) left |= (code[i] >> plane & 1U) << i;
    const int verbatim = known < budget ? known : budget;
    out.put(low_bits(left, verbatim), verbatim);
    budget -= verbatim;
    left >>= verbatim;
    while (budget > 0 && known < kCount) {
      --budget;
      out.put(left != 0 ? 1U : 0U, 1);
      if (left == 0) break;
      // Zeros up to the next set bit, and that; of the last coefficient it goes without saying.
      const int zeros = std::countr_zero(left), to_last = kCount - 1 - known;
      const int wanted = zeros < to_last ? zeros + 1 : to_last;
      const int run = wanted < budget ? wanted : budget;
      out.put(low_bits(left, run), run);
      budget -= run;
      left >>= zeros + 1;
      known += zeros + 1;
    }
  }
  out.put_zeros(budget);
}

/// What truncation took on the average is given back: the middle of what a coefficient may have
/// been. `precision` planes are there of all coefficients, of the first `further` one more.
template <int kDims>
HEDDLE_ZFP_INLINE void unbias(std::uint32_t* code, int further, int precision) {
  if (precision <= 0 || precision >= 31) return;
  for (int i = 0; i < kSize<kDims>; ++i) {
    code[i] += (kNegabinary >> (i < further ? 2 : 1)) >> precision;
  }
}

/// Reads exactly `bits` bits of `in`: in.get(count) gives the next count < 32, in.peek(count) does
/// so too and leaves them there, in.skip(count) goes on.
template <int kDims, class BitReader>
HEDDLE_ZFP_INLINE void decode_block(BitReader& in, int bits, bool truncates, float* values) {
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
    further = known < budget ? known : budget;
    std::uint32_t found = in.get(further);
    budget -= further;
    while (budget > 0 && known < kCount) {
      --budget;
      if (in.get(1) == 0) {
        further = kCount;
        break;
      }
      const int to_last = kCount - 1 - known, most = to_last < budget ? to_last : budget;
      const std::uint32_t next = in.peek(most);
      const int zeros = next == 0 ? most : std::countr_zero(next);
      const int run = next == 0 ? most : zeros + 1;
      in.skip(run);
      budget -= run;
      known += zeros;
      found |= std::uint32_t{1} << known;
      further = ++known;
    }
    for (int i = 0; i < kCount; ++i) code[i] |= (found >> i & 1U) << plane;
  }
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

}  // namespace heddle::codec::zfp
