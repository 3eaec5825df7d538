#include <fmt/format.h>

#include "base/error.h"
#include "parallel/sequence/placement.h"
#include "parallel/sequence_testing.h"

namespace heddle {
namespace {

TEST(TokenRun, IsCutByPositionAndByIndex) {
  const TokenRun by_four{3, 5, 4};  // 3 7 11 15 19
  EXPECT_EQ(within(by_four, 4, 16), (TokenRun{7, 3, 4}));
  EXPECT_EQ(within(by_four, 12, 15).count, 0);
  EXPECT_EQ(keys_up_to(2, by_four), 0);
  EXPECT_EQ(keys_up_to(3, by_four), 1);
  EXPECT_EQ(keys_up_to(100, by_four), 5);
  const TokenRuns runs = {{0, 4}, {10, 4}};
  EXPECT_EQ(slice(runs, 3, 6), (TokenRuns{{3, 1}, {10, 2}}));
  TokenRuns joined = {{0, 4}};
  append(joined, TokenRun{4, 2});
  append(joined, TokenRun{8, 1});
  EXPECT_EQ(joined, (TokenRuns{{0, 6}, {8, 1}}));
}

TEST(Tile, CountsItsPairs) {
  for (const std::int64_t stride : {1, 3}) {
    for (std::int64_t first = 0; first < 12; ++first) {
      for (std::int64_t queries = 1; queries < 8; ++queries) {
        for (std::int64_t keys = 1; keys < 8; ++keys) {
          const Tile tile{{first, queries, stride}, {5, keys, stride}, {0, 2}, true};
          std::int64_t pairs = 0;
          for (std::int64_t i = 0; i < queries; ++i) {
            for (std::int64_t j = 0; j < keys; ++j) {
              pairs += tile.keys.at(j) <= tile.queries.at(i) ? 2 : 0;
            }
          }
          EXPECT_EQ(head_pairs(tile), pairs)
              << stride << " " << first << " " << queries << " " << keys;
        }
      }
    }
  }
  EXPECT_EQ(head_pairs({{9, 4}, {0, 5}, {2, 3}, false}), 60);
}

TEST(Tile, CountsThePairsInItsWindow) {
  for (const std::int64_t stride : {1, 3}) {
    for (std::int64_t first = 0; first < 30; ++first) {
      for (const std::int64_t window : {1, 2, 4, 9}) {
        Tile tile{{first, 5, stride}, {5, 6, stride}, {0, 2}, true, window};
        std::int64_t pairs = 0;
        for (std::int64_t i = 0; i < tile.queries.count; ++i) {
          const std::int64_t query = tile.queries.at(i);
          const auto [begin, end] = met_keys(tile, query);
          for (std::int64_t j = 0; j < tile.keys.count; ++j) {
            const bool is_met = tile.keys.at(j) <= query && tile.keys.at(j) > query - window;
            EXPECT_EQ(is_met, j >= begin && j < end);
            pairs += is_met ? 2 : 0;
          }
        }
        EXPECT_EQ(head_pairs(tile), pairs) << stride << " " << first << " " << window;
        tile.is_causal = first < tile.keys.last();
        EXPECT_EQ(head_pairs(tile), pairs);
      }
    }
  }
}

TEST(CutParts, TravelWholeOrNotAtAll) {
  // Three ranks with ten tokens each. A window of four reaches back three tokens; one of twelve
  // into two ranks.
  const std::vector<DocumentParts> parts = {{{0, {{0, 10}}}}, {{0, {{10, 10}}}}, {{0, {{20, 10}}}}};
  const auto firsts = [](const DocumentParts& pieces) {
    std::vector<std::int64_t> first;
    for (const DocumentPart& piece : pieces) first.push_back(piece.first());
    return first;
  };
  const auto keys = cut_keys(parts, 4), queries = cut_queries(parts, 4);
  EXPECT_EQ(firsts(keys[0]), (std::vector<std::int64_t>{0, 7}));
  EXPECT_EQ(firsts(keys[1]), (std::vector<std::int64_t>{10, 17}));
  EXPECT_EQ(firsts(keys[2]), (std::vector<std::int64_t>{20}));
  EXPECT_EQ(firsts(queries[0]), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(firsts(queries[1]), (std::vector<std::int64_t>{10, 13}));
  EXPECT_EQ(firsts(queries[2]), (std::vector<std::int64_t>{20, 23}));
  EXPECT_EQ(firsts(cut_keys(parts, 12)[0]), (std::vector<std::int64_t>{0, 9}));
  EXPECT_EQ(firsts(cut_keys(parts, {})[0]), (std::vector<std::int64_t>{0}));
}

TEST(PlaceTokens, GivesEveryTokenToOneRankAndNearlyTheSameToEach) {
  for (const auto order : {ContextOrder::contiguous, ContextOrder::zigzag, ContextOrder::striped}) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (std::int64_t tokens = 1; tokens <= 60; ++tokens) {
        std::vector<int> holders(static_cast<std::size_t>(tokens));
        std::int64_t least = tokens, most = 0;
        for (const TokenRuns& runs : place_tokens(order, tokens, ranks)) {
          least = std::min(least, tokens_in(runs));
          most = std::max(most, tokens_in(runs));
          for (const TokenRun& run : runs) {
            for (std::int64_t i = 0; i < run.count; ++i) {
              ++holders[static_cast<std::size_t>(run.at(i))];
            }
          }
        }
        EXPECT_EQ(std::ranges::count(holders, 1), tokens);
        EXPECT_LE(most - least, 2) << name_of(order) << " " << ranks << " " << tokens;
      }
    }
  }
}

TEST(PartsOf, PutsBothStretchesOfADocumentTogether) {
  const auto parts = parts_of({{2, 4}, {10, 4}}, {3, 9, 4});
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].tokens, (TokenRuns{{2, 1}}));
  EXPECT_EQ(parts[1].document, 1);
  EXPECT_EQ(parts[1].tokens, (TokenRuns{{3, 3}, {10, 2}}));
  EXPECT_EQ(parts[2].tokens, (TokenRuns{{12, 2}}));
}

class ContextPlans : public testing::TestWithParam<ContextMethod> {};

TEST_P(ContextPlans, ComputeEveryPairOnceForAnyLengthOnAnyNumberOfRanks) {
  for (const ContextOrder order : orders_of(GetParam())) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (const std::int64_t tokens : {1, 2, 3, 7, 16, 33, 97, 144, 251}) {
        expect_valid(with_heads(
            {.method = GetParam(), .order = order, .ranks = ranks, .tokens = tokens}, 2, 2));
      }
    }
  }
}

TEST_P(ContextPlans, ComputeEveryPairOnceWithRandomDocuments) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CaseRandom random(seed);
    ContextShape shape{.method = GetParam(),
                       .ranks = static_cast<int>(random.between(1, 9)),
                       .tokens = random.between(1, 400)};
    shape.documents = random_documents(shape.tokens, shape.ranks, random);
    shape = with_heads(shape, static_cast<int>(random.between(1, 6)),
                       static_cast<int>(random.between(1, 3)));
    for (const ContextOrder order : orders_of(GetParam())) {
      shape.order = order;
      expect_valid(shape);
    }
  }
}

TEST_P(ContextPlans, ComputeEveryPairOnceInWindows) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CaseRandom random(3000 + seed);
    ContextShape shape{.method = GetParam(),
                       .ranks = static_cast<int>(random.between(1, 9)),
                       .tokens = random.between(1, 400)};
    shape.window = random_window(shape, random);
    if (seed % 2 == 0) shape.documents = random_documents(shape.tokens, shape.ranks, random);
    shape = with_heads(shape, static_cast<int>(random.between(1, 6)),
                       static_cast<int>(random.between(1, 3)));
    for (const ContextOrder order : orders_of(GetParam())) {
      shape.order = order;
      expect_valid(shape);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ContextPlans, testing::ValuesIn(kContextMethodsTested),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Usp, IsValidForEveryDivisionOfHeads) {
  for (const int ranks : {4, 6, 8, 9}) {
    for (const int key_heads : {1, 2, 3, 4, 8}) {
      for (int parts = 1; parts <= ranks; ++parts) {
        ContextShape shape{.method = ContextMethod::usp,
                           .ranks = ranks,
                           .tokens = 101,
                           .documents = {3, 60, 1, 37},
                           .heads = 24,
                           .key_heads = key_heads,
                           .context_heads = parts};
        if (!problems_of(shape).empty()) continue;
        for (const ContextOrder order : orders_of(shape.method)) {
          shape.order = order;
          expect_valid(shape);
        }
      }
    }
  }
}

TEST(LightSeq, ComputesWhatThePaperSaysOnEightRanks) {
  const ContextPlan plan =
      make_context_plan({.method = ContextMethod::lightseq, .ranks = 8, .tokens = 8});
  // By rank, rounds 1 to 4: kN uses K and V of rank N, hM helps rank M.
  const std::vector<std::string> expected = {"h7 h6 h5 idle", "k0 h7 h6 idle", "k1 k0 h7 idle",
                                             "k2 k1 k0 idle", "k3 k2 k1 k0",   "k4 k3 k2 k1",
                                             "k5 k4 k3 k2",   "k6 k5 k4 k3"};
  for (std::size_t rank = 0; rank < 8; ++rank) {
    std::string text;
    for (std::size_t round = 1; round <= 4; ++round) {
      const auto& tiles = plan.forward.by_rank[rank][round].tiles;
      if (round > 1) text += " ";
      if (tiles.empty()) {
        text += "idle";
        continue;
      }
      const auto query = tiles.front().queries.first, key = tiles.front().keys.first;
      text += query == static_cast<std::int64_t>(rank) ? fmt::format("k{}", key)
                                                       : fmt::format("h{}", query);
    }
    EXPECT_EQ(text, expected[rank]) << rank;
  }
}

TEST(LightSeq, LeavesNoRankIdleWhereTheNumberOfRanksIsOdd) {
  for (const int ranks : {3, 5, 7, 9}) {
    const ContextPlan plan =
        make_context_plan({.method = ContextMethod::lightseq, .ranks = ranks, .tokens = 4 * ranks});
    for (const auto& rounds : plan.forward.by_rank) {
      for (int round = 0; round <= ranks / 2; ++round) {
        EXPECT_EQ(rounds[static_cast<std::size_t>(round)].tiles.size(), 1u) << ranks;
      }
    }
  }
}

TEST(Ring, SendsNothingWhereNoDocumentSpansRanks) {
  for (const ContextMethod method : {ContextMethod::ring, ContextMethod::gather,
                                     ContextMethod::lightseq, ContextMethod::tokenring}) {
    const ContextPlan plan = make_context_plan({.method = method,
                                                .order = ContextOrder::contiguous,
                                                .ranks = 4,
                                                .tokens = 40,
                                                .documents = {10, 4, 6, 10, 1, 9}});
    for (const ContextPass* pass : {&plan.forward, &plan.backward}) {
      EXPECT_LE(pass->rounds(), 1) << name_of(method);
      for (const RankCounts& counts : count_by_rank(*pass, plan.shape)) {
        EXPECT_EQ(counts.sent.payload(), 0);
      }
    }
  }
}

/// All problems of a shape, one per line.
std::string refusal(const ContextShape& shape) {
  try {
    make_context_plan(shape);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.message();
  }
  return "";
}

TEST(ContextShape, RefusesHeadsThatCannotBeDealtOutAndSaysWhatCouldBe) {
  EXPECT_EQ(
      refusal(
          {.method = ContextMethod::ulysses, .ranks = 6, .tokens = 9, .heads = 32, .key_heads = 8}),
      "--method ulysses cannot deal 32 query and 8 key heads out to --cp 6 ranks; use --cp 1, 2, "
      "4, "
      "8, 16 or 32, --method usp with --context-heads 1 or 2, or --method ring");
  EXPECT_EQ(refusal({.method = ContextMethod::usp,
                     .ranks = 8,
                     .tokens = 9,
                     .heads = 32,
                     .key_heads = 8,
                     .context_heads = 3}),
            "--context-heads 3 does not divide --cp 8 and 32 query and 8 key heads; use 1, 2, 4 or "
            "8");
}

TEST(ContextShape, IsStillLegalWhenItIsResolved) {
  for (const ContextMethod method : kContextMethodsTested) {
    const ContextShape once =
        resolved({.method = method, .ranks = 4, .tokens = 9, .heads = 8, .key_heads = 4});
    EXPECT_TRUE(problems_of(once).empty()) << name_of(method);
    EXPECT_EQ(make_context_plan(once).shape.context_heads, once.context_heads);
  }
}

TEST(ContextShape, TellsAllProblemsAtOnce) {
  const std::string message = refusal({.method = ContextMethod::lightseq,
                                       .order = ContextOrder::striped,
                                       .ranks = 4,
                                       .tokens = 10,
                                       .documents = {3, 4},
                                       .heads = 6,
                                       .key_heads = 4,
                                       .context_heads = 2});
  for (const char* part : {"documents have 7 tokens", "cannot have --order striped",
                           "use 1, 2, 3 or 6", "--context-heads 2 is for --method usp"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
  }
  EXPECT_NE(refusal({.ranks = 0, .tokens = -1, .documents = {0}}).find("--cp 0"),
            std::string::npos);
  EXPECT_NE(refusal({.tokens = 5, .documents = {3, 4}}).find("document 2 ends behind"),
            std::string::npos);
}

}  // namespace
}  // namespace heddle
