// A step is told in one place: what is added there is executed, planned, simulated and counted, and
// a verdict names what a rank was doing.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "comm/threads/thread_world.h"
#include "parallel/step/rank_times.h"
#include "parity/rank_training.h"
#include "planner/simulated_step.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

using namespace std::chrono_literals;

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 13, .microbatches = 3};
constexpr std::int64_t kNumbers = 1000, kBytes = 8 * kNumbers;

/// The usual step, or one with an exchange more.
StepPolicy policy(bool has_more) {
  StepPolicy policy;
  if (has_more) policy.sums.push_back({.name = "more", .over = {Axis::dp}, .numbers = kNumbers});
  return policy;
}

struct Sums {
  std::int64_t calls = 0, bytes = 0;
  friend bool operator==(const Sums&, const Sums&) = default;
};

Sums operator-(const Sums& a, const Sums& b) { return {a.calls - b.calls, a.bytes - b.bytes}; }

Sums on_dp(const MeshTraffic& traffic) {
  const auto& [calls, bytes, wire] =
      traffic.on(Axis::dp).by_op[static_cast<std::size_t>(CommOp::all_reduce)];
  return {calls, bytes};
}

class Exchange : public testing::Test {
 protected:
  MeshCase mesh_{.request = {.dp = 2, .tp = 2, .zero = 2}};
  const ModelSpec spec_ = deep_spec("llama", 3);

  StepPlan planned(bool has_more) const {
    ParallelPlan plan = make_plan(spec_, mesh_.request, mesh_.ranks(), kBatch.seq_len);
    plan.policy = policy(has_more);
    RankTimes(plan.mesh).add_to(plan.policy);
    return plan_step(spec_, RankTraining::build_options(mesh_, kBatch), plan, 0, kBatch);
  }

  Sums executed(bool has_more) const {
    Sums sums;
    run_ranks(mesh_.ranks(), [&](World& world) {
      RankTraining training(spec_, mesh_, kBatch, world, {}, policy(has_more));
      training.run(1);
      if (world.rank() == 0) sums = on_dp(training.mesh().traffic());
    });
    return sums;
  }

  planner::SimulatedStep simulated(bool has_more) const {
    const planner::Machine machine =
        planner::read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
    const planner::Job job{.spec = spec_,
                           .seq_len = kBatch.seq_len,
                           .batch = 12,
                           .stack = planner::Stack::heddle(DType::f32)};
    return planner::simulate_step(machine, job,
                                  {{.dp = 2, .tp = 2, .zero = 2}, planner::Recompute::none, 2},
                                  {.policy = policy(has_more)});
  }
};

TEST_F(Exchange, ThatIsToldIsExecuted) {
  EXPECT_EQ(executed(true) - executed(false), (Sums{1, kBytes}));
}

TEST_F(Exchange, ThatIsToldIsPlanned) {
  const StepPlan with = planned(true), without = planned(false);
  EXPECT_EQ(on_dp(with.traffic) - on_dp(without.traffic), (Sums{1, kBytes}));
  EXPECT_GE(with.memory.peak, without.memory.peak + static_cast<std::size_t>(kBytes));
}

TEST_F(Exchange, ThatIsToldIsSimulatedAndCounted) {
  const planner::SimulatedStep with = simulated(true), without = simulated(false);
  EXPECT_EQ(with.transfers, without.transfers + 1);
  EXPECT_GT(with.seconds, without.seconds);
  const auto counted = [](const planner::SimulatedStep& step) {
    const auto& sizes = step.messages[0].dp;
    return sizes.at(CommOp::all_reduce, planner::MessageSizes::bucket_of(kBytes)).bytes;
  };
  EXPECT_EQ(counted(with) - counted(without), kBytes);
}

/// What stops when rank 1 freezes in the first call that it makes in `op`.
std::string verdict_in(const std::string& op, const MeshCase& mesh) {
  ThreadWorld threads(mesh.ranks(), {.limit = 500ms});
  threads.world(1).flight().set_hook([&](const CommCall& call) {
    if (call.tag.text() != op) return true;
    while (!threads.failure().has_failed()) std::this_thread::sleep_for(5ms);
    return true;
  });
  try {
    threads.run(
        [&](World& world) { RankTraining(deep_spec("llama", 3), mesh, kBatch, world).run(1); });
  } catch (const Error& error) {
    return error.message();
  }
  return "no failure";
}

TEST(Verdict, NamesPassUnitAndMicroBatch) {
  const MeshCase on_tp{.request = {.dp = 1, .tp = 2}};
  for (const char* op : {"F of block 1, micro-batch 2", "BW of block 0, micro-batch 1"}) {
    const std::string verdict = verdict_in(op, on_tp);
    EXPECT_NE(verdict.find(op), std::string::npos) << verdict;
  }
  const MeshCase on_dp{.request = {.dp = 2, .zero = 3}};
  for (const char* op :
       {"values of block 2, micro-batch 1", "gradients of block 1, micro-batch 0"}) {
    const std::string verdict = verdict_in(op, on_dp);
    EXPECT_NE(verdict.find(op), std::string::npos) << verdict;
  }
}

TEST(Verdict, NamesRankLayerPassRoundAndPeerInsideAttention) {
  // A round of each in which rank 1 has messages.
  for (const auto& [method, round] : {std::pair{ContextMethod::ring, 1},
                                      {ContextMethod::gather, 0},
                                      {ContextMethod::lightseq, 0},
                                      {ContextMethod::tokenring, 1}}) {
    const MeshCase mesh{.request = {.dp = 1, .cp = 3, .context = method}};
    for (const char* pass : {"F of block 1, micro-batch 2", "BW of block 0, micro-batch 1"}) {
      const std::string op = fmt::format("{}, round {} of attention", pass, round);
      const std::string verdict = verdict_in(op, mesh);
      SCOPED_TRACE(name_of(method));
      EXPECT_NE(verdict.find("rank 1 has not"), std::string::npos) << verdict;
      EXPECT_NE(verdict.find("of cp"), std::string::npos) << verdict;
      EXPECT_NE(verdict.find("rank 1 (f32"), std::string::npos) << verdict;  // as somebody's peer
      EXPECT_NE(verdict.find(op), std::string::npos) << verdict;
    }
  }
}

}  // namespace
}  // namespace heddle
