#include "planner/cost.h"

#include <gtest/gtest.h>

#include "parallel/schedule/make_schedule.h"
#include "simulator/play.h"

namespace heddle::planner {
namespace {

double played(std::string_view name, const PipeShape& shape, const StageTimes& times) {
  const Schedule lowered = lower(make_schedule(pipeline_named(name), shape));
  return play(lowered, even_times(lowered, times)).makespan;
}

TEST(ClosedForm, OfOneFOneBWithSlowLinksEqualsTheSimulation) {
  // Every window of p micro-batches contains one way down and up, so a hop is paid 2 (p - 1) m / p
  // times and 2 (p - 2) times at the ends.
  for (const int p : {2, 3, 4, 8, 16}) {
    for (const int windows : {1, 2, 3, 4, 8}) {
      for (const double hop : {0.0, 0.05, 0.2, 0.5}) {
        const int m = windows * p;
        const double expected = (m + p - 1) * 3.0 + hop * (2.0 * (p - 1) * m / p + 2.0 * (p - 2));
        EXPECT_NEAR(played("1f1b", {p, m}, {.f = 1, .b = 1, .w = 1, .hop = hop}), expected, 1e-9)
            << p << " " << m << " " << hop;
      }
    }
  }
}

TEST(ClosedForm, HasTheTimesOfTheTable) {
  EXPECT_NEAR(played("1f1b", {4, 16}, {1, 1, 1, 0.2}), 62.60, 1e-9);
  EXPECT_NEAR(played("1f1b", {4, 64}, {1, 1, 1, 0.5}), 251.0, 1e-9);
  EXPECT_NEAR(played("1f1b", {8, 16}, {1, 1, 1, 0.2}), 77.00, 1e-9);
  EXPECT_NEAR(played("1f1b", {8, 64}, {1, 1, 1, 0.5}), 275.0, 1e-9);
  EXPECT_NEAR(played("1f1b", {16, 64}, {1, 1, 1, 0.2}), 266.6, 1e-9);
  EXPECT_NEAR(played("1f1b", {16, 16}, {1, 1, 1, 0.5}), 122.0, 1e-9);
}

TEST(Bubble, OfEveryScheduleIsNearTheSimulated) {
  for (const Pipeline schedule :
       {Pipeline::gpipe, Pipeline::one_f_one_b, Pipeline::interleaved, Pipeline::zb_h1,
        Pipeline::zb_h2, Pipeline::zb_v, Pipeline::v_min, Pipeline::v_half}) {
    for (const int p : {4, 8, 16}) {
      for (const RankTimes& times : {RankTimes{1, 1, 1}, RankTimes{1, 1.3, 0.7}}) {
        const int m = 4 * p, chunks = schedule == Pipeline::interleaved ? 3 : 1;
        const double work = m * (times.f + times.b + times.w);
        const double simulated =
            played(name_of(schedule), {p, m, chunks}, {times.f, times.b, times.w, 0.0});
        const double said = work + bubble_seconds(schedule, p, chunks, m, times);
        EXPECT_NEAR(said, simulated, 0.015 * simulated) << name_of(schedule) << " " << p;
      }
    }
  }
}

TEST(Bubble, OfInterleavingWithFewMicroBatchesIsTheSimulated) {
  for (const int p : {2, 4, 8}) {
    for (const int m : {1, 2, 3, 5, 8, 9}) {
      const double simulated = played("interleaved", {p, m, 4}, {1, 1, 1, 0.0});
      EXPECT_NEAR(3.0 * m + bubble_seconds(Pipeline::interleaved, p, 4, m, {1, 1, 1}), simulated,
                  1e-9)
          << p << " " << m;
    }
  }
}

TEST(PassCost, IsTheLargerOfDeviceAndHostAndMoreWhereTheyMeet) {
  EXPECT_NEAR((PassCost{.device = 1.0, .comm = 0.5, .host = 0.1}.seconds()), 1.5, 1e-3);
  EXPECT_NEAR((PassCost{.device = 0.1, .comm = 0.0, .host = 2.0}.seconds()), 2.0, 1e-3);
  EXPECT_NEAR((PassCost{.device = 1.0, .comm = 0.0, .host = 1.0}.seconds()), 1.19, 0.01);
}

}  // namespace
}  // namespace heddle::planner
