#include "planner/search_routes.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "parallel/schedule/make_schedule.h"
#include "simulator/published_cluster.h"

namespace heddle::planner {
namespace {

RouteProblem published_problem(int length) {
  return {.stage_sizes = {5, 3, 3, 3, 3, 3},
          .nodes_by_stage = {},
          .length = length,
          .microbatches = 6,
          .times = cluster_times(),
          .sum = {}};
}

int microbatches_of(const RoutePlan& plan) {
  return std::accumulate(plan.slots.begin(), plan.slots.end(), 0,
                         [](int sum, const RouteSlot& slot) { return sum + slot.microbatches; });
}

void expect_rules_kept(const FoundRoutes& found) {
  EXPECT_EQ(faults_of(found.plan.routes(), found.rules), std::vector<std::string>());
}

/// The published ones, on their stages: 33.31 s for 30 micro-batches, three in flight on a node.
double published_seconds(const RouteProblem& problem) {
  RoutePlan plan{.nodes_by_stage = cluster_rules(4).nodes_by_stage, .slots = {}};
  for (const Route& route : {Route{0, 14, 6, 12}, Route{3, 15, 17, 5}, Route{4, 7, 13, 19},
                             Route{10, 1, 18, 2}, Route{11, 8, 16, 9}}) {
    for (int slot = 0; slot < 3; ++slot) plan.slots.push_back({route, slot * kForward, 2});
  }
  return seconds_of(plan, problem);
}

TEST(SearchRoutes, IsNoWorseThanThePublishedRoutesOnTheirStages) {
  RouteProblem problem = published_problem(4);
  problem.nodes_by_stage = cluster_rules(4).nodes_by_stage;
  const FoundRoutes found = search_routes(problem, {.seconds = 240.0, .starts = 2});
  expect_rules_kept(found);
  EXPECT_EQ(found.plan.nodes_by_stage, problem.nodes_by_stage);
  EXPECT_EQ(microbatches_of(found.plan), 30);
  EXPECT_EQ(found.plan.seconds, seconds_of(found.plan, problem));
  EXPECT_LE(found.plan.seconds, published_seconds(problem));
  EXPECT_NEAR(published_seconds(problem), 33.31, 0.3331);
  EXPECT_GT(found.first_seconds, found.plan.seconds);
}

TEST(SearchRoutes, FindsBetterStagesToo) {
  const RouteProblem problem = published_problem(4);
  const FoundRoutes found = search_routes(problem, {.seconds = 240.0, .starts = 1});
  expect_rules_kept(found);
  EXPECT_EQ(microbatches_of(found.plan), 30);
  EXPECT_LE(found.plan.seconds, 33.31);
  // All stages, under the same limit of three in flight: skipping saves half of it.
  const FoundRoutes full = search_routes(published_problem(6), {.seconds = 240.0, .starts = 1});
  expect_rules_kept(full);
  EXPECT_EQ(microbatches_of(full.plan), 30);
  EXPECT_LE(found.plan.seconds, 0.5 * full.plan.seconds);
}

TEST(SearchRoutes, StopsWhenItsTimeIsUp) {
  const FoundRoutes found =
      search_routes(published_problem(4), {.seconds = 0.05, .starts = 1 << 20});
  EXPECT_LT(found.search_seconds, 5.0);
  expect_rules_kept(found);
}

TEST(SearchRoutes, SameSeedSameRoutes) {
  RouteProblem problem = published_problem(4);
  problem.microbatches = 3;
  const auto once = search_routes(problem, {.seconds = 240.0, .starts = 1});
  const auto again = search_routes(problem, {.seconds = 240.0, .starts = 1});
  EXPECT_EQ(once.plan.routes(), again.plan.routes());
  EXPECT_EQ(once.plan.seconds, again.plan.seconds);
}

/// Six nodes on a line: neighbours are near. Stages in order of the line, whichever end is first,
/// have the shortest way.
TEST(SearchRoutes, PutsStagesOfAChainWhereTheWayIsShort) {
  RouteProblem problem{.stage_sizes = std::vector<int>(6, 1), .length = 6, .microbatches = 4};
  const int places[] = {3, 0, 5, 1, 4, 2};
  problem.times = {.forward = std::vector<double>(6, 0.1),
                   .hop = [&](int a, int b) { return 0.1 * std::abs(places[a] - places[b]); }};
  const FoundRoutes found = search_routes(problem, {.seconds = 240.0, .starts = 1});
  RoutePlan on_the_line = found.plan;
  on_the_line.nodes_by_stage = {{1}, {3}, {5}, {0}, {4}, {2}};
  for (RouteSlot& slot : on_the_line.slots) slot.route = {1, 3, 5, 0, 4, 2};
  EXPECT_LE(found.plan.seconds, seconds_of(on_the_line, problem));
}

/// One node per stage: what is judged is the schedule that training executes.
TEST(SearchRoutes, RoutesOfAChainMakeAValidScheduleOfEqualLoads) {
  RouteProblem problem{.stage_sizes = std::vector<int>(6, 1), .length = 4, .microbatches = 10};
  problem.times = {.forward = std::vector<double>(6, 1.0),
                   .hop = [](int a, int b) { return 0.3 * std::abs(a - b); }};
  const FoundRoutes found = search_routes(problem, {.seconds = 240.0, .starts = 1});
  expect_rules_kept(found);
  const Schedule schedule = lower(make_schedule(
      Pipeline::routes, {.ranks = 6, .microbatches = 10, .routes = found.plan.routes_of_ranks()}));
  EXPECT_TRUE(validate(schedule).empty());
  for (int stage = 1; stage < 6; ++stage) EXPECT_EQ(schedule.visits_of(stage), 6);
}

TEST(SearchRoutes, RefusesStagesThatCannotBe) {
  const auto refusal = [](const RouteProblem& problem) -> std::string {
    try {
      search_routes(problem, {.seconds = 1.0});
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };
  RouteProblem problem = published_problem(4);
  problem.stage_sizes = {5, 3};
  EXPECT_EQ(refusal(problem), "stages of 8 nodes for 20 nodes");
  problem = published_problem(1);
  EXPECT_EQ(refusal(problem), "routes of 1 of 6 stages");
}

}  // namespace
}  // namespace heddle::planner
