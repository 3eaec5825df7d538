#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "parallel/sequence/context_plan.h"

/// Shapes that tests of rounds of attention divide.
namespace heddle {

inline constexpr std::array kContextMethodsTested = {
    ContextMethod::ring, ContextMethod::gather,   ContextMethod::ulysses,
    ContextMethod::usp,  ContextMethod::lightseq, ContextMethod::tokenring};

/// The orders that a method takes.
inline std::vector<ContextOrder> orders_of(ContextMethod method) {
  if (method == ContextMethod::lightseq) return {ContextOrder::contiguous};
  return {ContextOrder::contiguous, ContextOrder::zigzag, ContextOrder::striped};
}

/// Random numbers of one test case.
class CaseRandom {
 public:
  explicit CaseRandom(std::uint64_t seed) : key_(rng_key(seed, "sequence")) {}
  /// From `low` to `high`, both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_u64(key_, next_++) %
                                           static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::uint64_t key_, next_ = 0;
};

/// Lengths of documents that fill `tokens`: single tokens, long ones that span ranks, and ends on
/// and beside the edges of blocks of 2 * ranks.
inline std::vector<std::int64_t> random_documents(std::int64_t tokens, int ranks,
                                                  CaseRandom& random) {
  std::vector<std::int64_t> documents;
  for (std::int64_t left = tokens; left > 0;) {
    const std::int64_t block = std::max<std::int64_t>(1, tokens / (2 * ranks));
    const std::int64_t to_edge = block - (tokens - left) % block;
    std::int64_t length = 1;
    switch (random.between(0, 6)) {
      case 0: length = 1; break;
      case 1: length = 2; break;
      case 2: length = 137; break;
      case 3: length = to_edge + block * random.between(0, 3); break;
      case 4: length = to_edge + random.between(-1, 1); break;
      case 5: length = random.between(1, tokens); break;
      default: length = random.between(1, 2 * block); break;
    }
    length = std::clamp<std::int64_t>(length, 1, left);
    documents.push_back(length);
    left -= length;
  }
  return documents;
}

/// Pairs of query and key that causal documents and the window allow.
inline std::int64_t pairs_of_mask(const ContextShape& shape) {
  std::int64_t pairs = 0;
  for (const std::int64_t length : shape.documents) {
    const std::int64_t unseen = std::max<std::int64_t>(0, length - shape.window.value_or(length));
    pairs += length * (length + 1) / 2 - unseen * (unseen + 1) / 2;
  }
  return pairs;
}

/// A window of one token, of a few, of about what a rank has, or of more than that.
inline std::int64_t random_window(const ContextShape& shape, CaseRandom& random) {
  const std::int64_t share = std::max<std::int64_t>(1, shape.tokens / shape.ranks);
  switch (random.between(0, 4)) {
    case 0: return random.between(1, 3);
    case 1: return random.between(1, share);
    case 2: return share + random.between(0, 2);
    case 3: return 2 * share + random.between(0, share);
    default: return random.between(1, shape.tokens);
  }
}

inline std::string to_text(const ContextShape& shape) {
  std::string text = std::string(name_of(shape.method)) + " " + std::string(name_of(shape.order)) +
                     " P " + std::to_string(shape.ranks) + " N " + std::to_string(shape.tokens) +
                     " heads " + std::to_string(shape.heads) + "/" +
                     std::to_string(shape.key_heads) + " documents";
  for (const std::int64_t length : shape.documents) text += " " + std::to_string(length);
  if (shape.window) text += " window " + std::to_string(*shape.window);
  return text;
}

/// EXPECTs that nothing is wrong with a plan and that its ranks compute what the mask allows.
inline void expect_valid(const ContextShape& shape) {
  SCOPED_TRACE(to_text(shape));
  const ContextPlan plan = make_context_plan(shape);
  for (const Diagnostic& wrong : validate(plan)) {
    ADD_FAILURE() << "rank " << wrong.rank << ": " << wrong.message;
  }
  for (const ContextPass* pass : {&plan.forward, &plan.backward}) {
    std::int64_t pairs = 0;
    for (const RankCounts& counts : count_by_rank(*pass, plan.shape)) pairs += counts.head_pairs;
    EXPECT_EQ(pairs, pairs_of_mask(plan.shape) * shape.heads);
  }
}

/// Heads that can be dealt out to so many ranks, where a method needs that.
inline ContextShape with_heads(ContextShape shape, int key_heads, int group) {
  const bool deals = shape.method == ContextMethod::ulysses;
  shape.key_heads = key_heads;
  shape.heads = key_heads * group;
  if (deals && (shape.heads % shape.ranks != 0 ||
                (key_heads % shape.ranks != 0 && shape.ranks % key_heads != 0))) {
    shape.key_heads = shape.ranks;
    shape.heads = shape.ranks * group;
  }
  return shape;
}

}  // namespace heddle
