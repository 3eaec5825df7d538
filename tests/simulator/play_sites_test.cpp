#include "simulator/play_sites.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

/// One exchange behind a step, as a site makes it.
SiteExchange behind_a_step(double step, int delay, double link_seconds, double latency = 0.0) {
  return {.begins_at = step,
          .steps_under_way = delay,
          .awaited_at = step,
          .link_seconds = link_seconds,
          .latency = latency};
}

TEST(PlaySites, WhatIsNotHiddenUnderTheDelayIsWaitedForOnceInAWindow) {
  SiteCourse course{.step_seconds = 2, .window = 10};
  course.exchanges = {behind_a_step(2, 0, 3, 0.5)};
  EXPECT_NEAR(play_sites(course).step_seconds, 2 + 3.5 / 10, 1e-12);
  EXPECT_NEAR(play_sites(course).waited_seconds, 0.35, 1e-12);
  course.exchanges = {behind_a_step(2, 1, 3, 0.5)};
  EXPECT_NEAR(play_sites(course).step_seconds, 2 + 1.5 / 10, 1e-12);
  course.exchanges = {behind_a_step(2, 2, 3, 0.5)};
  EXPECT_NEAR(play_sites(course).utilisation, 1.0, 1e-12);
}

TEST(PlaySites, WorkIsPaidAlsoWhereNothingIsWaitedFor) {
  SiteCourse course{.step_seconds = 2, .window = 10, .exchanges = {behind_a_step(2, 3, 1)}};
  course.exchanges[0].work_before = 0.5;
  course.exchanges[0].work_behind = 0.25;
  const PlayedSites played = play_sites(course);
  EXPECT_NEAR(played.step_seconds, 2 + 0.075, 1e-12);
  EXPECT_NEAR(played.work_seconds, 0.075, 1e-12);
  EXPECT_EQ(played.waited_seconds, 0.0);
}

TEST(PlaySites, ExchangesOnOneLinkFollowEachOtherAndOnTwoDoNot) {
  SiteCourse course{.step_seconds = 1, .window = 10};
  course.exchanges = {behind_a_step(1, 0, 2), behind_a_step(1, 0, 2)};
  EXPECT_NEAR(play_sites(course).step_seconds, 1 + 4.0 / 10, 1e-12);
  course.exchanges[1].link = 1;
  EXPECT_NEAR(play_sites(course).step_seconds, 1 + 2.0 / 10, 1e-12);
}

TEST(PlaySites, ADelayOfAlmostTheWholeWindowWaitsForTheExchangeBefore) {
  SiteCourse course{.step_seconds = 1, .window = 4, .exchanges = {behind_a_step(1, 3, 5)}};
  EXPECT_NEAR(play_sites(course).step_seconds, 1 + 2.0 / 4, 1e-12);
}

}  // namespace
}  // namespace heddle
