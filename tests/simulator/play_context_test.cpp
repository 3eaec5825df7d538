#include "simulator/play_context.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace heddle {
namespace {

constexpr int kPerRank = 16, kHeadDim = 4;

ContextPlan plan_of(ContextMethod method, int ranks, ContextOrder order = ContextOrder::automatic) {
  return make_context_plan({.method = method,
                            .order = order,
                            .ranks = ranks,
                            .tokens = kPerRank * ranks,
                            .heads = 16,
                            .key_heads = 8,
                            .head_dim = kHeadDim});
}

double all_pairs(const ContextPlan& plan) {
  const auto n = static_cast<double>(plan.shape.tokens);
  return n * (n + 1) / 2;
}

/// Bytes of K and V of a rank in bf16.
constexpr double kKvBytes = 2.0 * kPerRank * 8 * kHeadDim * 2;

TEST(PlayContext, ZigzagLosesNoTimeWhereMessagesTakeNone) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const ContextPlan plan = plan_of(ContextMethod::ring, ranks);
    const PlayedContext forward = play_forward(plan, {.pair = 2.0});
    EXPECT_NEAR(forward.makespan, 2.0 * all_pairs(plan) / ranks, 1e-9);
    EXPECT_NEAR(forward.idle_fraction(), 0.0, 1e-12);
    const PlayedContext backward = play_backward(plan, {.pair = 2.0});
    EXPECT_NEAR(backward.makespan, 2.5 * forward.makespan, 1e-9);
  }
}

TEST(PlayContext, ContiguousTakesAsLongAsItsLastRank) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const ContextPlan plan = plan_of(ContextMethod::ring, ranks, ContextOrder::contiguous);
    const PlayedContext forward = play_forward(plan, {});
    const double c = kPerRank, last = c * (c + 1) / 2 + (ranks - 1) * c * c;
    EXPECT_NEAR(forward.makespan, last, 1e-9);
    EXPECT_NEAR(forward.idle_fraction(), 1 - all_pairs(plan) / ranks / last, 1e-12);
    EXPECT_EQ(forward.exposed, 0.0);
  }
}

TEST(PlayContext, LightSeqTakesHalfTheRoundsOfTheContiguousRing) {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    const double c = kPerRank;
    EXPECT_NEAR(play_forward(plan_of(ContextMethod::lightseq, ranks), {}).makespan,
                c * (c + 1) / 2 + ranks / 2 * c * c, 1e-9);
  }
}

TEST(PlayContext, ExchangeThatOutlastsComputationIsExposed) {
  for (int ranks = 2; ranks <= 8; ++ranks) {
    const ContextPlan plan = plan_of(ContextMethod::ring, ranks);
    const PlayedContext forward = play_forward(plan, {.pair = 0.0, .byte = 0.5});
    EXPECT_NEAR(forward.makespan, 0.5 * (ranks - 1) * kKvBytes, 1e-9);
    EXPECT_NEAR(forward.idle_fraction(), 1.0, 1e-12);
    EXPECT_NEAR(forward.exposed_fraction(), 1.0, 1e-12);
  }
}

TEST(PlayContext, ARoundTakesTheLongerOfComputationAndExchange) {
  const int ranks = 4;
  const ContextPlan plan = plan_of(ContextMethod::ring, ranks);
  for (const double byte : {0.001, 0.05, 0.0625, 0.1, 1.0}) {
    double expected = 0.0;
    for (std::size_t round = 0; round < ranks; ++round) {
      double pairs = 0.0;
      for (const Tile& tile : plan.forward.by_rank[0][round].tiles) {
        pairs += static_cast<double>(head_pairs(tile)) / plan.shape.heads;
      }
      expected += std::max(pairs, round + 1 < ranks ? byte * kKvBytes : 0.0);
    }
    const PlayedContext forward = play_forward(plan, {.pair = 1.0, .byte = byte});
    EXPECT_NEAR(forward.makespan, expected, 1e-9) << byte;
    EXPECT_NEAR(forward.exposed_fraction(), forward.idle_fraction(), 1e-12);
  }
}

TEST(PlayContext, UlyssesHidesNothing) {
  const ContextPlan plan = plan_of(ContextMethod::ulysses, 8);
  const auto sent = bytes_of(count_by_rank(plan.forward, plan.shape)[3].sent, {});
  const PlayedContext forward = play_forward(plan, {.pair = 1.0, .byte = 0.25});
  EXPECT_NEAR(forward.makespan, all_pairs(plan) / 8 + 0.25 * static_cast<double>(sent), 1e-6);
  EXPECT_NEAR(forward.exposed, 8 * 0.25 * static_cast<double>(sent), 1e-6);
}

TEST(PlayContext, GatherHidesAllButItsFirstPartOfTheHeads) {
  const ContextPlan plan = plan_of(ContextMethod::gather, 4);
  const double part = 3 * kKvBytes / 4;  // to three others, a quarter of the heads
  const PlayedContext forward = play_forward(plan, {.pair = 1.0, .byte = 1e-3});
  EXPECT_NEAR(forward.makespan, all_pairs(plan) / 4 + 1e-3 * part, 1e-9);
}

TEST(PlayContext, ARankThatWaitsForOthersIsIdleButNotExposed) {
  // Only the second half of the ranks has work: the first is one document per token.
  ContextShape shape{.ranks = 2, .tokens = 32, .heads = 2, .key_heads = 2};
  shape.method = ContextMethod::ring;
  shape.order = ContextOrder::contiguous;
  shape.documents.assign(16, 1);
  shape.documents.push_back(16);
  const PlayedContext forward = play_forward(make_context_plan(shape), {.pair = 1.0, .byte = 1.0});
  EXPECT_NEAR(forward.makespan, 136.0, 1e-9);
  EXPECT_NEAR(forward.idle_fraction(), 1 - (136.0 + 16.0) / 272.0, 1e-12);
  EXPECT_EQ(forward.exposed, 0.0);
}

TEST(PlayContext, MessagesOfARankFollowEachOtherOnItsLink) {
  for (const ContextMethod method :
       {ContextMethod::gather, ContextMethod::ulysses, ContextMethod::tokenring}) {
    const ContextPlan plan = plan_of(method, 4);
    const PlayedContext played = play_backward(plan, {.pair = 1.0, .byte = 0.1});
    std::vector<std::vector<std::pair<double, double>>> out(4), in(4);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      for (const PlayedRound& round : played.by_rank[rank]) {
        for (const PlayedMessage& message : round.sends) {
          EXPECT_GE(message.begin, round.begin);
          EXPECT_LE(message.end, round.end);
          out[rank].emplace_back(message.begin, message.end);
          in[static_cast<std::size_t>(message.peer)].emplace_back(message.begin, message.end);
        }
      }
    }
    for (auto* links : {&out, &in}) {
      for (auto& spans : *links) {
        std::ranges::sort(spans);
        for (std::size_t i = 1; i < spans.size(); ++i) {
          EXPECT_GE(spans[i].first, spans[i - 1].second - 1e-9);
        }
      }
    }
  }
}

TEST(PlayContext, MessagesBetweenNearRanksTakeLess) {
  const ContextPlan plan = plan_of(ContextMethod::gather, 4);
  const ContextTimes times{.pair = 1.0,
                           .byte = 0.1,
                           .message = 7.0,
                           .near_ranks = 2,
                           .near_byte = 0.01,
                           .near_message = 3.0};
  const PlayedContext played = play_forward(plan, times);
  int near = 0, far = 0;
  for (int rank = 0; rank < 4; ++rank) {
    for (const PlayedRound& round : played.by_rank[static_cast<std::size_t>(rank)]) {
      for (const auto& [peer, begin, end, bytes] : round.sends) {
        const bool is_near = rank / 2 == peer / 2;
        ++(is_near ? near : far);
        EXPECT_NEAR(end - begin, is_near ? 3.0 + 0.01 * bytes : 7.0 + 0.1 * bytes, 1e-9);
      }
    }
  }
  EXPECT_GT(near, 0);
  EXPECT_GT(far, near);
}

TEST(PlayContext, BytesThatTheProcessorMovesSlowTheComputationBesideThem) {
  const int ranks = 4;
  const ContextPlan plan = plan_of(ContextMethod::ring, ranks);
  const ContextTimes free{.pair = 1.0, .byte = 0.001};  // computation hides the exchange
  ContextTimes busy = free;
  busy.busy_byte = 0.0002;
  // K and V leave and come in all rounds but the last.
  EXPECT_NEAR(play_forward(plan, busy).makespan - play_forward(plan, free).makespan,
              (ranks - 1) * 2 * kKvBytes * busy.busy_byte, 1e-9);
  EXPECT_DOUBLE_EQ(play_forward(plan, busy).computing, play_forward(plan, free).computing);
  // Where a round waits for its messages anyway, they cost nothing more.
  const ContextTimes slow{.pair = 1e-6, .byte = 1.0};
  ContextTimes slow_and_busy = slow;
  slow_and_busy.busy_byte = 0.2;
  EXPECT_NEAR(play_forward(plan, slow_and_busy).makespan, play_forward(plan, slow).makespan, 1e-9);
}

TEST(PlayContext, KernelsOfTilesAndOfSumsTakeTime) {
  const ContextPlan plan = plan_of(ContextMethod::ring, 4);
  const auto rounds = plan.forward.rounds();
  std::size_t tiles = 0;
  for (const Round& round : plan.forward.by_rank.front()) tiles += round.tiles.size();
  EXPECT_GE(tiles, static_cast<std::size_t>(rounds));
  const ContextTimes times{.pair = 0.0, .kernel = 3.0};
  EXPECT_DOUBLE_EQ(play_forward(plan, times).makespan, 3.0 * static_cast<double>(tiles));
}

TEST(PlayContext, BackwardFollowsForward) {
  const ContextPlan plan = plan_of(ContextMethod::tokenring, 5);
  const ContextTimes times{.pair = 1.0, .byte = 0.1};
  const PlayedContext forward = play_forward(plan, times), backward = play_backward(plan, times);
  const PlayedContext both = in_sequence(forward, backward);
  EXPECT_DOUBLE_EQ(both.makespan, forward.makespan + backward.makespan);
  EXPECT_DOUBLE_EQ(both.exposed, forward.exposed + backward.exposed);
  for (const auto& rounds : both.by_rank) {
    EXPECT_EQ(rounds.size(),
              static_cast<std::size_t>(plan.forward.rounds() + plan.backward.rounds()));
    EXPECT_DOUBLE_EQ(rounds[static_cast<std::size_t>(plan.forward.rounds())].begin,
                     forward.makespan);
  }
}

}  // namespace
}  // namespace heddle
