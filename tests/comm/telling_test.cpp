// The user hears once of what a world of processes fails of. Ranks are processes here: forks of the
// test that end as the program does.

#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "base/error.h"
#include "comm/tcp_processes.h"
#include "comm/training_calls.h"

namespace heddle {
namespace {

TEST(Telling, TheRankThatFailsTellsItAndAllEndWithItsStatus) {
  const testing::Ends ends = testing::run_tcp_processes(4, [](World& world) {
    if (world.rank() == 2) throw Error(ErrorCode::data, "the file is torn", "mend it");
    testing::train(world);
  });
  EXPECT_EQ(ends.told, (std::map<int, std::string>{{2, "rank 2: the file is torn; mend it\n"}}));
  EXPECT_EQ(ends.statuses, std::vector<int>(4, 5));
}

TEST(Telling, OneTellsWhatAllFailOf) {
  const testing::Ends ends = testing::run_tcp_processes(
      4, [](World&) { throw Error(ErrorCode::resources, "there is no such file"); });
  EXPECT_EQ(ends.told.size(), 1U);
  EXPECT_EQ(ends.statuses, std::vector<int>(4, 3));
}

TEST(Telling, RankZeroNamesARankThatWasKilled) {
  const testing::Ends ends = testing::run_tcp_processes(4, [](World& world) {
    world.all().barrier();
    if (world.rank() == 2) std::raise(SIGKILL);
    testing::train(world);
  });
  ASSERT_EQ(ends.told.size(), 1U);
  EXPECT_NE(ends.told.at(0).find("the process of rank 2 is gone"), std::string::npos);
  EXPECT_EQ(ends.statuses, (std::vector<int>{4, 4, 128 + SIGKILL, 4}));
}

TEST(Telling, RankOneNamesARankZeroThatWasKilled) {
  const testing::Ends ends = testing::run_tcp_processes(4, [](World& world) {
    world.all().barrier();
    if (world.rank() == 0) std::raise(SIGKILL);
    testing::train(world);
  });
  ASSERT_EQ(ends.told.size(), 1U);
  const std::string gone = "the process of rank 0 is gone; rank 1 ";
  EXPECT_EQ(ends.told.at(1).substr(0, gone.size()), gone);
  EXPECT_EQ(ends.statuses, (std::vector<int>{128 + SIGKILL, 4, 4, 4}));
}

TEST(Telling, RankZeroNamesARankThatHangs) {
  const testing::Ends ends = testing::run_tcp_processes(
      3,
      [](World& world) {
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::hours(1));
        testing::train(world);
      },
      std::chrono::duration<double>(2));
  ASSERT_EQ(ends.told.size(), 1U);
  EXPECT_NE(ends.told.at(0).find("rank 1 "), std::string::npos) << ends.told.at(0);
  EXPECT_EQ(ends.statuses, std::vector<int>(3, 4));
}

TEST(Telling, ARankThatIsTooLateToStopEndsWithTheStatusThatItsReasonHas) {
  const testing::Ends ends = testing::run_tcp_processes(2, [](World& world) {
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::hours(1));
    throw Error(ErrorCode::data, testing::kEndsWithStatus42);
  });
  EXPECT_EQ(ends.statuses, (std::vector<int>{5, 42}));
}

}  // namespace
}  // namespace heddle
