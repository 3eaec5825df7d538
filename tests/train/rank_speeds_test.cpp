#include "train/rank_speeds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/json.h"
#include "model/registry.h"
#include "planner/recut.h"

namespace heddle {
namespace {

/// Ranks with equal work, four blocks and eight micro-batches each.
RankWork equal_work(int ranks) {
  const auto all = static_cast<std::size_t>(ranks);
  return {.group = std::vector<int>(all, 0),
          .stage = std::vector<int>(all, 0),
          .blocks = std::vector<int>(all, 4),
          .microbatches = 8};
}

constexpr double kUsual = 0.01, kStep = 0.5;

/// Steps in which one rank takes `slowness` times as long as the others.
struct Lines {
  explicit Lines(int ranks) : speeds(equal_work(ranks)), count(ranks) {}

  void steps(int number, int slow, double slowness) {
    for (int i = 0; i < number; ++i) {
      std::vector<double> seconds(static_cast<std::size_t>(count), kUsual);
      seconds[static_cast<std::size_t>(slow)] *= slowness;
      const auto changed = speeds.add(++step, seconds, kStep);
      if (!changed.empty()) all.push_back(changed);
    }
  }

  RankSpeeds speeds;
  int count;
  std::int64_t step = 0;
  std::vector<observe::PacesChanged> all;
};

TEST(RankSpeeds, NamesASlowRankOnceAndOnceMoreWhenItHasRecovered) {
  Lines lines(4);
  lines.steps(50, 2, 1.0);
  EXPECT_TRUE(lines.all.empty());
  lines.steps(200, 2, 1.6);
  ASSERT_EQ(lines.all.size(), 1u);
  EXPECT_EQ(lines.all[0].step, 58);  // eight of ten steps are slow
  ASSERT_EQ(lines.all[0].slow.size(), 1u);
  EXPECT_EQ(lines.all[0].slow[0].rank, 2);
  EXPECT_EQ(lines.all[0].slow[0].others, 3);
  EXPECT_NEAR(lines.all[0].slow[0].ratio(), 1.6, 1e-9);
  lines.steps(200, 2, 1.0);
  ASSERT_EQ(lines.all.size(), 2u);
  EXPECT_TRUE(lines.all[1].slow.empty());
  ASSERT_EQ(lines.all[1].recovered.size(), 1u);
  EXPECT_EQ(lines.all[1].recovered[0].rank, 2);
}

TEST(RankSpeeds, SingleSlowStepsAreNoSlowRank) {
  Lines lines(2);
  for (int i = 0; i < 40; ++i) {
    lines.steps(3, 1, 1.0);
    lines.steps(1, 1, 20.0);
  }
  EXPECT_TRUE(lines.all.empty());
}

TEST(RankSpeeds, RanksThatAreSlowInTurnsAreNoSlowRanks) {
  Lines lines(3);
  for (int i = 0; i < 100; ++i) {  // the median of ten steps is a slow one for the second
    lines.steps(2, 1, 1.6);
    lines.steps(1, 0, 1.6);
  }
  EXPECT_TRUE(lines.all.empty());
}

/// Below what makes a rank slow, and above what ends it, nothing is said.
TEST(RankSpeeds, ARankBetweenBothLimitsStaysWhatItWas) {
  Lines usual(3), slow(3);
  usual.steps(100, 0, 1.25);
  EXPECT_TRUE(usual.all.empty());
  slow.steps(30, 0, 2.0);
  slow.steps(100, 0, 1.2);
  EXPECT_EQ(slow.all.size(), 1u);
}

/// One that comes and goes is named more and more seldom.
TEST(RankSpeeds, AFlappingRankMakesNoFlood) {
  Lines lines(4);
  for (int i = 0; i < 100; ++i) {
    lines.steps(12, 3, 3.0);
    lines.steps(12, 3, 1.0);
  }
  EXPECT_GE(lines.all.size(), 2u);
  EXPECT_LE(lines.all.size(), 10u);
}

/// Where blocks are a small part of a step, nobody waits for them.
TEST(RankSpeeds, WhatStepsDoNotFeelIsNotSaid) {
  RankSpeeds speeds(equal_work(2));
  for (int step = 1; step <= 50; ++step) {
    EXPECT_TRUE(speeds.add(step, std::vector{kUsual, 2 * kUsual}, 100.0).empty());
  }
}

TEST(RankSpeeds, OnlyRanksWithEqualWorkAreCompared) {
  RankWork work = equal_work(4);
  work.group = {0, 0, 1, 1};
  RankSpeeds speeds(work);
  std::vector<observe::PacesChanged> lines;
  for (int step = 1; step <= 20; ++step) {
    const auto changed = speeds.add(step, std::vector{0.01, 0.01, 0.03, 0.05}, kStep);
    if (!changed.empty()) lines.push_back(changed);
  }
  ASSERT_EQ(lines.size(), 1u);
  ASSERT_EQ(lines[0].slow.size(), 1u);
  EXPECT_EQ(lines[0].slow[0].rank, 3);
  EXPECT_NEAR(lines[0].slow[0].usual, 0.03, 1e-12);
}

TEST(RankSpeeds, TheMedianIsThatOfTheOthers) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = 1 + static_cast<int>(random() % 9);
    RankWork work = equal_work(ranks);
    std::vector<double> seconds;
    for (int rank = 0; rank < ranks; ++rank) {
      work.group[static_cast<std::size_t>(rank)] = static_cast<int>(random() % 2);
      seconds.push_back(random() % 5 == 0 ? 0.0 : static_cast<double>(1 + random() % 4));
    }
    const std::vector<double> usual = usual_of_others(work, seconds);
    for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
      std::vector<double> others;
      for (std::size_t other = 0; other < seconds.size(); ++other) {
        if (other == rank || work.group[other] != work.group[rank] || seconds[other] == 0) continue;
        others.push_back(seconds[other]);
      }
      std::ranges::sort(others);
      const std::size_t n = others.size();
      const double median = n == 0 ? 0 : (others[(n - 1) / 2] + others[n / 2]) / 2;
      EXPECT_EQ(usual[rank], seconds[rank] == 0 ? 0 : median);
    }
  }
}

ModelSpec small_llama(int layers) {
  return model_spec(Json{{"model_type", "llama"},
                         {"hidden_size", 32},
                         {"intermediate_size", 64},
                         {"num_hidden_layers", layers},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 4},
                         {"max_position_embeddings", 64},
                         {"vocab_size", 61},
                         {"rms_norm_eps", 1e-5}},
                    "a test");
}

RankWork work_of(const std::vector<std::pair<Axis, int>>& sizes, ContextOrder order,
                 config::Documents documents = config::Documents::ignore) {
  config::RunConfig config;
  config.data.seq_len = 64;
  config.data.documents = documents;
  config.parallel = {.dp = 1, .zero = 0};
  config.parallel.context = ContextMethod::ring;
  config.parallel.context_order = order;
  for (const auto& [axis, size] : sizes) {
    (axis == Axis::dp   ? config.parallel.dp
     : axis == Axis::cp ? config.parallel.cp
                        : config.parallel.pp) = size;
  }
  const ModelSpec spec = small_llama(4);
  const int ranks = static_cast<int>(config.parallel.ranks());
  return rank_work(config, spec, make_plan(spec, config.parallel, ranks, 64));
}

TEST(RankWork, RanksOfAllStagesAreComparedAndThoseOfUnevenAttentionAreNot) {
  const RankWork pipeline = work_of({{Axis::pp, 4}}, ContextOrder::automatic);
  EXPECT_EQ(pipeline.group, std::vector<int>(4, 0));
  EXPECT_EQ(pipeline.stage, (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(pipeline.blocks, (std::vector{1, 1, 1, 1}));
  const auto shared = {std::pair{Axis::cp, 2}, {Axis::dp, 2}};
  EXPECT_EQ(work_of(shared, ContextOrder::zigzag).group, std::vector<int>(4, 0));
  EXPECT_EQ(work_of(shared, ContextOrder::contiguous).group, (std::vector{0, 1, 0, 1}));
  EXPECT_EQ(work_of(shared, ContextOrder::zigzag, config::Documents::mask).group,
            (std::vector{0, 1, 0, 1}));
}

/// The longest stage of every cut there is.
double best_longest_stage(const std::vector<double>& work, const std::vector<double>& slowness,
                          std::size_t stage, std::size_t unit) {
  if (stage + 1 == slowness.size()) {
    double rest = 0;
    for (std::size_t u = unit; u < work.size(); ++u) rest += work[u];
    return rest * slowness[stage];
  }
  double best = 1e30, own = 0;
  for (std::size_t end = unit + 1; end + (slowness.size() - stage - 1) <= work.size(); ++end) {
    own += work[end - 1] * slowness[stage];
    best = std::min(best, std::max(own, best_longest_stage(work, slowness, stage + 1, end)));
  }
  return best;
}

TEST(Recut, GivesSlowRanksFewerBlocks) {
  const ModelSpec spec = small_llama(12);
  const ParallelRequest request{.dp = 1, .pp = 4};
  const ParallelPlan plan = make_plan(spec, request, 4, 64);
  const auto even = planner::recut_stages(spec, plan, 64, 16, std::vector{1.0, 1.0, 1.0, 1.0});
  EXPECT_EQ(even.better, even.now);
  EXPECT_EQ(even.gain(), 1.0);
  std::mt19937_64 random(2);
  const std::vector<double> costs = unit_costs(spec, 64);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<double> slowness;
    for (int i = 0; i < 4; ++i) slowness.push_back(1.0 + 0.25 * static_cast<double>(random() % 9));
    const auto cut = planner::recut_stages(spec, plan, 64, 16, slowness);
    ASSERT_EQ(cut.better.size(), 4u);
    EXPECT_LE(cut.seconds_better, cut.seconds_now);
    if (cut.better == cut.now) continue;
    const double best = best_longest_stage(costs, slowness, 0, 0);
    double longest = 0;
    int unit = 0;
    for (std::size_t stage = 0; stage < 4; ++stage) {
      const int end = stage == 3 ? static_cast<int>(costs.size())
                                 : unit + cut.better[stage] + (stage == 0 ? 1 : 0);
      double own = 0;
      for (; unit < end; ++unit) own += costs[static_cast<std::size_t>(unit)] * slowness[stage];
      longest = std::max(longest, own);
    }
    EXPECT_NEAR(longest, best, 1e-9 * best);
  }
}

TEST(Recut, RefusesWhatHasNoStagesToCut) {
  const ModelSpec spec = small_llama(4);
  const std::vector<double> seconds = {1.0, 2.0};
  const ParallelPlan alone = make_plan(spec, {.dp = 2}, 2, 64);
  EXPECT_THROW(planner::recut_stages(spec, alone, 64, 4, seconds), Error);
  const ParallelPlan routes =
      make_plan(spec, {.dp = 1, .pp = 2, .schedule = Pipeline::routes}, 2, 64);
  EXPECT_THROW(planner::recut_stages(spec, routes, 64, 4, seconds), Error);
  const ParallelPlan plan = make_plan(spec, {.dp = 1, .pp = 2}, 2, 64);
  EXPECT_THROW(planner::recut_stages(spec, plan, 64, 4, std::vector{0.0, 0.0}), Error);
}

}  // namespace
}  // namespace heddle
