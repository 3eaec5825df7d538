#include "observe/history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace heddle::observe {
namespace {

TEST(ReadHistory, RebuildsEveryCurveAndSkipsWhatIsNoMetricsLine) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  std::ofstream(path) << "{\"step\":1,\"tokens\":64,\"loss\":5.5,\"grad_norm\":1.5,\"lr\":0.1,"
                         "\"step_seconds\":2,\"tokens_per_second\":32,\"mfu\":null}\n"
                      << "{\"step\":1,\"eval_loss\":5.25,\"eval_perplexity\":190}\n"
                      << "\n[1,2]\n{\"step\":\"two\"}\n\xff\xfe\n{\"step\":3}\n{\"step\":4,\"lo";
  const History history = read_history(path);
  ASSERT_EQ(history.loss.size(), 1u);
  EXPECT_EQ(history.loss[0].tokens, 64);
  EXPECT_EQ(history.loss[0].value, 5.5);
  EXPECT_EQ(history.grad_norm[0].value, 1.5);
  EXPECT_EQ(history.lr[0].value, 0.1);
  EXPECT_EQ(history.tokens_per_second[0].value, 32);
  EXPECT_EQ(history.step_seconds[0].value, 2);
  ASSERT_EQ(history.eval_loss.size(), 1u);
  EXPECT_EQ(history.eval_loss[0].tokens, 64);
  EXPECT_EQ(history.eval_loss[0].value, 5.25);
}

TEST(ReadHistory, HasWhatEachSiteHasWaitedByItsNumber) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  std::ofstream(path) << "{\"step\":4,\"sites_loss\":1,\"sites\":[0,2],\"site_losses\":[1,1],"
                         "\"sites_waited\":[0.5,2.5]}\n"
                      << "{\"step\":8,\"sites_loss\":1,\"sites\":[0,2],\"site_losses\":[1,1],"
                         "\"sites_waited\":[0.75,null]}\n{\"step\":9,\"sites_waited\":7}\n";
  const History history = read_history(path);
  ASSERT_EQ(history.site_waited.size(), 2u);
  ASSERT_EQ(history.site_waited.at(0).size(), 2u);
  EXPECT_EQ(history.site_waited.at(0)[1].value, 0.75);
  EXPECT_EQ(history.site_waited.at(0)[1].step, 8);
  ASSERT_EQ(history.site_waited.at(2).size(), 1u);
  EXPECT_EQ(history.site_waited.at(2)[0].value, 2.5);
}

TEST(ReadHistory, NamesAFileThatIsMissing) {
  EXPECT_THROW(read_history("/nonexistent/metrics.jsonl"), Error);
}

TEST(MetricsLinesUntil, DropsLinesWithoutANewlineBecauseTheyMayBeTorn) {
  EXPECT_EQ(metrics_lines_until("{\"step\":1}\n{\"step\":3}\n{\"step\":2}\n{\"step\":1}", 2),
            "{\"step\":1}\n{\"step\":2}\n");
}

Curve curve_of(std::size_t size, double (*value)(std::size_t)) {
  Curve curve;
  for (std::size_t i = 0; i < size; ++i) {
    curve.push_back({static_cast<std::int64_t>(i), static_cast<std::int64_t>(i), value(i)});
  }
  return curve;
}

TEST(Downsample, KeepsEndsSpikesAndOrderWithinTheLimit) {
  Curve curve = curve_of(100003, [](std::size_t i) { return std::sin(static_cast<double>(i)); });
  curve[54321].value = 90;
  curve[54322].value = -90;
  curve[777].value = std::nan("");
  const Curve kept = downsample(curve, 2000);
  EXPECT_LE(kept.size(), 2000u);
  EXPECT_GT(kept.size(), 1900u);
  EXPECT_EQ(kept.front().step, 0);
  EXPECT_EQ(kept.back().step, 100002);
  bool high = false, low = false;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (i > 0) {
      EXPECT_LT(kept[i - 1].step, kept[i].step);
    }
    high = high || kept[i].value == 90;
    low = low || kept[i].value == -90;
  }
  EXPECT_TRUE(high);
  EXPECT_TRUE(low);
}

TEST(Downsample, ShowsTheFiniteExtremesBesideInfiniteValues) {
  Curve curve = curve_of(1000, [](std::size_t i) { return i % 2 == 0 ? INFINITY : 1.0; });
  int finite = 0;
  for (const auto& point : downsample(curve, 100)) finite += std::isfinite(point.value) ? 1 : 0;
  EXPECT_GT(finite, 40);
}

TEST(Downsample, LeavesAShortCurveAlone) {
  EXPECT_EQ(downsample(curve_of(7, [](std::size_t) { return 1.0; }), 2000).size(), 7u);
  EXPECT_TRUE(downsample({}, 2000).empty());
}

TEST(Smooth, FollowsASteepBeginningAndAveragesAQuietEnd) {
  const Curve line = curve_of(101, [](std::size_t i) { return 2.0 * static_cast<double>(i); });
  const Curve smoothed = smooth(line, 10);
  for (std::size_t i = 0; i < 91; ++i) EXPECT_NEAR(smoothed[i].value, line[i].value, 1e-9);
  EXPECT_NEAR(smoothed[100].value, 190, 1e-9);  // the mean of the last eleven
}

TEST(RunningMedian, IsNotMovedBySpikesAndKeepsToTheLimit) {
  Curve curve = curve_of(10000, [](std::size_t i) { return i % 50 == 0 ? 1000.0 : 7.0; });
  curve[5000].value = std::nan("");
  const Curve median = running_median(curve, 100, 300);
  ASSERT_EQ(median.size(), 300u);
  EXPECT_EQ(median.front().step, 0);
  EXPECT_EQ(median.back().step, 9999);
  for (const auto& point : median) EXPECT_EQ(point.value, 7.0);
  EXPECT_TRUE(running_median({}, 3, 300).empty());
  EXPECT_EQ(running_median(curve_of(1, [](std::size_t) { return 2.0; }), 3, 300).size(), 1u);
}

TEST(Smooth, LeavesOutValuesThatAreNotFinite) {
  Curve curve = curve_of(5, [](std::size_t) { return 4.0; });
  curve[2].value = std::nan("");
  EXPECT_EQ(smooth(curve, 2)[2].value, 4.0);
  EXPECT_TRUE(std::isnan(smooth(curve, 0)[2].value));
}

}  // namespace
}  // namespace heddle::observe
