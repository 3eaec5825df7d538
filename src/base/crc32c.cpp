#include "base/crc32c.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace heddle {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78U;

/// Table k takes a byte that has k more bytes behind it.
constexpr std::array<std::array<std::uint32_t, 256>, 8> make_tables() {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0U);
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}
constexpr auto kTables = make_tables();

std::uint32_t byte_by_byte(const char* at, std::size_t bytes, std::uint32_t crc) {
  for (; bytes > 0; --bytes) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(*at++)) & 0xFF];
  }
  return crc;
}

std::uint64_t word_at(const char* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

/// Eight bytes at a time.
std::uint32_t by_tables(const char* at, std::size_t bytes, std::uint32_t crc) {
  static_assert(std::endian::native == std::endian::little);
  for (; bytes >= 8; bytes -= 8, at += 8) {
    const std::uint64_t word = word_at(at) ^ crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][(word >> (8 * i)) & 0xFF];
  }
  return byte_by_byte(at, bytes, crc);
}

#if defined(__x86_64__)
/// The processor has an instruction for it. It could begin another one while it ends the last, so
/// three stretches of a block go side by side; what the first two lack are the zeros behind them.
class ByInstruction {
 public:
  static constexpr std::size_t kStretch = 1024;

  __attribute__((target("sse4.2"))) static std::uint32_t crc(const char* at, std::size_t bytes,
                                                             std::uint32_t crc) {
    static const Zeros one(kStretch), two(2 * kStretch);
    for (; bytes >= 3 * kStretch; bytes -= 3 * kStretch, at += 3 * kStretch) {
      std::uint64_t a = crc, b = 0, c = 0;
      for (std::size_t i = 0; i < kStretch; i += 8) {
        a = _mm_crc32_u64(a, word_at(at + i));
        b = _mm_crc32_u64(b, word_at(at + kStretch + i));
        c = _mm_crc32_u64(c, word_at(at + 2 * kStretch + i));
      }
      crc = two.behind(static_cast<std::uint32_t>(a)) ^ one.behind(static_cast<std::uint32_t>(b)) ^
            static_cast<std::uint32_t>(c);
    }
    std::uint64_t rest = crc;
    for (; bytes >= 8; bytes -= 8, at += 8) rest = _mm_crc32_u64(rest, word_at(at));
    return byte_by_byte(at, bytes, static_cast<std::uint32_t>(rest));
  }

 private:
  /// What a crc becomes behind so many zeros: linear, so a table per byte of it.
  class Zeros {
   public:
    explicit Zeros(std::size_t bytes) {
      std::array<std::uint32_t, 32> of_bit{};
      for (std::size_t bit = 0; bit < 32; ++bit) {
        std::uint32_t crc = 1U << bit;
        for (std::size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xFF];
        of_bit[bit] = crc;
      }
      for (std::size_t byte = 0; byte < 4; ++byte) {
        for (std::size_t value = 0; value < 256; ++value) {
          for (std::size_t bit = 0; bit < 8; ++bit) {
            if (((value >> bit) & 1) != 0) tables_[byte][value] ^= of_bit[8 * byte + bit];
          }
        }
      }
    }
    std::uint32_t behind(std::uint32_t crc) const {
      return tables_[0][crc & 0xFF] ^ tables_[1][(crc >> 8) & 0xFF] ^
             tables_[2][(crc >> 16) & 0xFF] ^ tables_[3][crc >> 24];
    }

   private:
    std::array<std::array<std::uint32_t, 256>, 4> tables_{};
  };
};
#endif

}  // namespace

std::uint32_t crc32c(std::string_view bytes, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~ByInstruction::crc(bytes.data(), bytes.size(), ~crc);
#endif
  return crc32c_by_tables(bytes, crc);
}

std::uint32_t crc32c_by_tables(std::string_view bytes, std::uint32_t crc) {
  return ~by_tables(bytes.data(), bytes.size(), ~crc);
}

}  // namespace heddle
