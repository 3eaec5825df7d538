#include "parallel/schedule/routes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "parallel/parallel_request.h"
#include "parallel/schedule/make_schedule.h"
#include "parallel/step/tell_step.h"

namespace heddle {
namespace {

std::string routes_text(int ranks, double skipped, std::string_view text = "") {
  return to_text(make_routes(ranks, skipped, text));
}

TEST(MakeRoutes, LeaveOutAllRanksButTheFirstEquallyOften) {
  EXPECT_EQ(routes_text(6, 0.0), "0-1-2-3-4-5");
  EXPECT_EQ(routes_text(6, 0.33), "0-2-4-5 0-1-3-5 0-1-2-4 0-2-3-5 0-1-3-4");
  for (int ranks = 3; ranks <= 20; ++ranks) {
    for (const double skipped : {0.2, 0.25, 0.33, 0.5}) {
      const auto routes = make_routes(ranks, skipped, "");
      std::vector<int> visits(static_cast<std::size_t>(ranks));
      for (const Route& route : routes) {
        EXPECT_EQ(route.size(), static_cast<std::size_t>(route_length(ranks, skipped)));
        for (const int rank : route) ++visits[static_cast<std::size_t>(rank)];
      }
      EXPECT_EQ(visits.front(), static_cast<int>(routes.size()));
      visits.erase(visits.begin());
      EXPECT_EQ(std::ranges::min(visits), std::ranges::max(visits)) << ranks << " " << skipped;
    }
  }
}

TEST(MakeRoutes, SwapTheFirstPairBehindTheFirstRankAndTheLast) {
  EXPECT_EQ(routes_text(7, 0.0, "swap"), "0-1-2-3-4-5-6 0-2-1-3-4-6-5");
  EXPECT_EQ(routes_text(5, 0.0, "swap"), "0-1-2-3-4 0-2-1-4-3");
  EXPECT_EQ(routes_text(3, 0.0, "swap"), "0-1-2 0-2-1");
}

std::string refusal_of(int ranks, double skipped, std::string_view text) {
  try {
    make_routes(ranks, skipped, text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.message();
  }
  return "no error";
}

TEST(MakeRoutes, SayWhatIsWrongWithThem) {
  EXPECT_EQ(routes_text(4, 0.25, "0-1-3, 0-2-3\n0-2-1"), "0-1-3 0-2-3 0-2-1");
  EXPECT_EQ(refusal_of(4, 0.0, "0-1-x"), "\"0-1-x\" is no route");
  EXPECT_EQ(refusal_of(4, 0.0, "0-1-2 1-2-3"), "route 1-2-3 does not begin at the first stage");
  EXPECT_EQ(refusal_of(4, 0.0, "0-1-4"), "route 0-1-4 visits node 4, which has no stage");
  EXPECT_EQ(refusal_of(4, 0.0, "0-1-2 0-1"), "route 0-1 visits 2 nodes in place of 3");
  EXPECT_EQ(refusal_of(4, 0.5, "0-1-2"), "routes visit 3 stages, and skipping 0.5 of 4 leaves 2");
  EXPECT_EQ(refusal_of(4, 0.0, "swap"), "the 3 stages behind the first have no two pairs to swap");
  EXPECT_EQ(refusal_of(6, 0.3, "swap"), "routes that swap stages do not skip any");
  EXPECT_EQ(refusal_of(2, 0.5, ""), "skipping 0.5 of 2 stages leaves a micro-batch 1 of them");
}

Schedule with_routes(int ranks, int microbatches, double skipped, std::string_view text = "") {
  return make_schedule(
      Pipeline::routes,
      {.ranks = ranks, .microbatches = microbatches, .routes = make_routes(ranks, skipped, text)});
}

TEST(RoutedSchedule, VisitsOnlyWhatRoutesSayAndTheHeadBehindIt) {
  EXPECT_EQ(to_text(with_routes(3, 2, 0.33)),
            "F0s0 F1s0 F0s3 BW0s3 F1s3 BW1s3 BW0s0 BW1s0\n"
            "F1s1 BW1s1\n"
            "F0s2 BW0s2\n");
  EXPECT_EQ(to_text(lower(with_routes(3, 1, 0.0, "0-2-1"))),
            "F0s0 sa0s0 ra0s3 F0s3 BW0s3 sg0s3 rg0s0 BW0s0 reduce step\n"
            "ra0s1 F0s1 sa0s1 rg0s1 BW0s1 sg0s1 reduce step\n"
            "ra0s2 F0s2 sa0s2 rg0s2 BW0s2 sg0s2 reduce step\n");
}

TEST(RoutedSchedule, IsValidForAnyRoutes) {
  for (const auto& [ranks, skipped, text] : {std::tuple{3, 0.33, ""},
                                             {6, 0.33, ""},
                                             {6, 0.5, ""},
                                             {7, 0.0, "swap"},
                                             {5, 0.0, "swap"},
                                             {12, 0.25, ""},
                                             {4, 0.25, "0-2-1 0-3-2 0-1-3"},
                                             {6, 0.0, "0-4-5 0-1-2 0-3-2"}}) {
    for (const int mb : {1, 2, 3, 7, 20, 64}) {
      const Schedule lowered = lower(with_routes(ranks, mb, skipped, text));
      for (const Diagnostic& wrong : validate(lowered)) {
        ADD_FAILURE() << ranks << " " << skipped << " " << text << " x " << mb << ": "
                      << wrong.message;
      }
    }
  }
}

TEST(RoutedSchedule, KeepsTwoMicroBatchesMoreThanOneFOneB) {
  const auto kept = [](const Schedule& schedule) {
    std::vector<int> peaks(static_cast<std::size_t>(schedule.stages()));
    for (const auto& actions : schedule.by_rank) {
      std::vector<int> now(peaks.size());
      for (const Action& action : actions) {
        const auto stage = static_cast<std::size_t>(action.stage);
        now[stage] += action.act == Act::f ? 1 : -1;
        peaks[stage] = std::max(peaks[stage], now[stage]);
      }
    }
    return peaks;
  };
  EXPECT_EQ(kept(with_routes(4, 16, 0.0)), (std::vector{6, 5, 4, 2, 1}));
  const std::vector<int> with_skips = kept(with_routes(6, 30, 0.33));
  EXPECT_EQ(with_skips.front(), 8);
  // Stages behind the first see fewer.
  EXPECT_LE(*std::max_element(with_skips.begin() + 1, with_skips.end()), 5);
}

TEST(Validate, FindsRoutesThatLeadNowhere) {
  const auto first_fault = [](std::vector<int> route) {
    Schedule schedule = lower(with_routes(3, 1, 0.0));
    schedule.routes[0] = std::move(route);
    const auto found = validate(schedule);
    return found.empty() ? "" : found.front().message;
  };
  EXPECT_EQ(first_fault({0, 1, 2, 3}), "");
  EXPECT_EQ(first_fault({1, 2, 3}), "micro-batch 0 does not go from the first stage to the last");
  EXPECT_EQ(first_fault({0, 1, 1, 3}), "micro-batch 0 visits a stage twice");
  EXPECT_EQ(first_fault({0, 7, 3}), "micro-batch 0 visits a stage that there is not");
  // Lists that were made for another route.
  EXPECT_EQ(first_fault({0, 2, 1, 3}),
            "sa0 on stage 0 names rank 1, which does not have the neighbouring stage");
  EXPECT_EQ(first_fault({0, 2, 3}),
            "sa0 on stage 0 names rank 1, which does not have the neighbouring stage");
}

/// The ops on buckets of rank 1, which has one unit with one bucket.
std::string gradients_of_rank_1(int microbatches, double skipped, int zero) {
  const Schedule lowered = lower(with_routes(3, microbatches, skipped));
  RankUnits units;
  units.units = {{.buckets = {0}}};
  units.buckets = {{.owner = 0, .over = {Axis::dp}, .zero = zero, .elements = 4}};
  units.stages = {{}, {0, 1}, {}, {}};
  std::string text;
  tell_step(lowered, 1, units, {}, [&](const StepOp& op) {
    if (op.kind == StepOp::Kind::compute) text += to_text(*op.action) + " ";
    if (op.kind == StepOp::Kind::open) text += "open ";
    if (op.kind == StepOp::Kind::reduce) text += "reduce ";
    if (op.kind == StepOp::Kind::norm) text += "norm ";
  });
  return text;
}

TEST(TellStep, SumsGradientsBehindTheLastMicroBatchThatComesBy) {
  EXPECT_EQ(gradients_of_rank_1(4, 0.33, 0), "F1 F3 BW1 BW3 reduce norm ");
  EXPECT_EQ(gradients_of_rank_1(2, 0.33, 2), "F1 open BW1 reduce norm ");
}

TEST(TellStep, SumsZerosWhereNoMicroBatchComesBy) {
  EXPECT_EQ(gradients_of_rank_1(1, 0.33, 0), "reduce norm ");
  EXPECT_EQ(gradients_of_rank_1(1, 0.33, 3), "open reduce norm ");
}

std::string problem_of(const ParallelRequest& request) {
  const auto problems = problems_of(request, static_cast<int>(request.ranks()));
  return problems.empty() ? "" : problems.front().message;
}

TEST(ParallelRequest, RefusesRoutesWithoutTheirSchedule) {
  EXPECT_EQ(problem_of({.pp = 6, .schedule = Pipeline::routes, .skip = 0.33}), "");
  EXPECT_EQ(problem_of({.pp = 6, .skip = 0.33}),
            "parallel.skip = 0.33 needs parallel.schedule = \"routes\" and parallel.pp above 1; "
            "set them, or leave it out");
  EXPECT_EQ(problem_of({.schedule = Pipeline::routes, .routes = "swap"}),
            "parallel.routes = \"swap\" needs parallel.schedule = \"routes\" and parallel.pp above "
            "1; set them, or leave it out");
}

}  // namespace
}  // namespace heddle
