#include <algorithm>

#include "parallel/sequence/methods/methods.h"

namespace heddle::context_methods {
namespace {

/// Into how many parts heads are divided at most. More of them hide more of the exchange behind
/// computation, but make smaller kernels and messages.
constexpr int kMostHeadParts = 4;

/// Key heads of each part, as equal as can be.
std::vector<HeadRange> key_head_parts(const ContextShape& shape) {
  const int parts = std::min(shape.key_heads, kMostHeadParts);
  std::vector<HeadRange> ranges;
  for (int i = 0; i < parts; ++i) {
    const int begin = shape.key_heads * i / parts;
    ranges.push_back({begin, shape.key_heads * (i + 1) / parts - begin});
  }
  return ranges;
}

/// A rank has all keys of a document that its queries see at once, so each stretch of queries meets
/// them in one tile, whoever sent them; dealt out, tokens of different ranks do not follow each
/// other, and there is one for each rank that has keys.
void compute_gathered(const ContextShape& shape, int round, int rank, const DocumentParts& queries,
                      const std::vector<DocumentParts>& by_rank, HeadRange heads,
                      PassBuilder& rounds) {
  if (shape.order == ContextOrder::striped) {
    for (const DocumentParts& keys : by_rank) {
      for_each_seen(queries, keys, shape.window,
                    [&](std::size_t, const DocumentPart& some, const DocumentPart& seen) {
                      rounds.compute(round, rank, some, seen, heads);
                    });
    }
    return;
  }
  std::int64_t document = 0, begin = 0;
  for (const DocumentPart& part : queries) {
    for (; document < part.document; ++document) {
      begin += shape.documents[static_cast<std::size_t>(document)];
    }
    for (const TokenRun& run : part.tokens) {
      const TokenRun seen{begin, run.last() + 1 - begin};
      rounds.compute(round, rank, {part.document, {run}}, {part.document, {seen}}, heads);
    }
  }
}

/// K and V of part i arrive in round i and are computed with in round i + 1; their gradients go
/// home in round i + 2.
ContextPass gather_pass(const ContextPlan& plan, bool is_backward) {
  const ContextShape& shape = plan.shape;
  const auto parts = parts_by_rank(plan), keys_of = cut_keys(parts, shape.window);
  const auto key_heads = key_head_parts(shape);
  PassBuilder rounds(shape);
  for (std::size_t i = 0; i < key_heads.size(); ++i) {
    const int round = static_cast<int>(i);
    const HeadRange heads{key_heads[i].first * shape.group(), key_heads[i].count * shape.group()};
    for (int user = 0; user < shape.ranks; ++user) {
      compute_gathered(shape, round + 1, user, parts[static_cast<std::size_t>(user)], parts, heads,
                       rounds);
    }
    for (int distance = 1; distance < shape.ranks; ++distance) {
      for (int owner = 0; owner < shape.ranks; ++owner) {
        const int user = (owner + distance) % shape.ranks;
        for_each_seen(parts[static_cast<std::size_t>(user)],
                      keys_of[static_cast<std::size_t>(owner)], shape.window,
                      [&](std::size_t, const DocumentPart&, const DocumentPart& keys) {
                        rounds.send(round, owner, user, {Content::kv, key_heads[i]}, keys.tokens);
                        if (is_backward) {
                          rounds.send(round + 2, user, owner,
                                      {Content::kv_grad, key_heads[i], true}, keys.tokens);
                        }
                      });
      }
    }
  }
  return rounds.finish();
}

}  // namespace

ContextPlan gather(const ContextShape& shape) {
  ContextPlan plan = placed(shape);
  plan.forward = gather_pass(plan, false);
  plan.backward = gather_pass(plan, true);
  return plan;
}

}  // namespace heddle::context_methods
