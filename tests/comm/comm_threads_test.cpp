#include "comm/comm_threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <latch>
#include <memory>
#include <vector>

namespace heddle {
namespace {

TEST(CommThreads, OneDoesEverythingInOrder) {
  std::vector<int> done;
  {
    CommThreads threads(1);
    for (int i = 0; i < 100; ++i) threads.push([&done, i] { done.push_back(i); }, i % 3 == 1);
  }
  ASSERT_EQ(done.size(), 100u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
}

TEST(CommThreads, SeveralGoOnWhileOneWaits) {
  CommThreads threads(3);
  std::latch last_has_come(1), first_goes_on(1);
  std::vector<int> followed;
  threads.push([&] { first_goes_on.wait(); }, false);
  threads.push([&] { followed.push_back(1); }, true);
  // Not behind the first, which waits for these.
  threads.push([&] { last_has_come.wait(); }, false);
  threads.push(
      [&] {
        EXPECT_TRUE(followed.empty());
        last_has_come.count_down();
        first_goes_on.count_down();
      },
      false);
  threads.drain();
  EXPECT_EQ(followed, (std::vector<int>{1}));
}

TEST(CommThreads, WhatFollowsIsDoneBehindWhatHasEndedLongAgo) {
  CommThreads threads(2);
  threads.push([] {}, false);
  threads.drain();
  std::promise<void> done;
  threads.push([&] { done.set_value(); }, true);
  done.get_future().wait();
}

TEST(CommThreads, KeepNothingOfATaskThatIsDone) {
  const auto held = std::make_shared<int>(1);
  CommThreads threads(2);
  threads.push([held] {}, false);
  threads.drain();
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace heddle
