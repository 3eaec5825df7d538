#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle {

/// A merge of a byte-pair encoding.
struct BpeMerge {
  std::int32_t left, right, result;
};

/// Byte-pair merges in order of rank. Applied to the symbols of a word: always the adjacent pair of
/// lowest rank, the leftmost of equal ones, until none is left (models.md 10.5). Immutable and
/// thread-safe.
class BpeMerges {
 public:
  static constexpr std::int32_t kNoToken = -1;
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;
  /// Up to this many symbols scanning for the lowest rank beats a heap.
  static constexpr std::size_t kShort = 96;

  BpeMerges() = default;
  /// A pair listed twice keeps its later rank.
  explicit BpeMerges(std::span<const BpeMerge> merges);

  std::uint32_t rank_of(std::int32_t left, std::int32_t right) const;

  /// Appends what becomes of `symbols`. O(n log n).
  void apply(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& out) const;

  /// A short word, with the ranks of its adjacent pairs; both are worked on in place.
  struct ShortWord {
    std::array<std::int32_t, kShort> ids;
    std::array<std::uint32_t, kShort> ranks;  ///< of the pair (i, i + 1)
    std::size_t size = 0;
  };
  void apply(ShortWord& word, std::vector<std::int32_t>& out) const;

 private:
  struct Slot {
    std::int32_t left = kNoToken, right = kNoToken;
    std::uint32_t rank = kNoRank;
  };

  std::size_t first_slot(std::int32_t left, std::int32_t right) const;
  void insert(std::int32_t left, std::int32_t right, std::uint32_t rank);
  void apply_long(std::span<const std::int32_t> word, std::vector<std::int32_t>& out) const;

  std::vector<std::int32_t> results_;  // by rank
  std::vector<Slot> slots_{2};         // open addressing, at most half full
  int shift_ = 63;
};

}  // namespace heddle
