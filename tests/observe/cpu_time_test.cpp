#include "observe/cpu_time.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace heddle::observe {
namespace {

TEST(BusySeconds, CountTheCoresAskedForWithoutIdleTime) {
  const auto root = std::filesystem::path(testing::TempDir()) / "cpu_time_test";
  std::filesystem::create_directories(root / "proc");
  std::ofstream(root / "proc/stat") << "cpu  900 0 0 9000 0 0 0 0 0 0\n"
                                       "cpu0 100 20 30 5000 7 1 2 47 0 0\n"
                                       "cpu1 500 0 0 4000 0 0 0 0 0 0\n"
                                       "cpu11 300 0 0 0 0 0 0 0 0 0\n"
                                       "intr 5\n";
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  EXPECT_DOUBLE_EQ(busy_seconds({0}, root), 200 / ticks);
  EXPECT_DOUBLE_EQ(busy_seconds({0, 1}, root), 700 / ticks);
  EXPECT_LT(busy_seconds({77}, root), 0.0);
  EXPECT_LT(busy_seconds({0}, root / "nowhere"), 0.0);
  std::filesystem::remove_all(root);
}

TEST(CpuShare, IsAShare) {
  const CpuShare share;
  volatile double sum = 0;
  for (int i = 0; i < 20'000'000; ++i) sum = sum + i;
  EXPECT_GE(share.of_others(), 0.0);
  EXPECT_LE(share.of_others(), 1.0);
}

}  // namespace
}  // namespace heddle::observe
