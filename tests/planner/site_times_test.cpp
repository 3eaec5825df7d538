#include "planner/site_times.h"

#include <gtest/gtest.h>

#include "codec/registry.h"
#include "model/parallel_plan.h"
#include "planner/measured_rows.h"
#include "planner/predicted_step.h"
#include "simulator/play_local.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

/// Nothing takes time but the links between sites.
Machine with_sites_joined_by(double bits_per_second, double latency) {
  Machine machine = read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  machine.device.memory_bytes_per_s = 1e30;
  machine.device.kernel_s = 0.0;
  Link& link = machine.links.back();
  link.bytes_per_s = bits_per_second / 8;
  link.latency_s = latency;
  link.collective = link.message = 1.0;
  link.is_direct = true;
  return machine;
}

/// About a billion parameters in 24 layers, and next to none in the vocabulary.
Job one_billion() {
  Job job{.spec = gpt_spec(1856, 16, 24, 1024),
          .seq_len = 1024,
          .batch = 8,
          .stack = Stack::heddle(DType::bf16)};
  job.spec.vocab = 64;
  job.outer = {
      .every = 100, .fragments = 8, .delay = 1, .mix = 0.5, .codec = codec::make_codec("e3m0")};
  return job;
}

const Candidate kTwoSites{{.sites = 2, .dp = 1}, Recompute::none, 8};

TEST(SiteTimes, HaveTheUtilisationThatSimulateLocalHas) {
  const Job job = one_billion();
  const LocalMethod local{
      .parameters = static_cast<double>(job.spec.parameter_count()),
      .step_seconds = 0.1,
      .every = 100,
      .fragments = 8,
      .delay = 1,
      .bits = 8.0 * static_cast<double>(job.outer.codec->encoded_bytes(1 << 20)) / (1 << 20)};
  for (const double gbit : {0.2, 1.0, 5.0, 50.0}) {
    const SiteTimes times = site_times(with_sites_joined_by(1e9 * gbit, 0.0), job, kTwoSites, 0.1);
    const PlayedLocal played = play_local(local, {.bits_per_second = 1e9 * gbit});
    // Heddle sends a fragment behind the step, not layer by layer under it, which hides up to a
    // step's time less of each of the 8 exchanges of 100 steps.
    EXPECT_LE(times.utilisation, played.utilisation + 1e-9) << gbit;
    EXPECT_GE(times.utilisation, played.utilisation - 0.08) << gbit;
    EXPECT_NEAR(times.step_seconds, 0.1 / times.utilisation, 1e-12);
  }
}

TEST(SiteTimes, WaitForBytesAndALatencyThatADelayHides) {
  Job job = one_billion();
  job.outer.fragments = 1;
  job.outer.delay = 0;
  const double inner = 0.5, latency = 0.1;
  const SiteTimes times = site_times(with_sites_joined_by(1e9, latency), job, kTwoSites, inner);
  const double bytes = times.sent_bytes * job.outer.every;
  EXPECT_NEAR(times.waited_seconds * job.outer.every, bytes / 125e6 + latency, 1e-6);
  // The note goes behind the bytes where calls do not overlap.
  Candidate in_turn = kTwoSites;
  in_turn.overlap = false;
  const SiteTimes longer = site_times(with_sites_joined_by(1e9, latency), job, in_turn, inner);
  EXPECT_NEAR(longer.waited_seconds * job.outer.every, bytes / 125e6 + 2 * latency, 1e-6);
  EXPECT_NEAR(times.step_seconds, inner + times.waited_seconds, 1e-9);
  job.outer.delay = 2;
  const SiteTimes later = site_times(with_sites_joined_by(1e9, latency), job, kTwoSites, inner);
  EXPECT_NEAR(later.waited_seconds, times.waited_seconds - 2 * inner / job.outer.every, 1e-6);
}

TEST(SiteTimes, AreShorterWhereRanksOfASiteDivideWhatTheySend) {
  const Job job = one_billion();
  const Machine machine = with_sites_joined_by(2e8, 0.0);
  const SiteTimes whole = site_times(machine, job, kTwoSites, 0.1);
  const Candidate divided{{.sites = 2, .dp = 4, .zero = 1}, Recompute::none, 2};
  const SiteTimes shares = site_times(machine, job, divided, 0.1);
  EXPECT_NEAR(shares.sent_bytes / whole.sent_bytes, 0.25, 0.01);
  EXPECT_LT(shares.step_seconds, whole.step_seconds);
  const Candidate stages{{.sites = 2, .dp = 1, .pp = 2}, Recompute::none, 2};
  EXPECT_NEAR(site_times(machine, job, stages, 0.1).sent_bytes / whole.sent_bytes, 0.5, 0.05);
}

TEST(PredictedSites, AreAPartOfTheStepThatRunsShow) {
  const Job job = one_billion();
  ParallelPlan plan = make_plan(job.spec, {.sites = 2, .dp = 1}, 2, 1024);
  plan.policy.outer = job.outer;
  const RunBatches batches{.sequences = 4, .seq_len = 1024};
  const Machine machine = with_sites_joined_by(1e8, 0.05);
  const auto sites = predicted_sites(machine, job.spec, plan, batches, DType::bf16);
  ASSERT_TRUE(sites);
  EXPECT_EQ(predicted_step_seconds(machine, job.spec, plan, batches, DType::bf16),
            sites->step_seconds);
  EXPECT_GT(sites->step_seconds, 2 * sites->inner_seconds);
  ParallelPlan alone = make_plan(job.spec, {.dp = 1}, 1, 1024);
  EXPECT_FALSE(predicted_sites(machine, job.spec, alone, batches, DType::bf16));
  EXPECT_NEAR(predicted_step_seconds(machine, job.spec, alone, batches, DType::bf16),
              sites->inner_seconds, 1e-9);
}

}  // namespace
}  // namespace heddle::planner
