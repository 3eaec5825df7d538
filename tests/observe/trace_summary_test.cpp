#include "observe/trace_summary.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace heddle::observe {
namespace {

/// Two ranks; each step: F and BW on both, a wait on the second, an exchange, the update.
Trace two_ranks(int steps, double forward) {
  Trace trace;
  for (int step = 0; step < steps; ++step) {
    const double at = 10.0 * step;
    for (int rank = 0; rank < 2; ++rank) {
      const auto act = [&](const char* name, double begin, double seconds) {
        trace.add({name, "action", rank, 0, at + begin, seconds});
      };
      if (rank == 1) act("ra0", 0.0, 1.0);
      act("F0", 1.0, step == 0 ? 3 * forward : forward);
      act("F1", 4.0, forward);
      act("BW0", 6.0, 1.5);
      trace.add({"all_reduce", "collective", rank, 2, at + 7.0, 0.5, 1000});
      act("step", 8.0, 0.5);
    }
  }
  return trace;
}

TEST(TraceSummary, GivesMeansOfAStepWithoutTheFirst) {
  const TraceSummary summary = summarize(two_ranks(3, 1.0));
  EXPECT_EQ(summary.steps, 2);
  EXPECT_NEAR(summary.step_seconds, 8.5, 1e-9);
  ASSERT_EQ(summary.ranks.size(), 2u);
  EXPECT_NEAR(summary.ranks[0].computing, 1.0 + 1.0 + 1.5 + 0.5, 1e-9);
  EXPECT_NEAR(summary.ranks[0].idle, 4.5, 1e-9);
  EXPECT_NEAR(summary.ranks[1].waiting, 1.0, 1e-9);
  const TraceRow& first = summary.rows.front();  // two forwards of a second each
  EXPECT_EQ(first.kind, "F");
  EXPECT_DOUBLE_EQ(first.count, 2.0);
  EXPECT_NEAR(first.mean(), 1.0, 1e-9);
}

TEST(TraceSummary, ATraceWithoutAnUpdateIsOneStep) {
  Trace trace;
  trace.add({"F0", "action", 0, 0, 0.0, 2.0});
  const TraceSummary summary = summarize(trace);
  EXPECT_EQ(summary.steps, 1);
  EXPECT_DOUBLE_EQ(summary.step_seconds, 2.0);
}

TEST(TraceSummary, TellsStagesOfARankApart) {
  Trace trace;
  trace.add({"F3s0", "action", 0, 0, 0.0, 2.0});
  trace.add({"F3s1", "action", 0, 0, 2.0, 1.0});
  trace.add({"c1>2", "action", 0, 0, 3.0, 0.5});
  const TraceSummary summary = summarize(trace);
  ASSERT_EQ(summary.rows.size(), 3u);
  EXPECT_EQ(summary.rows[0].kind, "F");
  EXPECT_EQ(summary.rows[0].stage, 0);
  EXPECT_EQ(summary.rows[1].stage, 1);
  EXPECT_EQ(summary.rows[2].kind, "c1>");
}

TEST(TraceComparison, HasTheLargestDifferenceFirstAndNamesWhatOnlyOneHas) {
  Trace simulated = two_ranks(1, 1.0);
  simulated.add({"extra", "collective", 0, 2, 7.0, 0.25});
  simulated.add({"F0", "action", 5, 0, 0.0, 9.0});
  const TraceComparison comparison = compare(summarize(two_ranks(3, 1.5)), summarize(simulated));
  ASSERT_FALSE(comparison.rows.empty());
  // The simulated first step counts, having no other: its first forward took three times as long.
  EXPECT_EQ(comparison.rows[0].either().kind, "F");
  EXPECT_NEAR(comparison.rows[0].seconds(), 3.0 - 4.0, 1e-9);
  EXPECT_EQ(comparison.only_simulated, std::vector<int>{5});
  EXPECT_TRUE(comparison.only_measured.empty());
  bool has_extra = false;
  for (const TraceDifference& row : comparison.rows) {
    if (row.either().kind != "extra") continue;
    has_extra = true;
    EXPECT_FALSE(row.measured.has_value());
    EXPECT_NEAR(row.seconds(), -0.25, 1e-9);
  }
  EXPECT_TRUE(has_extra);
  const std::string text = to_text(comparison, 100);
  EXPECT_NE(text.find("not there"), std::string::npos) << text;
  EXPECT_NE(text.find("only simulated: ranks 5"), std::string::npos) << text;
  const Json json = parse_json(to_json(comparison).dump(), "comparison");
  EXPECT_EQ(json["rows"].size(), comparison.rows.size());
  EXPECT_TRUE(json["rows"][0].contains("difference_seconds"));
}

TEST(TraceComparison, OfATraceWithItselfHasNoDifference) {
  const TraceComparison comparison =
      compare(summarize(two_ranks(3, 1.0)), summarize(two_ranks(3, 1.0)));
  for (const TraceDifference& row : comparison.rows) EXPECT_NEAR(row.seconds(), 0.0, 1e-12);
  EXPECT_NE(to_text(comparison, 1).find("more"), std::string::npos);
}

}  // namespace
}  // namespace heddle::observe
