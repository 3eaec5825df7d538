#include "parallel/sequence_testing.h"

namespace heddle {
namespace {

/// Elements sent by every rank, and their sum.
struct Sent {
  std::vector<double> by_rank;
  double sum = 0.0, statistics = 0.0;
};

Sent sent_in(const ContextPass& pass, const ContextShape& shape) {
  Sent sent;
  for (const RankCounts& counts : count_by_rank(pass, shape)) {
    sent.by_rank.push_back(static_cast<double>(counts.sent.payload()));
    sent.sum += sent.by_rank.back();
    sent.statistics += static_cast<double>(counts.sent.statistics);
  }
  return sent;
}

/// A shape whose blocks are all equal, and the sizes that closed forms are written in.
struct Sizes {
  ContextShape shape;
  double p, c, h, hk, bq, bk;
};

Sizes sizes(ContextMethod method, ContextOrder order, int ranks, int heads, int key_heads) {
  const int per_rank = 2 * 9;
  ContextShape shape{.method = method,
                     .order = order,
                     .ranks = ranks,
                     .tokens = per_rank * ranks,
                     .heads = heads,
                     .key_heads = key_heads,
                     .head_dim = 4};
  const double h = heads * 4, hk = key_heads * 4;
  return {shape, 1.0 * ranks, per_rank, h, hk, per_rank * h, per_rank * hk};
}

void expect_each_sends(const Sizes& s, double forward, double backward) {
  SCOPED_TRACE(to_text(s.shape));
  const ContextPlan plan = make_context_plan(s.shape);
  for (const double sent : sent_in(plan.forward, plan.shape).by_rank) {
    EXPECT_DOUBLE_EQ(sent, forward);
  }
  for (const double sent : sent_in(plan.backward, plan.shape).by_rank) {
    EXPECT_DOUBLE_EQ(sent, backward);
  }
}

TEST(ContextBytes, RingAndGatherSendKeysAndValuesToAllOthers) {
  for (const ContextMethod method : {ContextMethod::ring, ContextMethod::gather}) {
    for (const ContextOrder order : {ContextOrder::zigzag, ContextOrder::striped}) {
      for (int ranks = 1; ranks <= 9; ++ranks) {
        for (const int key_heads : {1, 2, 8}) {
          const Sizes s = sizes(method, order, ranks, 8, key_heads);
          expect_each_sends(s, 2 * (s.p - 1) * s.bk, 4 * (s.p - 1) * s.bk);
        }
      }
    }
  }
}

/// Half of what a ring that passes everything on sends: what lies behind a rank's queries does not
/// go there. Rank r passes on its own block and those of the ranks below it.
TEST(ContextBytes, ContiguousRingLeavesOutWhatNoQuerySees) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const Sizes s = sizes(ContextMethod::ring, ContextOrder::contiguous, ranks, 8, 2);
    const ContextPlan plan = make_context_plan(s.shape);
    const Sent forward = sent_in(plan.forward, plan.shape);
    for (int rank = 0; rank < ranks; ++rank) {
      const double blocks = rank == ranks - 1 ? 0 : rank + 1;
      EXPECT_DOUBLE_EQ(forward.by_rank[static_cast<std::size_t>(rank)], 2 * s.bk * blocks);
    }
    EXPECT_DOUBLE_EQ(forward.sum / s.p, (s.p - 1) * s.bk);
    EXPECT_DOUBLE_EQ(sent_in(plan.backward, plan.shape).sum / s.p, 2 * (s.p - 1) * s.bk);
  }
}

/// A stretch of queries sees the last W - 1 keys before it, and no others travel: of each stretch's
/// predecessor, or of two where a window is wider than a stretch.
TEST(ContextBytes, OfAWindowAreThoseOfTheKeysBeforeEachStretch) {
  constexpr std::int64_t kStretch = 64;
  for (const ContextMethod method : {ContextMethod::ring, ContextMethod::gather}) {
    for (const ContextOrder order : {ContextOrder::contiguous, ContextOrder::zigzag}) {
      for (const int ranks : {2, 3, 5, 8}) {
        for (const std::int64_t window : {1, 2, 17, 64, 65, 100}) {
          const std::int64_t stretches = order == ContextOrder::zigzag ? 2 * ranks : ranks;
          const ContextShape shape{.method = method,
                                   .order = order,
                                   .ranks = ranks,
                                   .tokens = kStretch * stretches,
                                   .heads = 4,
                                   .key_heads = 2,
                                   .head_dim = 8,
                                   .window = window};
          SCOPED_TRACE(to_text(shape));
          const ContextPlan plan = make_context_plan(shape);
          const auto holder = [&](std::int64_t stretch) {
            return stretch < ranks ? stretch : 2 * ranks - 1 - stretch;
          };
          // By the keys that a rank has of others: each once, however many of its stretches see it.
          std::int64_t keys = 0;
          for (int rank = 0; rank < ranks; ++rank) {
            for (std::int64_t other = 0; other < stretches; ++other) {
              if (holder(other) == rank) continue;
              std::int64_t most = 0;
              for (std::int64_t own = other + 1; own < stretches; ++own) {
                const std::int64_t between = (own - other - 1) * kStretch;
                if (holder(own) != rank) continue;
                most = std::max(most, std::clamp<std::int64_t>(window - 1 - between, 0, kStretch));
              }
              keys += most;
            }
          }
          const auto expected = static_cast<double>(keys * 2 * shape.key_heads * shape.head_dim);
          EXPECT_DOUBLE_EQ(sent_in(plan.forward, plan.shape).sum, expected);
          EXPECT_DOUBLE_EQ(sent_in(plan.backward, plan.shape).sum, 2 * expected);
        }
      }
    }
  }
}

TEST(ContextBytes, UlyssesSendsHeadsAndTheOutputBackAlsoBeyondTheKeyHeads) {
  for (const int ranks : {1, 2, 4, 8, 16}) {
    for (const int key_heads : {2, 4, 16}) {
      const Sizes s = sizes(ContextMethod::ulysses, ContextOrder::contiguous, ranks, 16, key_heads);
      const double each = (s.p - 1) / s.p * s.c * (2 * s.h + 2 * std::max(key_heads, ranks) * 4.0);
      expect_each_sends(s, each, each);
    }
  }
}

TEST(ContextBytes, UspSendsHeadsWithinGroupsAndKeysBetweenThem) {
  for (const auto& [ranks, parts] : {std::pair{8, 2}, {8, 4}, {8, 8}, {6, 2}, {9, 1}, {12, 4}}) {
    for (const ContextOrder order : {ContextOrder::zigzag, ContextOrder::striped}) {
      Sizes s = sizes(ContextMethod::usp, order, ranks, 16, 8);
      s.shape.context_heads = parts;
      // Every rank of a group then has the same number of tokens.
      s.shape.tokens = s.shape.tokens * parts;
      const double u = parts, r = s.p / u, c = s.c * u;
      const double heads = (u - 1) / u * c * (2 * s.h + 2 * s.hk);
      expect_each_sends(s, heads + 2 * (r - 1) * c * s.hk, heads + 4 * (r - 1) * c * s.hk);
    }
  }
}

TEST(ContextBytes, LightSeqSendsByRankWhatItsScheduleSays) {
  for (int ranks = 1; ranks <= 12; ++ranks) {
    for (const int key_heads : {2, 8}) {
      const Sizes s = sizes(ContextMethod::lightseq, ContextOrder::contiguous, ranks, 8, key_heads);
      const ContextPlan plan = make_context_plan(s.shape);
      const Sent forward = sent_in(plan.forward, plan.shape);
      const Sent backward = sent_in(plan.backward, plan.shape);
      const int half = ranks / 2, helped = ranks % 2 == 0 ? half - 1 : half;
      for (int rank = 0; rank < ranks; ++rank) {
        const double kv = std::min(half, ranks - 1 - rank), kv_back = std::min(half, rank);
        const double q = std::max(0, helped - ranks + rank + 1),
                     q_back = std::max(0, helped - rank);
        const auto i = static_cast<std::size_t>(rank);
        EXPECT_DOUBLE_EQ(forward.by_rank[i], 2 * kv * s.bk + (q + q_back) * s.bq) << rank;
        EXPECT_DOUBLE_EQ(backward.by_rank[i], 2 * (kv + kv_back) * s.bk + (2 * q + q_back) * s.bq)
            << rank;
      }
      if (key_heads == 8) {
        EXPECT_DOUBLE_EQ(forward.sum / s.p, (s.p - 1) * s.bq);
      }
      if (ranks % 2 == 0) {
        const double nkv = 3 * s.p * s.p / 8 - s.p / 4, nq = s.p * s.p / 8 - s.p / 4;
        EXPECT_DOUBLE_EQ(forward.sum, 2 * s.bk * nkv + 2 * s.bq * nq);
        EXPECT_DOUBLE_EQ(backward.sum, 4 * s.bk * nkv + 3 * s.bq * nq);
        EXPECT_DOUBLE_EQ(forward.statistics, s.c * 8 * nq);  // lse of partial outputs
      }
    }
  }
}

TEST(ContextBytes, TokenRingSendsQueriesOneWayAndOutputsTheOther) {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    const Sizes s = sizes(ContextMethod::tokenring, ContextOrder::zigzag, ranks, 8, 8);
    const ContextPlan plan = make_context_plan(s.shape);
    const Sent forward = sent_in(plan.forward, plan.shape);
    EXPECT_DOUBLE_EQ(forward.sum / s.p, 1.5 * (s.p - 1) * s.bq);
    EXPECT_DOUBLE_EQ(sent_in(plan.backward, plan.shape).sum / s.p, 2.25 * (s.p - 1) * s.bq);
    EXPECT_DOUBLE_EQ(forward.by_rank[1], (2 * s.p - 2.5) * s.bq) << ranks;
    EXPECT_DOUBLE_EQ(forward.by_rank.back(), (s.p - 0.5) * s.bq) << ranks;
  }
}

/// MiB by rank of the worked table of sequence lengths of 128K and 256K, all elements in two bytes.
TEST(ContextBytes, AreThoseOfTheWorkedTable) {
  struct Row {
    ContextMethod method;
    int heads, key_heads, ranks, context_heads;
    double forward, backward;
  };
  using enum ContextMethod;
  // LightSeq's backward is below the table's 1792 and 736, which ship o; here delta travels.
  for (const Row& row : {Row{ring, 32, 32, 8, 0, 1792, 3584},
                         {ring, 32, 8, 8, 0, 448, 896},
                         {ring, 32, 8, 16, 0, 960, 1920},
                         {gather, 32, 8, 8, 0, 448, 896},
                         {ulysses, 32, 32, 8, 0, 448, 448},
                         {ulysses, 32, 8, 8, 0, 280, 280},
                         {ulysses, 32, 8, 16, 0, 360, 360},
                         {usp, 32, 32, 8, 4, 640, 896},
                         {usp, 32, 8, 8, 4, 304, 368},
                         {usp, 32, 8, 16, 8, 344, 408},
                         {tokenring, 32, 8, 8, 0, 1344, 2016},
                         {lightseq, 32, 32, 8, 0, 896, 1696},
                         {lightseq, 32, 8, 8, 0, 368, 640}}) {
    const ContextShape shape{.method = row.method,
                             .ranks = row.ranks,
                             .tokens = 16384 * row.ranks,
                             .heads = row.heads,
                             .key_heads = row.key_heads,
                             .head_dim = 128,
                             .context_heads = row.context_heads};
    const ContextPlan plan = make_context_plan(shape);
    const double mib = 2.0 / 1024 / 1024 / row.ranks;
    EXPECT_DOUBLE_EQ(sent_in(plan.forward, plan.shape).sum * mib, row.forward) << to_text(shape);
    EXPECT_DOUBLE_EQ(sent_in(plan.backward, plan.shape).sum * mib, row.backward) << to_text(shape);
  }
}

TEST(ContextBytes, DocumentsMakeThemAtLeastThreeTimesFewerThanThePlainRing) {
  for (const ContextOrder order : {ContextOrder::contiguous, ContextOrder::zigzag}) {
    for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
      CaseRandom random(seed);
      ContextShape shape{.method = ContextMethod::ring,
                         .order = order,
                         .ranks = 8,
                         .tokens = 65536,
                         .heads = 32,
                         .key_heads = 8,
                         .head_dim = 128};
      std::vector<std::int64_t> ends = {65536};
      while (ends.size() < 32) ends.push_back(random.between(1, 65535));
      std::ranges::sort(ends);
      std::int64_t begin = 0;
      for (const std::int64_t end : ends) {
        if (end > begin) shape.documents.push_back(end - begin);
        begin = end;
      }
      const ContextPlan plan = make_context_plan(shape);
      const double bk = 8192.0 * 8 * 128;
      EXPECT_LT(3 * sent_in(plan.forward, plan.shape).sum, 8 * 2 * 7 * bk) << name_of(order);
      EXPECT_LT(3 * sent_in(plan.backward, plan.shape).sum, 8 * 4 * 7 * bk) << name_of(order);
    }
  }
}

std::vector<double> pairs_by_rank(const ContextPlan& plan) {
  std::vector<double> pairs;
  for (const RankCounts& counts : count_by_rank(plan.forward, plan.shape)) {
    pairs.push_back(static_cast<double>(counts.head_pairs) / plan.shape.heads);
  }
  return pairs;
}

TEST(ContextBalance, ZigzagAndUlyssesGiveEveryRankTheSamePairs) {
  for (const ContextMethod method : {ContextMethod::ring, ContextMethod::gather, ContextMethod::usp,
                                     ContextMethod::tokenring, ContextMethod::ulysses}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      const Sizes s = sizes(method, ContextOrder::zigzag, ranks, 8 * ranks, 8 * ranks);
      const double n = s.c * s.p;
      for (const double pairs : pairs_by_rank(make_context_plan(s.shape))) {
        EXPECT_DOUBLE_EQ(pairs, n * (n + 1) / 2 / s.p) << to_text(s.shape);
      }
    }
  }
}

TEST(ContextBalance, ContiguousAndStripedAreAsUnequalAsTheirOrder) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const Sizes even = sizes(ContextMethod::ring, ContextOrder::contiguous, ranks, 2, 1);
    const auto contiguous = pairs_by_rank(make_context_plan(even.shape));
    const Sizes fine = sizes(ContextMethod::ring, ContextOrder::striped, ranks, 2, 1);
    const auto striped = pairs_by_rank(make_context_plan(fine.shape));
    for (int rank = 0; rank < ranks; ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      EXPECT_DOUBLE_EQ(contiguous[i], rank * even.c * even.c + even.c * (even.c + 1) / 2);
      EXPECT_DOUBLE_EQ(striped[i], fine.p * fine.c * (fine.c - 1) / 2 + fine.c * (rank + 1));
    }
  }
}

/// Blocks by rank: a diagonal one counts half. All ranks have 1/2 + floor(P/2), but for one block
/// less on the first half of an even number of ranks.
TEST(ContextBalance, LightSeqIsOneBlockFromEqualOrExactlyEqual) {
  for (int ranks = 1; ranks <= 12; ++ranks) {
    const Sizes s = sizes(ContextMethod::lightseq, ContextOrder::contiguous, ranks, 2, 1);
    const auto pairs = pairs_by_rank(make_context_plan(s.shape));
    for (int rank = 0; rank < ranks; ++rank) {
      const bool is_idle_once = ranks % 2 == 0 && rank < ranks / 2;
      const double blocks = ranks / 2 - (is_idle_once ? 1 : 0);
      EXPECT_DOUBLE_EQ(pairs[static_cast<std::size_t>(rank)],
                       s.c * (s.c + 1) / 2 + blocks * s.c * s.c)
          << ranks;
    }
  }
}

TEST(ContextBalance, BackwardComputesTheSamePairsOnTheSameRanks) {
  for (const ContextMethod method : kContextMethodsTested) {
    CaseRandom random(7);
    ContextShape shape{.method = method, .ranks = 6, .tokens = 300, .heads = 6, .key_heads = 6};
    shape.documents = random_documents(shape.tokens, shape.ranks, random);
    const ContextPlan plan = make_context_plan(shape);
    const auto forward = count_by_rank(plan.forward, plan.shape);
    const auto backward = count_by_rank(plan.backward, plan.shape);
    for (std::size_t rank = 0; rank < forward.size(); ++rank) {
      EXPECT_EQ(forward[rank].head_pairs, backward[rank].head_pairs) << name_of(method);
    }
  }
}

}  // namespace
}  // namespace heddle
