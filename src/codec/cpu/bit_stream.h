#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace heddle::codec::cpu {

// Streams of bits in little-endian words of 64, from the lowest bit of a word on.

class BitWriter {
 public:
  explicit BitWriter(std::byte* to) : to_(to) {}

  /// The low `count` < 32 bits of `value`.
  void put(std::uint32_t value, int count) {
    const std::uint64_t bits = value & ((std::uint64_t{1} << count) - 1);
    word_ |= bits << filled_;
    filled_ += count;
    if (filled_ < 64) return;
    store();
    filled_ -= 64;
    word_ = filled_ > 0 ? bits >> (count - filled_) : 0;
  }
  void put_zeros(int count) {
    for (filled_ += count; filled_ >= 64; filled_ -= 64) {
      store();
      word_ = 0;
    }
  }
  /// Writes the last word, if it is begun.
  void end() {
    if (filled_ > 0) store();
  }

 private:
  void store() {
    std::memcpy(to_, &word_, sizeof word_);
    to_ += sizeof word_;
  }

  std::byte* to_;
  std::uint64_t word_ = 0;
  int filled_ = 0;
};

/// Behind the last byte come zeros.
class BitReader {
 public:
  BitReader(const std::byte* from, std::size_t bytes) : from_(from), end_(from + bytes) {}

  /// The next 32 bits, which stay there.
  std::uint32_t window() {
    if (filled_ < 32) fill();
    return static_cast<std::uint32_t>(word_);
  }
  /// Goes on by count < 32 bits.
  void skip(int count) {
    if (filled_ < 32) fill();
    word_ >>= count;
    filled_ -= count;
  }
  void skip_many(int count) {
    for (; count > 31; count -= 31) skip(31);
    skip(count);
  }

 private:
  void fill() {
    std::uint32_t next = 0;
    if (end_ - from_ >= 4) {
      std::memcpy(&next, from_, sizeof next);
      from_ += sizeof next;
    }
    word_ |= std::uint64_t{next} << filled_;
    filled_ += 32;
  }

  const std::byte *from_, *end_;
  std::uint64_t word_ = 0;
  int filled_ = 0;
};

}  // namespace heddle::codec::cpu
