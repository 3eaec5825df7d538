#include "parallel/sequence/merge_calls.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

constexpr ContextOrder kOrders[] = {ContextOrder::zigzag, ContextOrder::contiguous,
                                    ContextOrder::striped};

ContextPlan plan_of(ContextMethod method, ContextOrder order, int ranks) {
  return make_context_plan(resolved({.method = method,
                                     .order = order,
                                     .ranks = ranks,
                                     .tokens = 1000,
                                     .heads = 4,
                                     .key_heads = 2,
                                     .head_dim = 8}));
}

TEST(MergedCalls, OfARingWithoutDocumentsAreOneForEachRound) {
  for (const ContextOrder order : kOrders) {
    for (const int ranks : {2, 3, 4, 8}) {
      const ContextPlan plan = plan_of(ContextMethod::ring, order, ranks);
      for (const auto pass : {ContextPassKind::forward, ContextPassKind::backward}) {
        for (int rank = 0; rank < ranks; ++rank) {
          for (const ProgramRound& round : make_context_program(plan, pass, rank).rounds) {
            EXPECT_LE(round.tiles.size(), 1U) << name_of(order) << ", rank " << rank;
          }
        }
      }
    }
  }
}

/// Calls that meet keys of several ranks have them in a piece of their own, in the order of the
/// sequence; of tokens that are dealt out there is no such piece.
TEST(MergedCalls, OfAGatherMeetAllKeysOfAllStretchesAtOnce) {
  for (const ContextOrder order : kOrders) {
    const bool is_dealt = order == ContextOrder::striped;
    for (const int ranks : {2, 3, 4, 8}) {
      const ContextPlan plan = plan_of(ContextMethod::gather, order, ranks);
      for (const auto pass : {ContextPassKind::forward, ContextPassKind::backward}) {
        for (int rank = 0; rank < ranks; ++rank) {
          const ContextProgram program = make_context_program(plan, pass, rank);
          for (const ProgramRound& round : program.rounds) {
            EXPECT_LE(round.tiles.size(), is_dealt ? static_cast<std::size_t>(ranks) : 1U)
                << name_of(order) << ", rank " << rank;
            // Of two stretches that do not follow each other, the second sees more.
            const bool jumps = order == ContextOrder::zigzag && rank != ranks - 1;
            for (const TileCall& call : round.tiles) {
              EXPECT_EQ(call.jump > 0, jumps) << ranks << " ranks, rank " << rank;
            }
            EXPECT_EQ(round.joined.empty(), is_dealt || round.tiles.empty() ||
                                                (order == ContextOrder::contiguous && rank == 0));
            // Gradients of keys that were put together go where they belong.
            EXPECT_TRUE(round.added.empty());
            EXPECT_EQ(round.written.empty(),
                      round.joined.empty() || pass == ContextPassKind::forward);
          }
        }
      }
    }
  }
}

TEST(MergedCalls, OfAGatherWriteAllOutputsAndGradientsOfKeys) {
  const ContextPlan plan = make_context_plan(resolved({.method = ContextMethod::gather,
                                                       .ranks = 4,
                                                       .tokens = 64,
                                                       .heads = 8,
                                                       .key_heads = 4,
                                                       .head_dim = 8}));
  for (int rank = 0; rank < 4; ++rank) {
    const ContextProgram forward = make_context_program(plan, ContextPassKind::forward, rank);
    EXPECT_FALSE(forward.pieces[ContextProgram::kResults].is_cleared);
    for (const ProgramRound& round : forward.rounds) {
      for (const TileCall& call : round.tiles) EXPECT_TRUE(call.is_first);
    }
    const ContextProgram backward = make_context_program(plan, ContextPassKind::backward, rank);
    EXPECT_FALSE(backward.pieces[ContextProgram::kKeyResults].is_cleared);
  }
}

TEST(MergedCalls, SayWhenAPieceOfGradientsHasAllOfThem) {
  for (const ContextMethod method :
       {ContextMethod::ring, ContextMethod::gather, ContextMethod::tokenring}) {
    const ContextPlan plan = make_context_plan(resolved({.method = method,
                                                         .order = ContextOrder::zigzag,
                                                         .ranks = 4,
                                                         .tokens = 8 * 96,
                                                         .heads = 2,
                                                         .key_heads = 2,
                                                         .head_dim = 8}));
    const ContextProgram backward = make_context_program(plan, ContextPassKind::backward, 1);
    std::vector<int> had(backward.pieces.size(), 0), summed(had);
    for (const ProgramRound& round : backward.rounds) {
      for (const TileCall& call : round.tiles) {
        const auto at = static_cast<std::size_t>(call.results.piece);
        EXPECT_EQ(summed[at], 0) << "a call behind the last one";
        had[at] = 1;
        // Stretches of 96 tokens begin and end at multiples of 32.
        EXPECT_EQ(backward.pieces[at].row_multiple % 32, 0);
      }
      for (const int piece : round.summed) ++summed[static_cast<std::size_t>(piece)];
    }
    EXPECT_EQ(had, summed) << name_of(method);
  }
}

TEST(MergedCalls, ResultsForTheSameRowsWaitForEachOther) {
  for (const int ranks : {2, 4, 6}) {
    const ContextPlan plan = make_context_plan(resolved({.method = ContextMethod::tokenring,
                                                         .ranks = ranks,
                                                         .tokens = 120,
                                                         .heads = 2,
                                                         .key_heads = 2,
                                                         .head_dim = 8}));
    for (const auto pass : {ContextPassKind::forward, ContextPassKind::backward}) {
      int come = 0;
      std::vector<int> come_when_put_away;
      for (const ProgramRound& round : make_context_program(plan, pass, 1).rounds) {
        for (const Transfer& transfer : round.receives) come += transfer.message.is_partial ? 1 : 0;
        const bool has_new = come_when_put_away.empty() || come > come_when_put_away.back();
        if (come > 0 && round.puts_away && has_new) come_when_put_away.push_back(come);
      }
      // At most three wait, and none is left at the end.
      EXPECT_EQ(come_when_put_away, ranks == 2   ? std::vector{1}
                                    : ranks == 4 ? std::vector{3}
                                                 : (std::vector{3, 5}));
    }
  }
}

/// Rows of piece 0, 1, 2 and 3: of queries, keys, results, and in backward of keys' gradients.
TileCall call_of(std::int64_t query, std::int64_t queries, std::int64_t key, std::int64_t keys,
                 std::int64_t ahead) {
  return {.queries = {0, query, queries, {0, 2}},
          .keys = {1, key, keys, {0, 1}},
          .results = {2, query, queries, {0, 2}},
          .key_results = {3, key, keys, {0, 1}},
          .ahead = ahead};
}

std::vector<TileCall> merged(std::vector<TileCall> calls) {
  merge_calls(calls);
  return calls;
}

TEST(MergedCalls, OfACausalSquareInQuartersAreOne) {
  const std::vector<TileCall> calls =
      merged({call_of(0, 5, 0, 5, 0), call_of(5, 7, 0, 5, 5), call_of(5, 7, 5, 7, 0)});
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls.front().queries.count, 12);
  EXPECT_EQ(calls.front().keys.count, 12);
  EXPECT_EQ(calls.front().key_results.count, 12);
  EXPECT_EQ(calls.front().ahead, 0);
}

TEST(MergedCalls, LeaveOutNoPairAndAddNone) {
  // The first queries would see the others' keys.
  EXPECT_EQ(merged({call_of(0, 5, 0, 5, 5), call_of(5, 7, 0, 9, 9)}).size(), 2U);
  // The first keys are not seen by all.
  EXPECT_EQ(merged({call_of(0, 5, 0, 5, 0), call_of(0, 5, 5, 7, 7)}).size(), 2U);
  // Another document begins.
  EXPECT_EQ(merged({call_of(0, 5, 0, 5, 0), call_of(5, 7, 5, 7, 0)}).size(), 2U);
  // Rows between them are left out.
  EXPECT_EQ(merged({call_of(0, 5, 0, 5, 5), call_of(6, 7, 0, 5, 5)}).size(), 2U);
  EXPECT_EQ(merged({call_of(0, 5, 0, 5, 5), call_of(0, 5, 6, 5, 5)}).size(), 2U);
}

TEST(MergedCalls, WriteResultsThatNothingElseBegins) {
  const ContextPlan plan = make_context_plan(resolved({.method = ContextMethod::ring,
                                                       .ranks = 4,
                                                       .tokens = 64,
                                                       .heads = 2,
                                                       .key_heads = 2,
                                                       .head_dim = 8}));
  const ContextProgram forward = make_context_program(plan, ContextPassKind::forward, 1);
  EXPECT_FALSE(forward.pieces[ContextProgram::kResults].is_cleared);
  int written = 0;
  for (const ProgramRound& round : forward.rounds) {
    for (const TileCall& call : round.tiles) written += call.is_first ? 1 : 0;
  }
  EXPECT_EQ(written, 1);
  const ContextProgram backward = make_context_program(plan, ContextPassKind::backward, 1);
  EXPECT_TRUE(backward.pieces[ContextProgram::kResults].is_cleared);
  EXPECT_TRUE(backward.pieces[ContextProgram::kKeyResults].is_cleared);
}

}  // namespace
}  // namespace heddle
