#include "planner/simulated_step.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "parallel/schedule/make_schedule.h"
#include "planner/collectives.h"
#include "planner/evaluate.h"
#include "planner/measured_rows.h"
#include "planner/published_tables.h"
#include "planner/step_units.h"
#include "simulator/play.h"
#include "support/source_dir.h"
#include "verify/shared_files.h"

namespace heddle::planner {
namespace {

Machine h200() { return read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml"); }

/// Messages that take time but no bandwidth: what closed forms of schedules assume.
Machine with_hops_of(double seconds) {
  Machine machine = h200();
  for (Link& link : machine.links) {
    link.latency_s = seconds;
    link.bytes_per_s = 1e30;
  }
  return machine;
}

Job small_job(std::int64_t batch) {
  return {.spec = gpt_spec(2048, 16, 14, 2048),
          .seq_len = 2048,
          .batch = batch,
          .stack = Stack::heddle(DType::bf16)};
}

Schedule schedule_of(const Job& job, const Candidate& plan) {
  return step_schedule(plan, plan.microbatches(job));
}

Candidate without_overlap(Candidate plan) {
  plan.overlap = false;
  return plan;
}

StepUnits units_of(const Machine& machine, const Job& job, const Candidate& plan) {
  const BlockCost block = block_cost(machine, job, plan);
  return step_units(machine, job, plan, block, schedule_of(job, plan).rank_of_stage);
}

/// One micro-batch on a stage.
StageTimes times_of(const StepUnits& units, int stage, int rank) {
  const UnitTimes times = units.ranks[static_cast<std::size_t>(rank)].of_stage(stage);
  return {times.f.seconds, times.b.seconds, times.w.seconds, 0.0};
}

double pass_seconds(const StepUnits& units, int stage, int rank) {
  const StageTimes times = times_of(units, stage, rank);
  return times.f + times.b + times.w;
}

/// The sum of squares, losses and speeds of ranks at the end of a step, and that of targets before
/// it.
double totals_seconds(const Machine& machine, int dp) {
  const GroupShape group = group_shape(machine, dp, 1);
  return collective_seconds(machine, CommOp::all_reduce, group, 24.0 + 8.0 * dp) +
         collective_seconds(machine, CommOp::all_reduce, group, 8.0);
}

// ---- Schedules ----------------------------------------------------------------------------------

TEST(SimulatedStep, IsThePlayedScheduleWhereNothingIsShared) {
  const Job job = small_job(24);
  for (const char* name :
       {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-min", "v-half"}) {
    for (const double hop : {0.0, 1e-3}) {
      SCOPED_TRACE(fmt::format("{} {}", name, hop));
      const Machine machine = with_hops_of(hop);
      Candidate plan{{.dp = 1, .pp = 4, .schedule = pipeline_named(name)}};
      if (plan.schedule == Pipeline::interleaved) plan.chunks = 3;
      const Schedule schedule = schedule_of(job, plan);
      std::vector<StageTimes> times;
      const StepUnits units = units_of(machine, job, plan);
      for (int stage = 0; stage < schedule.stages(); ++stage) {
        times.push_back(times_of(units, stage, schedule.rank_of(stage)));
        times.back().hop = hop;
      }
      const Played played = play(schedule, times);
      const SimulatedStep step = simulate_step(machine, job, plan);
      EXPECT_NEAR(step.makespan, played.makespan, 1e-9 * played.makespan);
      EXPECT_NEAR(step.bubble_fraction, played.bubble_fraction, 1e-9);
      EXPECT_NEAR(step.bubble_over_ideal, played.bubble_over_ideal, 1e-9);
      EXPECT_NEAR(step.bubble_cost_rate, played.bubble_cost_rate, 1e-9);
    }
  }
}

TEST(SimulatedStep, NamesActionsAsTheExecutorDoes) {
  const Job job = small_job(3);
  const Candidate plan{{.dp = 1, .pp = 2}};
  const SimulatedStep step = simulate_step(h200(), job, plan);
  std::map<int, std::string> lines;
  for (const observe::Span& span : step.spans) {
    if (span.stream == 0) lines[span.rank] += span.name + " ";
  }
  EXPECT_EQ(lines[0], "F0 sa0 F1 sa1 rg0 BW0 F2 sa2 rg1 BW1 rg2 BW2 reduce step ");
  EXPECT_EQ(lines[1], "ra0 F0 BW0 sg0 ra1 F1 BW1 sg1 ra2 F2 BW2 sg2 reduce step ");
}

TEST(SimulatedStep, TimesOfEveryRankAddUpToTheStep) {
  const Job job = small_job(32);
  for (const int zero : {0, 1, 2, 3}) {
    for (const bool overlap : {false, true}) {
      const Candidate plan{{.dp = 4, .tp = 2, .pp = 4, .zero = zero, .overlap = overlap}};
      const SimulatedStep step = simulate_step(h200(), job, plan, {.stragglers = {{9, 1.5}}});
      EXPECT_EQ(step.ranks.size(), 8u);  // a replica with the slow device, one for the others
      for (const auto& rank : step.ranks) {
        EXPECT_NEAR(rank.times.sum(), step.seconds, 1e-9 * step.seconds) << zero << rank.device;
      }
      EXPECT_NEAR(step.mean.sum(), step.seconds, 1e-9 * step.seconds);
    }
  }
}

// ---- Exchange over dp ---------------------------------------------------------------------------

TEST(SimulatedStep, OverLongDirectLinksExchangesDoNotWaitForEachOther) {
  Machine machine = h200();
  Link& link = machine.links.back();
  machine.links.front().reach = 1;
  link.is_direct = true;
  link.bytes_per_s = 1e30;
  const Job job = small_job(2);
  const Candidate plan{{.dp = 2}};
  const auto exposed = [&](double latency) {
    link.latency_s = latency;
    return simulate_step(machine, job, plan).mean.exposed_on(Traffic::dp) / latency;
  };
  // A latency for each of many buckets, less what hides under the backward pass; four at a time
  // where a round trip is long. Two more are those of targets and totals.
  const auto buckets =
      static_cast<double>(units_of(machine, job, plan).ranks[0].units.buckets.size());
  ASSERT_GT(buckets, 12.0);
  EXPECT_NEAR(exposed(10.0), std::ceil(buckets / 4.0) + 2.0, 0.1);
}

TEST(SimulatedStep, WithoutOverlapPaysEveryExchange) {
  const Machine machine = h200();
  const Job job = small_job(16);
  const Candidate plan{{.dp = 16}};
  const StepUnits units = units_of(machine, job, plan);
  double exchange = totals_seconds(machine, 16);
  for (const RankUnits::Bucket& bucket : units.ranks[0].units.buckets) {
    exchange += collective_seconds(machine, CommOp::all_reduce, group_shape(machine, 16, 1),
                                   4.0 * static_cast<double>(bucket.elements));
  }
  const double busy = pass_seconds(units, 0, 0);
  const SimulatedStep without = simulate_step(machine, job, without_overlap(plan));
  EXPECT_NEAR(without.seconds, busy + exchange + units.ranks[0].optimizer_seconds, 1e-9);
  EXPECT_NEAR(without.mean.exposed_on(Traffic::dp), exchange, 1e-9);
  EXPECT_EQ(without.mean.hidden_on(Traffic::dp), 0.0);

  const SimulatedStep with = simulate_step(machine, job, plan);
  EXPECT_LT(with.seconds, without.seconds);
  EXPECT_GT(with.mean.hidden_on(Traffic::dp), 0.3 * exchange);
  EXPECT_NEAR(with.mean.hidden_on(Traffic::dp) + with.mean.exposed_on(Traffic::dp), exchange, 1e-9);
}

TEST(SimulatedStep, HidesGathersOfZero3UnderTheBlockBefore) {
  const Machine machine = h200();
  Job job = small_job(64);
  const Candidate plan{{.dp = 8, .zero = 3}, Recompute::none, 4};
  const SimulatedStep with = simulate_step(machine, job, plan);
  const SimulatedStep without = simulate_step(machine, job, without_overlap(plan));
  EXPECT_LT(with.mean.exposed_on(Traffic::dp), 0.35 * without.mean.exposed_on(Traffic::dp));
  // The first unit of a pass cannot be fetched ahead.
  EXPECT_GT(with.mean.exposed_on(Traffic::dp), 0.0);
}

TEST(SimulatedStep, IsNearTheClosedFormFromFewReplicasToMany) {
  const Machine machine = h200();
  for (const int dp : {4, 64, 512, 1024}) {
    const Job job = small_job(4 * dp);
    const Candidate plan{{.dp = dp, .zero = 1}};
    const BlockCost block = block_cost(machine, job, plan);
    const TimeEstimate time =
        estimate_time(machine, job, plan, split_blocks(job, plan.schedule, 1, 1), block);
    const double simulated = simulate_step(machine, job, plan).seconds;
    EXPECT_NEAR((time.total - time.stragglers) / simulated, 1.0, 0.06) << dp;
  }
}

// ---- Stragglers ---------------------------------------------------------------------------------

TEST(SimulatedStep, WaitsForASlowReplicaAsLongAsItTakes) {
  const Machine machine = h200();
  const Job job = small_job(8);
  const Candidate plan{{.dp = 4, .overlap = false}};
  const StepUnits units = units_of(machine, job, plan);
  const double busy = 2.0 * pass_seconds(units, 0, 0);
  const double work = units.ranks[0].optimizer_seconds;
  const double before = simulate_step(machine, job, plan).seconds;
  const SimulatedStep after = simulate_step(machine, job, plan, {.stragglers = {{2, 1.5}}});
  EXPECT_NEAR(after.seconds - before, 0.5 * (busy + work), 1e-9);
  ASSERT_EQ(after.ranks.size(), 2u);
  EXPECT_EQ(after.ranks[0].device, 0);
  EXPECT_EQ(after.ranks[1].device, 2);
  EXPECT_GT(after.ranks[0].times.bubble, 0.49 * busy);
}

TEST(SimulatedStep, OfASlowLastStageIsItsMicroBatchesAndTheWayThere) {
  const Machine machine = with_hops_of(0.0);
  const Job job = small_job(12);
  const Candidate plan{{.dp = 1, .pp = 2}};
  const StepUnits units = units_of(machine, job, plan);
  const StageTimes first = times_of(units, 0, 0);
  const double factor = 3.0;
  const SimulatedStep step = simulate_step(machine, job, plan, {.stragglers = {{1, factor}}});
  EXPECT_NEAR(step.makespan, first.f + 12 * factor * pass_seconds(units, 1, 1) + first.b + first.w,
              1e-9);
}

TEST(SimulatedStep, VariesWithTheSeedAndNotOtherwise) {
  const Job job = small_job(16);
  const Candidate plan{{.dp = 4, .pp = 2}};
  const auto seconds = [&](std::uint64_t seed) {
    return simulate_step(h200(), job, plan, {.variation = 0.02, .seed = seed}).seconds;
  };
  EXPECT_EQ(seconds(1), seconds(1));
  EXPECT_NE(seconds(1), seconds(2));
  // The slowest of four pipelines is waited for.
  EXPECT_GT(seconds(1), simulate_step(h200(), job, plan).seconds);
}

// ---- Counts -------------------------------------------------------------------------------------

/// Calls and bytes of what was played, by device and stream.
struct Count {
  std::int64_t calls = 0, bytes = 0;
};

Count sum_of(const MessageSizes& sizes, const std::vector<CommOp>& ops) {
  Count count;
  for (const CommOp op : ops) {
    for (int i = 0; i < MessageSizes::kBuckets; ++i) {
      count.calls += sizes.at(op, i).calls;
      count.bytes += sizes.at(op, i).bytes;
    }
  }
  return count;
}

void expect_equal_counts(const Job& job, const Candidate& plan) {
  const SimulatedStep step = simulate_step(h200(), job, plan);
  std::map<std::pair<int, int>, Count> played;
  for (const observe::Span& span : step.spans) {
    Count& count = played[{span.rank, span.stream}];
    ++count.calls;
    count.bytes += static_cast<std::int64_t>(span.bytes);
  }
  const std::vector<CommOp> collectives = {CommOp::all_reduce, CommOp::all_gather,
                                           CommOp::reduce_scatter, CommOp::broadcast};
  for (int rank = 0; rank < plan.pp; ++rank) {
    SCOPED_TRACE(fmt::format("pp rank {}", rank));
    const int device = rank * plan.tp * plan.dp;
    const TrafficBySize& traffic = step.messages[static_cast<std::size_t>(rank)];
    const auto expect = [&](int stream, Count expected) {
      const Count count = played[{device, stream}];
      EXPECT_EQ(count.calls, expected.calls) << kStepStreams[static_cast<std::size_t>(stream)];
      EXPECT_EQ(count.bytes, expected.bytes) << kStepStreams[static_cast<std::size_t>(stream)];
    };
    expect(1, sum_of(traffic.pp, {CommOp::send}));
    expect(2, sum_of(traffic.dp, collectives));
    expect(3, sum_of(traffic.ends, collectives));
    expect(4, sum_of(traffic.lanes, collectives));
  }
}

TEST(SimulatedStep, PlaysWhatTheRuntimeCounts) {
  ModelSpec tied = gpt_spec(1024, 16, 13, 512);
  tied.tied_embeddings = true;
  ModelSpec apart = tied;
  apart.tied_embeddings = false;
  for (const ModelSpec& spec : {tied, apart}) {
    const Job job{.spec = spec, .seq_len = 512, .batch = 24, .stack = Stack::heddle(DType::bf16)};
    for (const int zero : {0, 1, 2, 3}) {
      for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "v-half"}) {
        for (const int pp : {1, 2, 4}) {
          Candidate plan{{.dp = 2, .tp = 2, .pp = pp, .zero = zero, .sequence = zero == 1}};
          plan.schedule = pipeline_named(name);
          if (plan.schedule == Pipeline::interleaved) plan.chunks = 2;
          SCOPED_TRACE(fmt::format("{} pp {} ZeRO {}{}", name, pp, zero,
                                   spec.tied_embeddings ? " tied" : ""));
          expect_equal_counts(job, plan);
        }
      }
      for (const std::int8_t algorithm : {1, 2}) {
        for (const char* name : {"1f1b", "v-half"}) {
          Candidate plan{{.dp = 2, .pp = 4, .zero = zero}};
          plan.schedule = pipeline_named(name);
          plan.vocabulary = VocabularyPlacement::pipeline;
          plan.vocabulary_algorithm = algorithm;
          SCOPED_TRACE(fmt::format("vocabulary {} by {} ZeRO {}", algorithm, name, zero));
          expect_equal_counts(job, plan);
        }
      }
    }
  }
}

TEST(MessageSizes, SortByPowersOfTwo) {
  EXPECT_EQ(MessageSizes::bucket_of(0), 0);
  EXPECT_EQ(MessageSizes::bucket_of(1), 0);
  EXPECT_EQ(MessageSizes::bucket_of(2), 1);
  EXPECT_EQ(MessageSizes::bucket_of(1023), 9);
  EXPECT_EQ(MessageSizes::bucket_of(1024), 10);
  MessageSizes sizes;
  sizes.add(CommOp::send, 3, 1500);
  EXPECT_EQ(sizes.at(CommOp::send, 10).calls, 3);
  EXPECT_EQ(sizes.at(CommOp::send, 10).bytes, 4500);
}

// ---- Networks -----------------------------------------------------------------------------------

TEST(SimulatedStep, OnANetworkWithoutCollisionsIsThatOfTheTiers) {
  const Machine machine = h200();
  const Job job = small_job(64);
  const Candidate plan{{.dp = 8, .tp = 2, .pp = 4}};
  const auto topology =
      network::make_topology(network::LeafSpine{.leaves = 8, .spines = 8, .hosts_per_leaf = 8});
  const double tiers = simulate_step(machine, job, plan).seconds;
  const auto routed = [&](network::Routing routing) {
    const StepOptions options{.topology = &topology, .routing = {.routing = routing, .seed = 3}};
    return simulate_step(machine, job, plan, options).seconds;
  };
  EXPECT_NEAR(routed(network::Routing::spray), tiers, 2e-3 * tiers);
  EXPECT_GT(routed(network::Routing::ecmp), 1.001 * tiers);
}

TEST(SimulatedStep, GoesAtTheSpeedOfMeasuredPairs) {
  Machine machine = h200();
  const Job job = small_job(64);
  const Candidate plan{{.dp = 1, .tp = 8, .pp = 2}};
  const double even = simulate_step(machine, job, plan).makespan;
  machine.pairs.assign(3, std::vector<double>(3, 35e9));
  EXPECT_NEAR(simulate_step(machine, job, plan).makespan, even, 1e-9 * even);
  machine.pairs[0][1] = machine.pairs[1][0] = 3.5e9;
  const double slow = simulate_step(machine, job, plan).makespan;
  EXPECT_GT(slow, even);
  EXPECT_NEAR(simulate_step(machine, job, plan, {.servers = {0, 2, 1}}).makespan, even,
              1e-9 * even);
}

// ---- Measurements -------------------------------------------------------------------------------

Machine a100(const std::string& network) {
  return read_machine(source_dir() + "/configs/systems/a100-" + network + ".toml");
}

/// Of simulated steps, with the closed form's wait for the slowest of many ranks.
Accuracy simulated_accuracy(const Machine& machine, const std::vector<MeasuredRow>& rows) {
  std::vector<Prediction> predictions;
  for (const MeasuredRow& row : rows) {
    TimeEstimate time = predict(machine, row);
    time.total = time.stragglers +
                 simulate_step(machine, row.job, row.candidate, {.keeps_spans = false}).seconds;
    predictions.push_back({&row, time});
  }
  return accuracy_of(predictions);
}

TEST(SimulatedStep, OfPublishedRunsIsWithinTheBarsOfTheClosedForm) {
  const Accuracy sequence = simulated_accuracy(a100("dgx-hdr"), korthikanti_rows());
  EXPECT_LE(sequence.mape, 3.6);
  EXPECT_LE(sequence.worst, 8.0);
  EXPECT_LE(simulated_accuracy(a100("dgx-hdr"), ptd_p_table_1()).mape, 6.0);
  EXPECT_LE(simulated_accuracy(a100("dgx-hdr"), ptd_p_table_2_zero3()).mape, 12.0);
}

TEST(SimulatedStep, OfMeasuredRunsOnManyServersIsWithinTheBarsOfTheClosedForm) {
  const Machine machine = a100("800g");
  const auto path = shared_folder() / "data" / "measured-iterations" / "a100-multi-node.csv";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no shared measurements";
  const Accuracy accuracy = simulated_accuracy(machine, read_rows(path, machine));
  EXPECT_EQ(accuracy.rows, 109);
  EXPECT_LE(accuracy.mape, 10.0);
  EXPECT_GE(accuracy.spearman, 0.93);
}

// ---- Scale --------------------------------------------------------------------------------------

TEST(SimulatedStep, OfATrillionParametersOn3072DevicesIs64Ranks) {
  const Job job{.spec = gpt_spec(25600, 160, 128, 2048),
                .seq_len = 2048,
                .batch = 3072,
                .stack = Stack::heddle(DType::bf16)};
  const Candidate plan{{.dp = 6, .tp = 8, .pp = 64}, Recompute::full};
  const SimulatedStep step = simulate_step(h200(), job, plan);
  EXPECT_EQ(step.ranks.size(), 64u);
  EXPECT_EQ(step.ranks[63].device, 63 * 48);
  std::array<std::int64_t, 5> spans{};
  for (const observe::Span& span : step.spans) ++spans[static_cast<std::size_t>(span.stream)];
  EXPECT_EQ(spans[0], 64 * 512 * 2 + 2 * 2 * 63 * 512 + 64 * 2);
  EXPECT_EQ(spans[1], 2 * 63 * 512);
  // An inner rank's sends, as published (planner.md 2.4): in all 1,024 of 100 MiB.
  EXPECT_EQ(step.messages[1].pp.at(CommOp::send, 26).calls, 1024);
  EXPECT_EQ(step.messages[1].pp.at(CommOp::send, 26).bytes, 1024LL * 104857600);
  EXPECT_GT(step.bubble_over_ideal, 63.0 / 512);
  EXPECT_LT(step.bubble_over_ideal, 2.0 * 63.0 / 512);
}

// ---- Bad input ----------------------------------------------------------------------------------

std::string refusal(const Job& job, const Candidate& plan, const StepOptions& options) {
  try {
    simulate_step(h200(), job, plan, options);
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing was refused";
}

TEST(SimulatedStep, NamesASendWithoutReceiveAndAReceiveWithoutSend) {
  const Job job = small_job(4);
  const Candidate plan{{.dp = 1, .pp = 2}};
  Schedule lost = schedule_of(job, plan);
  std::erase_if(lost.by_rank[1], [](const Action& action) {
    return action.act == Act::recv_act && action.microbatch == 2;
  });
  EXPECT_EQ(refusal(job, plan, {.schedule = &lost}),
            "the schedule cannot be played: rank 0: sa2 of stage 0 goes to rank 1, which never "
            "receives it");
  Schedule unsent = schedule_of(job, plan);
  std::erase_if(unsent.by_rank[1], [](const Action& action) {
    return action.act == Act::send_grad && action.microbatch == 1;
  });
  EXPECT_EQ(refusal(job, plan, {.schedule = &unsent}),
            "the schedule cannot be played: rank 0: rg1 of stage 0 waits for rank 1, which never "
            "sends it");
}

TEST(SimulatedStep, NamesRanksThatWaitForEachOther) {
  const Job job = small_job(4);
  const Candidate plan{{.dp = 1, .pp = 2}};
  Schedule circle = schedule_of(job, plan);
  // Rank 0 wants a gradient before it sends what that is made of.
  auto& actions = circle.by_rank[0];
  const auto waits = std::find_if(actions.begin(), actions.end(),
                                  [](const Action& a) { return a.act == Act::recv_grad; });
  std::rotate(actions.begin(), waits, waits + 1);
  EXPECT_EQ(refusal(job, plan, {.schedule = &circle}),
            "the schedule never ends: rank 0 waits in rg0 of stage 0 for sg0 of rank 1; rank 1 "
            "waits in ra0 of stage 1 for sa0 of rank 0");
}

TEST(SimulatedStep, RefusesWhatDoesNotFitThePlan) {
  const Job job = small_job(8);
  const Candidate plan{{.dp = 2, .pp = 2}};
  EXPECT_EQ(refusal(job, plan, {.stragglers = {{4, 2.0}}}),
            "there is no device 4 that could be slow");
  EXPECT_EQ(refusal(job, plan, {.stragglers = {{0, 0.0}}}), "device 0 cannot take 0 times as long");
  const auto topology = network::make_topology(network::SingleSwitch{.hosts = 3});
  EXPECT_NE(refusal(job, plan, {.topology = &topology}).find("3 hosts for 4 devices"),
            std::string::npos);
  Machine one_server = h200();
  one_server.links.resize(1);
  EXPECT_THROW(simulate_step(one_server, job, plan, {.topology = &topology}), Error);
  const Schedule other = schedule_of(small_job(6), plan);
  EXPECT_EQ(refusal(job, plan, {.schedule = &other}),
            "a schedule of 2 ranks and 3 micro-batches was given for 2 and 4");
  EXPECT_NE(refusal(small_job(1 << 22), {{.dp = 1, .pp = 2}}, {}).find("passes to simulate"),
            std::string::npos);
}

}  // namespace
}  // namespace heddle::planner
