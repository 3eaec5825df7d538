#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/error.h"

namespace heddle {
namespace {

/// Below this many bytes scanning for the lowest rank beats a heap.
constexpr std::size_t kShortWord = 96;

}  // namespace

Bpe::Bpe(const std::array<std::int32_t, 256>& byte_ids, std::span<const BpeMerge> merges)
    : byte_ids_(byte_ids), byte_pair_ranks_(256 * 256, kNoRank) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(2, merges.size() * 2));
  slots_.resize(size);
  shift_ = 64 - std::countr_zero(size);
  results_.reserve(merges.size());
  for (const auto& merge : merges) {
    insert(merge.left, merge.right, static_cast<std::uint32_t>(results_.size()));
    results_.push_back(merge.result);
  }
  for (std::size_t a = 0; a < 256; ++a) {
    if (byte_ids_[a] == kNoToken) continue;
    for (std::size_t b = 0; b < 256; ++b) {
      if (byte_ids_[b] == kNoToken) continue;
      byte_pair_ranks_[a * 256 + b] = rank_of(byte_ids_[a], byte_ids_[b]);
    }
  }
}

std::size_t Bpe::first_slot(std::int32_t left, std::int32_t right) const {
  const auto key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
                   static_cast<std::uint32_t>(right);
  return static_cast<std::size_t>(
      (key * 0x9E3779B97F4A7C15ULL ^ key >> 29) * 0xD6E8FEB86659FD93ULL >> shift_);
}

void Bpe::insert(std::int32_t left, std::int32_t right, std::uint32_t rank) {
  std::size_t at = first_slot(left, right);
  while (slots_[at].left != kNoToken && (slots_[at].left != left || slots_[at].right != right)) {
    at = (at + 1) & (slots_.size() - 1);
  }
  slots_[at] = {left, right, rank};
}

std::uint32_t Bpe::rank_of(std::int32_t left, std::int32_t right) const {
  std::size_t at = first_slot(left, right);
  while (slots_[at].left != kNoToken) {
    if (slots_[at].left == left && slots_[at].right == right) return slots_[at].rank;
    at = (at + 1) & (slots_.size() - 1);
  }
  return kNoRank;
}

std::int32_t Bpe::id_of_byte(char byte) const {
  const auto b = static_cast<unsigned char>(byte);
  if (byte_ids_[b] == kNoToken) {
    throw Error(ErrorCode::data,
                fmt::format("the text has byte 0x{:02X}, for which the tokenizer's vocabulary has "
                            "no token",
                            b),
                "use a tokenizer whose vocabulary holds all 256 bytes");
  }
  return byte_ids_[b];
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& out) const {
  if (word.size() <= kShortWord) {
    encode_short(word, out);
  } else {
    encode_long(word, out);
  }
}

void Bpe::encode_short(std::string_view word, std::vector<std::int32_t>& out) const {
  std::array<std::int32_t, kShortWord> ids;
  std::array<std::uint32_t, kShortWord> ranks;  // of the pair (i, i + 1)
  std::size_t n = word.size();
  for (std::size_t i = 0; i < n; ++i) ids[i] = id_of_byte(word[i]);
  for (std::size_t i = 0; i + 1 < n; ++i) {
    ranks[i] = byte_pair_ranks_[static_cast<unsigned char>(word[i]) * std::size_t{256} +
                                static_cast<unsigned char>(word[i + 1])];
  }
  while (n > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.begin() + (n - 1));
    if (*best == kNoRank) break;
    const auto at = static_cast<std::size_t>(best - ranks.begin());
    ids[at] = results_[*best];
    std::copy(ids.begin() + at + 2, ids.begin() + n, ids.begin() + at + 1);
    std::copy(ranks.begin() + at + 1, ranks.begin() + (n - 1), ranks.begin() + at);
    --n;
    if (at > 0) ranks[at - 1] = rank_of(ids[at - 1], ids[at]);
    if (at + 1 < n) ranks[at] = rank_of(ids[at], ids[at + 1]);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + n);
}

void Bpe::encode_long(std::string_view word, std::vector<std::int32_t>& out) const {
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Symbol {
    std::int32_t id;
    std::size_t previous, next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::size_t left, right;
    std::int32_t left_id, right_id;
    bool operator<(const Candidate& other) const {  // the queue's top is its greatest
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::vector<Symbol> symbols(word.size());
  std::priority_queue<Candidate> queue;
  const auto offer = [&](std::size_t left, std::size_t right) {
    if (left == kNone || right == kNone) return;
    const auto rank = rank_of(symbols[left].id, symbols[right].id);
    if (rank != kNoRank) queue.push({rank, left, right, symbols[left].id, symbols[right].id});
  };
  for (std::size_t i = 0; i < word.size(); ++i) {
    symbols[i] = {id_of_byte(word[i]), i == 0 ? kNone : i - 1, i + 1 < word.size() ? i + 1 : kNone};
  }
  for (std::size_t i = 0; i + 1 < word.size(); ++i) offer(i, i + 1);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    // Stale when either side has meanwhile been merged; a symbol merged away has no token.
    if (symbols[c.left].id != c.left_id || symbols[c.right].id != c.right_id ||
        symbols[c.left].next != c.right) {
      continue;
    }
    symbols[c.left].id = results_[c.rank];
    symbols[c.right].id = kNoToken;
    const std::size_t next = symbols[c.right].next;
    symbols[c.left].next = next;
    if (next != kNone) symbols[next].previous = c.left;
    offer(symbols[c.left].previous, c.left);
    offer(c.left, next);
  }
  for (std::size_t i = 0; i != kNone; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace heddle
