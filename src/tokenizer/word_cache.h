#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace heddle {

/// Remembers the tokens of recent short words: a direct-mapped table of fixed size (2 MiB), so it
/// never grows and never needs clearing. One line of memory per word.
class WordCache {
 public:
  /// A word as the model gets it, or a piece of text that steps of pre-tokenization still make
  /// words of. The same bytes may have other tokens as the one than as the other.
  enum class Of : std::uint8_t { word, piece = 0x80 };

  WordCache() : entries_(kEntries) {}

  /// Whether a word is short enough to be remembered.
  static bool takes(std::string_view word) { return word.size() <= kMaxBytes; }

  /// Appends the tokens of `word` and returns true when they are known.
  bool append(std::string_view word, Of of, std::vector<std::int32_t>& out) const {
    if (!takes(word)) return false;
    const Entry& entry = entries_[slot(word)];
    if (entry.length != length_of(word, of) ||
        std::memcmp(entry.key.data(), word.data(), word.size()) != 0) {
      return false;
    }
    out.insert(out.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return true;
  }

  void put(std::string_view word, Of of, std::span<const std::int32_t> ids) {
    if (word.empty() || !takes(word) || ids.size() > kMaxIds) return;
    Entry& entry = entries_[slot(word)];
    entry.length = length_of(word, of);
    entry.count = static_cast<std::uint8_t>(ids.size());
    std::ranges::copy(word, entry.key.begin());
    std::ranges::copy(ids, entry.ids.begin());
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << 15;
  static constexpr std::size_t kMaxBytes = 30, kMaxIds = 8;
  struct alignas(64) Entry {
    std::uint8_t length = 0, count = 0;  // the length with what it is of
    std::array<char, kMaxBytes> key{};
    std::array<std::int32_t, kMaxIds> ids{};
  };

  static std::uint8_t length_of(std::string_view word, Of of) {
    return static_cast<std::uint8_t>(word.size() | static_cast<std::uint8_t>(of));
  }

  static std::size_t slot(std::string_view word) {
    std::uint64_t hash = word.size(), block = 0;
    const char* p = word.data();
    std::size_t left = word.size();
    for (; left >= 8; left -= 8, p += 8) {
      std::memcpy(&block, p, 8);
      hash = (hash ^ block) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 32;
    }
    block = 0;
    if (left >= 4) {
      std::uint32_t low = 0, high = 0;
      std::memcpy(&low, p, 4);
      std::memcpy(&high, p + left - 4, 4);
      block = low | static_cast<std::uint64_t>(high) << 32;
    } else if (left > 0) {
      const auto at = [&](std::size_t i) {
        return std::uint64_t{static_cast<unsigned char>(p[i])};
      };
      block = at(0) | at(left / 2) << 8 | at(left - 1) << 16;
    }
    hash = (hash ^ block) * 0x9E3779B97F4A7C15ULL;
    return static_cast<std::size_t>(hash >> 49);
  }

  std::vector<Entry> entries_;
};

}  // namespace heddle
