#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace heddle {

/// The merges of a byte-pair encoding, in order of rank.
struct BpeMerge {
  std::int32_t left, right, result;
};

/// Applies byte-pair merges to one word: from single bytes, always the adjacent pair of lowest
/// rank, the leftmost of equal ones, until none is left (models.md 10.5). Immutable and
/// thread-safe.
class Bpe {
 public:
  static constexpr std::int32_t kNoToken = -1;

  Bpe() = default;
  /// `byte_ids[b]` is the token of byte b or kNoToken. A pair listed twice keeps its later rank.
  Bpe(const std::array<std::int32_t, 256>& byte_ids, std::span<const BpeMerge> merges);

  /// Appends the tokens of `word`. Throws Error(data) for a byte that has no token. O(n log n).
  void encode(std::string_view word, std::vector<std::int32_t>& out) const;

 private:
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;
  struct Slot {
    std::int32_t left = kNoToken, right = kNoToken;
    std::uint32_t rank = kNoRank;
  };

  std::uint32_t rank_of(std::int32_t left, std::int32_t right) const;
  std::size_t first_slot(std::int32_t left, std::int32_t right) const;
  void insert(std::int32_t left, std::int32_t right, std::uint32_t rank);
  std::int32_t id_of_byte(char byte) const;
  void encode_short(std::string_view word, std::vector<std::int32_t>& out) const;
  void encode_long(std::string_view word, std::vector<std::int32_t>& out) const;

  std::array<std::int32_t, 256> byte_ids_{};
  std::vector<std::int32_t> results_;  // by rank
  std::vector<Slot> slots_;            // open addressing, at most half full
  int shift_ = 63;
  std::vector<std::uint32_t> byte_pair_ranks_;  // [first byte][second byte]
};

}  // namespace heddle
