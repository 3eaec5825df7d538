// Where sums of gradients go beside experts on other nodes, planned for a machine.

#include "planner/planned_windows.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "model/registry.h"
#include "planner/experts_cost.h"
#include "planner/predicted_step.h"
#include "planner/simulated_step.h"
#include "planner/step_units.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

constexpr int kLayers = 4;

ModelSpec spec_of(int dense_first = 0) {
  return model_spec(Json{{"model_type", "qwen3_moe"},
                         {"vocab_size", 32000},
                         {"hidden_size", 1024},
                         {"num_hidden_layers", kLayers},
                         {"num_attention_heads", 16},
                         {"num_key_value_heads", 16},
                         {"head_dim", 64},
                         {"intermediate_size", 2048},
                         {"moe_intermediate_size", 2048},
                         {"num_experts", 8},
                         {"num_experts_per_tok", 2},
                         {"mlp_only_layers", dense_first > 0 ? Json{0, 2} : Json::array()},
                         {"rope_theta", 10000.0}},
                    "config.json");
}

/// Two servers of eight, with a link between them that is so many times as fast.
Machine machine_with(double times) {
  Machine machine = read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  machine.links.back().bytes_per_s *= times;
  return machine;
}

Job job_of(const ModelSpec& spec) {
  return {.spec = spec, .seq_len = 2048, .batch = 8, .stack = Stack::heddle(DType::bf16)};
}

/// One expert of two on each server, its width over the eight ranks that share tokens.
Candidate spread(const char* exchange, int zero = 0) {
  return {{.dp = 2, .tp = 8, .ep = 2, .etp = 8, .ep_exchange = exchange, .zero = zero},
          Recompute::none,
          1};
}

double elements_in(const SumWindows& windows) {
  double sum = 0;
  for (const auto& [with_experts, with_rest] : windows) {
    sum += static_cast<double>(with_experts + with_rest);
  }
  return sum;
}

/// Of the units of a rank, from the top to the bottom.
double summed_before(const StepRank& rank, int block) {
  double sum = 0;
  for (const RankUnits::Bucket& bucket : rank.units.buckets) {
    const int owner = rank.units.units[static_cast<std::size_t>(bucket.owner)].block;
    const bool is_head = owner < 0 && bucket.owner > 0;
    if (!bucket.over.empty() && (owner > block || is_head)) {
      sum += static_cast<double>(bucket.elements);
    }
  }
  return sum;
}

TEST(PlannedWindows, HoldWhatExistsAndWhatTheNetworkHasTimeFor) {
  for (const int dense_first : {0, 1}) {
    for (const double times : {0.02, 0.2, 1.0}) {
      for (const int zero : {0, 1}) {
        const Machine machine = machine_with(times);
        const Job job = job_of(spec_of(dense_first));
        const Candidate candidate = spread("degree=2/2", zero);
        const PlannedWindows planned = plan_windows(machine, job, candidate, {0});
        ASSERT_EQ(planned.windows.size(), static_cast<std::size_t>(kLayers));
        const BlockCost block = block_cost(machine, job, candidate);
        const StepRank rank = step_units(machine, job, candidate, block, {0}).ranks[0];
        double sent = 0;
        for (int layer = kLayers - 1; layer >= 0; --layer) {
          const auto& [with_experts, with_rest] = planned.windows[static_cast<std::size_t>(layer)];
          if (dense_first > 0 && (layer == 0 || layer == 2)) {
            EXPECT_EQ(with_experts + with_rest, 0) << layer;
          }
          sent += static_cast<double>(with_experts + with_rest);
          EXPECT_LE(sent, 1.001 * summed_before(rank, layer)) << layer;
        }
        EXPECT_GT(sent, 0.0) << times;
      }
    }
  }
}

/// Beside what a step would take that sums all behind the last layer.
TEST(PlannedWindows, GainWhatIsHidden) {
  const Job job = job_of(spec_of());
  for (const double times : {0.02, 0.2, 1.0}) {
    const Machine machine = machine_with(times);
    const Candidate candidate = spread("degree=2/2");
    const PlannedWindows planned = plan_windows(machine, job, candidate, {0});
    const BlockCost block = block_cost(machine, job, candidate);
    const StepRank rank = step_units(machine, job, candidate, block, {0}).ranks[0];
    double backward = 0;
    for (std::size_t unit = 0; unit < rank.times.size(); ++unit) {
      if (rank.units.units[unit].block < 0) continue;
      backward += rank.times[unit].b.seconds + rank.times[unit].w.seconds;
    }
    EXPECT_GE(planned.seconds, 0.999 * backward);
    // The simulation, which plays every sum, is slower with all of them at the end.
    Job with = job, without = job;
    with.windows = planned.windows;
    without.windows = SumWindows(kLayers);  // nothing before the last layer has ended
    EXPECT_LT(simulate_step(machine, with, candidate).seconds,
              simulate_step(machine, without, candidate).seconds)
        << times;
  }
}

/// The network is idle for longer the longer products take, and a sum of that length is free.
TEST(ExpertsWindows, AreOfTheRecurrence) {
  const Machine machine = machine_with(0.2);
  const Job job = job_of(spec_of());
  for (const char* exchange : {"degree=1", "degree=2/4", "degree=4 networks=1"}) {
    const Candidate candidate = spread(exchange);
    const DryBlocks dry = dry_blocks(job, candidate);
    const ExpertsWindow with = experts_window(machine, job, candidate, dry, true),
                        without = experts_window(machine, job, candidate, dry, false);
    EXPECT_EQ(with.begin, without.begin);
    EXPECT_GE(with.seconds, without.seconds);
    EXPECT_GE(with.idle, without.idle);
    EXPECT_GT(without.idle, 0.0);
    EXPECT_LE(with.begin + with.idle, with.seconds);
  }
}

TEST(PlannedExchange, HasWindowsAndDegreesThatGoWithThem) {
  const ModelSpec spec = spec_of();
  const RunBatches batches{.sequences = 1, .seq_len = 2048, .microbatches = 4};
  const Machine machine = machine_with(0.2);
  const auto planned = [&](const char* exchange) {
    const ParallelPlan plan = make_plan(
        spec, {.dp = 2, .tp = 8, .ep = 2, .etp = 8, .ep_exchange = exchange, .zero = 0}, 16, 2048);
    return planned_exchange(machine, spec, plan, batches, DType::bf16);
  };
  EXPECT_TRUE(planned("degree=planned").windows.empty());
  const PlannedExchange named = planned("degree=2/8 windows=planned");
  EXPECT_EQ(named.exchange.text(), "degree=2/8 windows=planned");
  EXPECT_GT(elements_in(named.windows), 0.0);
  const PlannedExchange both = planned("degree=planned windows=planned");
  EXPECT_FALSE(both.exchange.leaves_degrees());
  EXPECT_TRUE(both.exchange.plans_windows());
  EXPECT_GT(elements_in(both.windows), 0.0);
  // None of the others is faster with its own windows.
  const auto seconds = [&](const ExchangeRequest& exchange) {
    Candidate candidate = spread("");
    candidate.ep_exchange = exchange;
    Job job = job_of(spec);
    return plan_windows(machine.at_work(16), job, candidate, {0}).seconds;
  };
  const int forward = both.exchange.plan(8).degree_forward;
  for (const int backward : {1, 2, 4, 8}) {
    EXPECT_LE(seconds(both.exchange), seconds(both.exchange.with_degrees(forward, backward)));
  }
}

}  // namespace
}  // namespace heddle::planner
