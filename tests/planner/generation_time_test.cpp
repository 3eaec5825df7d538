#include "planner/generation_time.h"

#include <gtest/gtest.h>

namespace heddle::planner {
namespace {

/// Of f32 rows of 100 elements, and as many of keys and values.
GenerationShape small_shape(int ranks, int layers) {
  return {.ranks = ranks,
          .layers = layers,
          .attention_layers = layers,
          .experts = 4,
          .hidden = 100,
          .key_values = 100,
          .element_bytes = 4};
}

DrawRows always(RowRanks rows) {
  return [rows = std::move(rows)](std::uint64_t) { return rows; };
}

/// Seconds on two links in turn, of a message that is one packet.
double alone(double content, const GenerationLinks& links) {
  return links.latency_s + 2 * (content + 40 + 52) / links.bytes_per_s;
}

TEST(GenerationTime, IsThatOfEveryCallOverBothLinks) {
  const GenerationLinks links{.latency_s = 0.01, .bytes_per_s = 1e5};
  // Both rows go to the other rank. Two exchanges: counts, there, home, tokens. One: choices with
  // weights, there, then keys, values and tokens.
  const GenerationTime time = generation_time(small_shape(2, 1), always({{1}, {0}}), links);
  EXPECT_NEAR(time.two_exchanges, alone(20, links) + 2 * alone(400, links) + alone(4, links),
              1e-12);
  EXPECT_NEAR(time.one_exchange, alone(8, links) + alone(400, links) + alone(404, links), 1e-12);
}

TEST(GenerationTime, OfAMessageOfManyPacketsCountsOnePacketTwice) {
  const GenerationLinks links{.latency_s = 0, .bytes_per_s = 1e5};
  GenerationShape shape = small_shape(2, 1);
  const double before = generation_time(shape, always({{1}, {0}}), links).two_exchanges;
  shape.hidden = 1448;  // 5,792 bytes and 40: 5 packets
  const double after = generation_time(shape, always({{1}, {0}}), links).two_exchanges;
  const double row = (5832 + 5 * 52 + 1500) / 1e5;
  EXPECT_NEAR(after - before, 2 * (row - alone(400, links)), 1e-12);
}

TEST(GenerationTime, IsThatOfTheBusiestRank) {
  const GenerationLinks links{.latency_s = 0, .bytes_per_s = 1e5};
  const auto time_of = [&](const RowRanks& rows) {
    return generation_time(small_shape(4, 1), always(rows), links);
  };
  // Of four rows three leave either way: to three ranks, or all to one.
  const GenerationTime even = time_of({{0}, {2}, {3}, {1}}), uneven = time_of({{0}, {0}, {0}, {0}});
  const double row = 492 / 1e5;
  EXPECT_NEAR(uneven.two_exchanges - even.two_exchanges, 4 * row, 1e-9);
}

TEST(GenerationTime, HasNoCallsWhereNothingIsSaid) {
  const GenerationLinks links{.latency_s = 1, .bytes_per_s = 1e15};
  // All rows are with rank 0 from the first layer on. With two exchanges nobody sends to rank 1 on
  // the way there, nor to rank 0 on the way home, so that each is ahead in turn; with one, only
  // rank 0 tells of the second layer.
  const GenerationTime time = generation_time(small_shape(2, 2), always({{0, 0}, {0, 0}}), links);
  EXPECT_NEAR(time.two_exchanges, 6, 1e-6);
  EXPECT_NEAR(time.one_exchange, 4, 1e-6);
  const GenerationTime alternating =
      generation_time(small_shape(2, 2), always({{1, 0}, {0, 1}}), links);
  EXPECT_NEAR(alternating.one_exchange, 5, 1e-6);
}

/// Every choice of a token has a row of its own; one exchange is not for such models.
TEST(GenerationTime, OfSeveralExpertsATokenHasARowForEach) {
  const GenerationLinks links{.latency_s = 0.01, .bytes_per_s = 1e5};
  GenerationShape shape = small_shape(2, 1);
  shape.choices = 2;
  const auto time_of = [&](const RowRanks& rows) {
    return generation_time(shape, always(rows), links);
  };
  const double fixed = alone(20, links) + alone(4, links);
  const GenerationTime both = time_of({{1, 1}, {0, 0}});
  EXPECT_NEAR(both.two_exchanges, fixed + 2 * alone(800, links), 1e-12);
  EXPECT_EQ(both.one_exchange, 0.0);
  EXPECT_NEAR(time_of({{1, 0}, {0, -1}}).two_exchanges, fixed + 2 * alone(400, links), 1e-12);
  shape.leaves = 0.5;
  const double two = two_exchanges(shape).bytes;
  shape.choices = 1;
  EXPECT_EQ(two - two_exchanges(shape).bytes, 2 * 0.5 * 100 * 4);
}

/// moe.md 5.1: with Mixtral's key heads on 4 ranks one exchange is faster where waits count, and
/// slower where bytes do.
TEST(GenerationTime, SaysWhichWayIsFaster) {
  GenerationShape shape{.ranks = 4,
                        .layers = 32,
                        .attention_layers = 32,
                        .experts = 8,
                        .hidden = 4096,
                        .key_values = 2 * 1024};
  const DrawRows rows = rows_anywhere(4, 32, 4);
  const GenerationTime far = generation_time(shape, rows, {.latency_s = 1e-4, .bytes_per_s = 25e9}),
                       slow = generation_time(shape, rows, {.latency_s = 0, .bytes_per_s = 25e9});
  EXPECT_LT(far.one_exchange, far.two_exchanges);
  EXPECT_GT(slow.one_exchange, slow.two_exchanges);
}

TEST(GenerationTime, DrawsRowsOfATraceByItsPlacement) {
  RoutingTrace trace{.experts = 4, .layers = 2, .choices = 2, .taken = {}};
  for (int token = 0; token < 10; ++token) trace.taken.insert(trace.taken.end(), {1, 0, 2, 3});
  const ExpertPlacement placement{.ranks = 2, .rank_of = {{0, 1, 0, 1}, {1, 1, 0, 0}}};
  EXPECT_EQ(rows_of_trace(trace, placement, 3)(7), RowRanks(3, {1, 0, 0, 0}));
  trace.taken = {-1, 0, 2, -1};
  EXPECT_EQ(rows_of_trace(trace, placement, 1)(0), RowRanks(1, {-1, 0, 0, -1}));
  const DrawRows anywhere = rows_anywhere(3, 2, 50);
  EXPECT_EQ(anywhere(1), anywhere(1));
  EXPECT_NE(anywhere(1), anywhere(2));
}

}  // namespace
}  // namespace heddle::planner
