#include "simulator/play_routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/strings.h"
#include "parallel/schedule/make_schedule.h"
#include "simulator/play.h"
#include "simulator/play_step.h"
#include "simulator/published_cluster.h"

namespace heddle {
namespace {

Route route_of(const std::string& text) {
  Route route;
  for (const auto& node : split(text, '-')) route.push_back(std::stoi(std::string(node)));
  return route;
}

/// Each route has so many slots, which begin one forward after the other.
std::vector<RouteSlot> repeated(const std::vector<std::string>& routes, int slots,
                                const std::vector<int>& microbatches) {
  std::vector<RouteSlot> made;
  for (const std::string& route : routes) {
    for (int slot = 0; slot < slots; ++slot) {
      made.push_back({route_of(route), slot * kForward,
                      microbatches[static_cast<std::size_t>(slot) % microbatches.size()]});
    }
  }
  return made;
}

/// Three slots of a data node, each with a route of its own, for six micro-batches.
std::vector<RouteSlot> by_slot(const std::vector<std::vector<std::string>>& routes) {
  std::vector<RouteSlot> made;
  for (const auto& of_node : routes) {
    for (std::size_t slot = 0; slot < of_node.size(); ++slot) {
      made.push_back({route_of(of_node[slot]), static_cast<double>(slot) * kForward, 2});
    }
  }
  return made;
}

const std::vector<std::string> kFull = {"0-15-1-16-5-17", "3-8-9-12-18-2", "4-14-6-13-7-19"};
const std::vector<std::string> kCollisionAware = {"0-14-6-12", "3-15-17-5", "4-7-13-19",
                                                  "10-1-18-2", "11-8-16-9"};
const std::vector<std::vector<std::string>> kWithoutCollisions = {
    {"0-12-5-19", "0-1-19-18", "0-6-18-17"},
    {"3-12-6-2", "3-14-12-2", "3-6-14-13"},
    {"4-15-13-7", "4-15-5-17", "4-15-13-7"},
    {"10-1-17-5", "10-1-7-2", "10-14-18-19"},
    {"11-8-16-9", "11-8-16-9", "11-8-16-9"}};
const std::vector<std::vector<std::string>> kRandom = {{"0-12-7-17", "0-14-16-9", "0-1-8-19"},
                                                       {"3-12-7-17", "3-15-6-5", "3-1-8-19"},
                                                       {"4-13-18-2", "4-15-6-5", "4-1-8-19"},
                                                       {"10-13-18-2", "10-15-6-5", "10-14-16-9"},
                                                       {"11-13-18-2", "11-12-7-17", "11-14-16-9"}};

double seconds_of(const std::vector<RouteSlot>& slots, int memory = 3) {
  const PlayedRoutes played = play_routes(slots, cluster_times(memory));
  EXPECT_EQ(played.stuck, 0);
  for (const int peak : played.peak) EXPECT_LE(peak, memory);
  return played.seconds;
}

TEST(PlayRoutes, PublishedTimesWithinOnePercent) {
  EXPECT_NEAR(seconds_of(repeated(kFull, 3, {3})), 79.94, 0.7994);
  EXPECT_NEAR(seconds_of(by_slot(kRandom)), 48.92, 0.4892);
  EXPECT_NEAR(seconds_of(by_slot(kWithoutCollisions)), 35.43, 0.3543);
  EXPECT_NEAR(seconds_of(repeated(kCollisionAware, 3, {2})), 33.31, 0.3331);
}

/// The published gain is over 27 micro-batches of the full pipeline against 30, and depends on how
/// many may be under way.
TEST(PlayRoutes, TheGainDependsOnWhatMayBeUnderWay) {
  EXPECT_NEAR(seconds_of(repeated(kFull, 3, {4, 3, 3})), 102.1, 0.1);
  EXPECT_NEAR(seconds_of(repeated(kFull, 10, {1}), 10), 34.4, 0.1);
  EXPECT_NEAR(seconds_of(repeated(kCollisionAware, 6, {1}), 6), 19.1, 0.1);
}

std::vector<Route> routes_of(const std::vector<RouteSlot>& slots) {
  std::vector<Route> routes;
  for (const RouteSlot& slot : slots) routes.push_back(slot.route);
  return routes;
}

TEST(Routes, PublishedOnesKeepTheRules) {
  EXPECT_EQ(route_length(6, 0.33), 4);
  using Faults = std::vector<std::string>;
  EXPECT_EQ(faults_of(routes_of(repeated(kFull, 3, {3})), cluster_rules(6)), Faults());
  for (const auto& slots : {repeated(kCollisionAware, 3, {2}), by_slot(kWithoutCollisions)}) {
    EXPECT_EQ(faults_of(routes_of(slots), cluster_rules(4)), Faults());
  }
}

TEST(Routes, EveryRuleIsChecked) {
  const auto fault = [](const std::string& route) {
    const auto faults = faults_of({route_of(route)}, cluster_rules(4));
    return faults.empty() ? "" : faults.front();
  };
  EXPECT_EQ(fault("0-15-1-16"), "");
  EXPECT_EQ(fault("0-15-1"), "route 0-15-1 visits 3 nodes in place of 4");
  EXPECT_EQ(fault("15-1-16-5"), "route 15-1-16-5 does not begin at the first stage");
  EXPECT_EQ(fault("0-15-8-16"), "route 0-15-8-16 visits stage 1 twice");
  EXPECT_EQ(fault("0-15-3-16"), "route 0-15-3-16 visits stage 0 twice");
  EXPECT_EQ(fault("0-15-1-20"), "route 0-15-1-20 visits node 20, which has no stage");
  EXPECT_EQ(fault("0-16-15-5"),
            "route 0-16-15-5 visits stage 1 behind stage 3: at most one place behind is allowed");
  EXPECT_EQ(fault("0-17-5-16"),
            "route 0-17-5-16 goes from stage 0 to stage 5: at most 4 ahead are allowed");
  RouteRules longer = cluster_rules(6);
  longer.most_swaps = 1;
  EXPECT_EQ(faults_of({route_of("0-1-15-5-16-17")}, longer).at(0),
            "route 0-1-15-5-16-17 swaps stages more often than 1 times");
  longer.most_swaps = 2;
  EXPECT_TRUE(faults_of({route_of("0-1-15-5-16-17")}, longer).empty());
  const auto crowded =
      faults_of(routes_of(repeated({"0-15-1-16", "3-15-9-12"}, 2, {1})), cluster_rules(4));
  EXPECT_EQ(crowded,
            (std::vector<std::string>{"node 15 is visited by 4 micro-batches and has room for 3"}));
}

TEST(PlayRoutes, RoomThatIsNeverFreeIsSaid) {
  // Each has the room that the other needs.
  RouteTimes times{.forward = {1, 1, 1, 1}, .hop = [](int, int) { return 1.0; }, .memory = 1};
  EXPECT_EQ(play_routes({{{0, 2, 3}}, {{1, 3, 2}}}, times).stuck, 2);
  times.memory = 2;
  EXPECT_EQ(play_routes({{{0, 2, 3}}, {{1, 3, 2}}}, times).stuck, 0);
}

/// What nodes did in which order, as a step that play_step plays: it must take the same time.
StepProgram program_of(const PlayedRoutes& played, const std::vector<RouteSlot>& slots,
                       const RouteTimes& times) {
  using Kind = StepProgram::Instruction::Kind;
  StepProgram program;
  program.capacities = {1.0};
  program.by_rank.resize(times.forward.size());
  const auto transfer = [&](double latency) {
    program.paths.push_back({.latency_seconds = latency});
    program.transfers.push_back({.path = static_cast<int>(program.paths.size()) - 1});
    return static_cast<std::uint32_t>(program.transfers.size() - 1);
  };
  // Sends stand behind the visit that makes them, so the next one of each has to be known.
  std::map<std::pair<int, int>, std::vector<std::size_t>> of_microbatch;
  for (std::size_t i = 0; i < played.visits.size(); ++i) {
    of_microbatch[{played.visits[i].slot, played.visits[i].microbatch}].push_back(i);
  }
  std::map<std::size_t, std::vector<std::uint32_t>> before, behind;  // transfers by visit
  for (const auto& [who, visits] : of_microbatch) {
    for (std::size_t i = 0; i + 1 < visits.size(); ++i) {
      const int from = played.visits[visits[i]].node, to = played.visits[visits[i + 1]].node;
      const auto id = transfer(from == to ? 0.0 : times.hop(from, to));
      behind[visits[i]].push_back(id);
      before[visits[i + 1]].push_back(id);
    }
  }
  for (std::size_t i = 0; i < played.visits.size(); ++i) {
    const PlayedRoutes::Visit& visit = played.visits[i];
    auto& list = program.by_rank[static_cast<std::size_t>(visit.node)];
    const RouteSlot& slot = slots[static_cast<std::size_t>(visit.slot)];
    if (list.empty() && visit.microbatch == 0 && visit.kind == PlayedRoutes::Visit::Kind::forward) {
      list.push_back({Kind::work, 0, slot.start});
    }
    for (const auto id : before[i]) list.push_back({Kind::wait, id});
    list.push_back({Kind::compute, 0, visit.end - visit.begin});
    for (const auto id : behind[i]) list.push_back({Kind::issue, id});
    list.push_back({Kind::work, 0, times.gap});
  }
  return program;
}

TEST(PlayRoutes, AStepOfTheSameOrderTakesTheSameTime) {
  for (const auto& slots : {repeated(kFull, 3, {3}), by_slot(kRandom), by_slot(kWithoutCollisions),
                            repeated(kCollisionAware, 3, {2})}) {
    const RouteTimes times = cluster_times();
    const PlayedRoutes played = play_routes(slots, times);
    const PlayedStep step = play_step(program_of(played, slots, times));
    EXPECT_TRUE(step.stuck.empty());
    EXPECT_NEAR(step.seconds, played.seconds + times.gap, 1e-9);
  }
}

/// The time of a schedule whose stages take 1, 1 and 1; with routes the first one a quarter of
/// that, and the head as much.
double makespan_of(const Schedule& schedule) {
  std::vector<StageTimes> times(static_cast<std::size_t>(schedule.stages()), {1, 1, 1});
  if (!schedule.routes.empty()) times.front() = times.back() = {0.25, 0.25, 0.25};
  return play(schedule, times).makespan;
}

TEST(RoutedSchedule, TakesAboutAsLongAsOneFOneBAndLessWithSkips) {
  const PipeShape shape{.ranks = 6, .microbatches = 30};
  const double straight = makespan_of(lower(make_schedule(Pipeline::one_f_one_b, shape)));
  EXPECT_NEAR(straight, 105.0, 1e-9);  // (m + p - 1) (f + b + w)
  EXPECT_LT(makespan_of(lower(make_schedule(Pipeline::routes, shape))), 1.07 * straight);
  PipeShape skipping = shape;
  skipping.routes = make_routes(6, 0.33, "");
  // Ranks behind the first have 18 of 30 micro-batches.
  EXPECT_LT(makespan_of(lower(make_schedule(Pipeline::routes, skipping))), 0.72 * straight);
}

TEST(Play, HopsMayDependOnWhoSendsToWhom) {
  const PipeShape shape{.ranks = 3, .microbatches = 1, .routes = {{0, 2, 1}}};
  const Schedule schedule = lower(make_schedule(Pipeline::routes, shape));
  const std::vector<StageTimes> times(4, {1, 1, 0});
  // 0 to 2, 2 to 1, 1 to 0, and back.
  const auto hops = [](int from, int to) -> HopTime { return {.latency = 10.0 * from + to}; };
  EXPECT_EQ(play(schedule, times, hops).makespan, 8.0 + (2 + 21 + 10) + (1 + 12 + 20));
}

TEST(Play, ALinkCarriesOneMessageAfterTheOther) {
  // All forwards first: three messages leave at 1, 2 and 3, each takes 5, and 1 on the way.
  const Schedule schedule = lower(make_schedule(Pipeline::gpipe, {2, 3}));
  const std::vector<StageTimes> times(2, {1, 0, 0});
  const auto hops = [](int, int) -> HopTime { return {.latency = 1.0, .carried = 5.0}; };
  const Played played = play(schedule, times, hops);
  std::vector<double> begins;
  for (const auto& [action, begin, end] : played.by_rank[1]) {
    if (action.act == Act::f) begins.push_back(begin);
  }
  EXPECT_EQ(begins, (std::vector<double>{7, 12, 17}));
}

}  // namespace
}  // namespace heddle
