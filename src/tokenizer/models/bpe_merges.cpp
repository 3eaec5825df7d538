#include "tokenizer/models/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <queue>

namespace heddle {

BpeMerges::BpeMerges(std::span<const BpeMerge> merges) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(2, merges.size() * 2));
  slots_.assign(size, Slot());
  shift_ = 64 - std::countr_zero(size);
  results_.reserve(merges.size());
  for (const auto& merge : merges) {
    insert(merge.left, merge.right, static_cast<std::uint32_t>(results_.size()));
    results_.push_back(merge.result);
  }
}

std::size_t BpeMerges::first_slot(std::int32_t left, std::int32_t right) const {
  const auto key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
                   static_cast<std::uint32_t>(right);
  return static_cast<std::size_t>(
      (key * 0x9E3779B97F4A7C15ULL ^ key >> 29) * 0xD6E8FEB86659FD93ULL >> shift_);
}

void BpeMerges::insert(std::int32_t left, std::int32_t right, std::uint32_t rank) {
  std::size_t at = first_slot(left, right);
  while (slots_[at].left != kNoToken && (slots_[at].left != left || slots_[at].right != right)) {
    at = (at + 1) & (slots_.size() - 1);
  }
  slots_[at] = {left, right, rank};
}

std::uint32_t BpeMerges::rank_of(std::int32_t left, std::int32_t right) const {
  std::size_t at = first_slot(left, right);
  while (slots_[at].left != kNoToken) {
    if (slots_[at].left == left && slots_[at].right == right) return slots_[at].rank;
    at = (at + 1) & (slots_.size() - 1);
  }
  return kNoRank;
}

void BpeMerges::apply(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& out) const {
  if (symbols.size() > kShort) return apply_long(symbols, out);
  ShortWord word;
  word.size = symbols.size();
  std::copy(symbols.begin(), symbols.end(), word.ids.begin());
  for (std::size_t i = 0; i + 1 < word.size; ++i) {
    word.ranks[i] = rank_of(word.ids[i], word.ids[i + 1]);
  }
  apply(word, out);
}

void BpeMerges::apply(ShortWord& word, std::vector<std::int32_t>& out) const {
  auto& [ids, ranks, n] = word;
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

void BpeMerges::apply_long(std::span<const std::int32_t> word,
                           std::vector<std::int32_t>& out) const {
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
    symbols[i] = {word[i], i == 0 ? kNone : i - 1, i + 1 < word.size() ? i + 1 : kNone};
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
