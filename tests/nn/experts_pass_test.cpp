#include "nn/experts/experts_pass.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace heddle {
namespace {

using Kind = ExpertsTask::Kind;

std::vector<std::string> names_on(const ExpertsPass& pass, ExpertsLane lane) {
  std::vector<std::string> names;
  for (const ExpertsTask& task : pass) {
    if (task.lane != lane) continue;
    names.push_back(std::string(name_of(task.kind)) + std::to_string(task.chunk));
  }
  return names;
}

TEST(ExpertsPass, KeepsThreeLanesInFsmoesOrder) {
  const ExpertsPass pass = make_experts_pass({.degree = 2, .sends_gradients = true});
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_on(pass, ExpertsLane::between_nodes),
            (Names{"dispatch0", "dispatch1", "gradients0", "combine0", "combine1"}));
  EXPECT_EQ(names_on(pass, ExpertsLane::within_node),
            (Names{"gather0", "gather1", "scatter0", "scatter1"}));
  EXPECT_EQ(names_on(pass, ExpertsLane::compute), (Names{"expert0", "expert1"}));
}

TEST(ExpertsPass, WithOneNetworkAllExchangesFollowEachOther) {
  const ExpertsPass pass =
      make_experts_pass({.degree = 2, .sends_gradients = true, .has_one_network = true});
  EXPECT_EQ(names_on(pass, ExpertsLane::between_nodes),
            (std::vector<std::string>{"dispatch0", "gather0", "dispatch1", "gather1", "gradients0",
                                      "scatter0", "combine0", "scatter1", "combine1"}));
  EXPECT_TRUE(names_on(pass, ExpertsLane::within_node).empty());
}

TEST(ExpertsPass, EveryTaskNeedsTheOneOfItsChunkBeforeIt) {
  for (const bool has_one_network : {false, true}) {
    const ExpertsPass pass = make_experts_pass(
        {.degree = 4, .sends_gradients = true, .has_one_network = has_one_network});
    for (std::size_t i = 0; i < pass.size(); ++i) {
      const ExpertsTask& task = pass[i];
      if (task.kind == Kind::dispatch || task.kind == Kind::gradients) {
        EXPECT_EQ(task.after, -1);
        continue;
      }
      ASSERT_GE(task.after, 0);
      ASSERT_LT(task.after, static_cast<int>(i));
      const ExpertsTask& before = pass[static_cast<std::size_t>(task.after)];
      EXPECT_EQ(before.chunk, task.chunk);
      EXPECT_EQ(static_cast<int>(before.kind) + 1, static_cast<int>(task.kind));
    }
  }
}

/// The four closed forms of the paper, whose largest is the makespan where gather and scatter take
/// equally long.
double closed_form(int r, const ExpertsSeconds& t) {
  return std::max(
      {2 * r * t.exchange + t.gradients, 2 * t.exchange + t.gather + t.scatter + r * t.expert,
       2 * r * t.exchange + t.gather + t.scatter, 2 * t.exchange + r * (t.gather + t.scatter)});
}

TEST(ExpertsPass, MakespanIsThePapersWhereGatherAndScatterAreEqual) {
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const auto any = [&](std::uint64_t what) { return 0.01 + random_uniform(i, what); };
    const int degree = 1 + static_cast<int>(random_u64(i, 9) % 12);
    const double shared = any(1);
    const ExpertsSeconds seconds{.exchange = any(0),
                                 .gather = shared,
                                 .expert = any(2),
                                 .scatter = shared,
                                 .gradients = i % 2 == 0 ? 0.0 : 5 * any(3)};
    const ExpertsPass pass =
        make_experts_pass({.degree = degree, .sends_gradients = seconds.gradients > 0.0});
    ASSERT_NEAR(makespan(pass, seconds), closed_form(degree, seconds), 1e-9)
        << "degree " << degree << ", case " << i;
  }
}

TEST(ExpertsPass, GradientsThatFitTheIdleNetworkCostNothing) {
  const ExpertsSeconds plain{.exchange = 1.0, .gather = 0.5, .expert = 4.0, .scatter = 0.5};
  const double alone = makespan(make_experts_pass({.degree = 2}), plain);
  const double idle = alone - 4 * plain.exchange;
  for (const double slice : {0.5 * idle, idle, idle + 1.0}) {
    ExpertsSeconds with = plain;
    with.gradients = slice;
    EXPECT_DOUBLE_EQ(makespan(make_experts_pass({.degree = 2, .sends_gradients = true}), with),
                     alone + std::max(0.0, slice - idle));
  }
}

/// A slice of gradients costs nothing up to some length and then as long as it is: two numbers say
/// all of it (planner/experts_cost.h, ExpertsWindow).
TEST(ExpertsPass, IsLongerByWhatASliceTakesBeyondIdleTime) {
  std::uint64_t drawn = 0;
  const auto number = [&] { return random_uniform(7, drawn++); };
  for (int i = 0; i < 500; ++i) {
    const ExpertsPass pass = make_experts_pass({.degree = 1 << (i % 4),
                                                .sends_gradients = true,
                                                .has_one_network = i % 3 == 0,
                                                .makes_weights = i % 2 == 0});
    ExpertsSeconds seconds{.exchange = number(),
                           .gather = number(),
                           .expert = number(),
                           .scatter = number(),
                           .weights = 3 * number()};
    const double alone = makespan(pass, seconds);
    seconds.gradients = 2 * alone;
    const double idle = alone - (makespan(pass, seconds) - seconds.gradients);
    EXPECT_GE(idle, -1e-12);
    for (const double length : {0.1, 0.9, 1.0, 1.1, 2.0}) {
      seconds.gradients = length * idle + 0.01 * i * number();
      EXPECT_NEAR(makespan(pass, seconds), alone + std::max(0.0, seconds.gradients - idle), 1e-9);
    }
  }
}

}  // namespace
}  // namespace heddle
