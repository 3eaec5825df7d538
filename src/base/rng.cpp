#include "base/rng.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace heddle {

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_low,
                                    std::uint64_t counter_high) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  auto c0 = static_cast<std::uint32_t>(counter_low),
       c1 = static_cast<std::uint32_t>(counter_low >> 32);
  auto c2 = static_cast<std::uint32_t>(counter_high),
       c3 = static_cast<std::uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ULL * c0, p1 = 0xCD9E8D57ULL * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {c0, c1, c2, c3};
}

std::uint64_t rng_key(std::uint64_t seed, std::uint64_t purpose) {
  const auto block = philox(seed, purpose, 0x6865646c65ULL);
  return (static_cast<std::uint64_t>(block[1]) << 32) | block[0];
}

std::uint64_t rng_key(std::uint64_t seed, std::string_view purpose) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : purpose) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return rng_key(seed, hash);
}

std::uint64_t random_u64(std::uint64_t key, std::uint64_t index) {
  const auto block = philox(key, index);
  return (static_cast<std::uint64_t>(block[1]) << 32) | block[0];
}

double random_uniform(std::uint64_t key, std::uint64_t index) {
  return static_cast<double>(random_u64(key, index) >> 11) * 0x1.0p-53;
}

double random_normal(std::uint64_t key, std::uint64_t index) {
  const auto block = philox(key, index);
  const double u1 = (static_cast<double>(block[0]) + 0.5) * 0x1.0p-32;  // never 0
  const double u2 = static_cast<double>(block[1]) * 0x1.0p-32;
  return std::sqrt(-2.0 * std::log(u1)) * std::cos(2.0 * std::numbers::pi * u2);
}

std::uint64_t random_permutation(std::uint64_t key, std::uint64_t index, std::uint64_t size) {
  HEDDLE_CHECK(index < size, "index {} of a permutation of {}", index, size);
  // A balanced Feistel network on 2*half bits; cycle-walking keeps the result below size. The
  // domain is less than four times the size, so fewer than four rounds of walking are expected.
  const int bits = size <= 2 ? 2 : static_cast<int>(std::bit_width(size - 1));
  const int half = (bits + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  std::uint64_t value = index;
  do {
    std::uint64_t left = value >> half, right = value & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const auto mixed = philox(key, right, round + 1)[0];
      const std::uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    value = (left << half) | right;
  } while (value >= size);
  return value;
}

}  // namespace heddle
