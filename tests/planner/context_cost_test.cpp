#include "planner/context_cost.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/registry.h"
#include "planner/predicted_step.h"
#include "planner/simulated_step.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

Machine h200() { return read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml"); }

Job long_job() {
  return {.spec = read_model_spec(source_dir() + "/configs/models/llama3-8b.json"),
          .seq_len = 131072,
          .batch = 4,
          .stack = Stack::heddle(DType::bf16)};
}

Candidate with(int tp, int cp, ContextMethod method) {
  return {{.dp = 1, .tp = tp, .cp = cp, .context = method}};
}

TEST(ContextCost, OfWholeSequencesIsNothing) {
  const ContextCost cost = context_cost(h200(), long_job(), with(2, 1, ContextMethod::ring));
  EXPECT_EQ(cost.exposed_f + cost.exposed_b + cost.again + cost.seconds, 0.0);
  EXPECT_EQ(cost.sent_bytes, 0);
}

TEST(ContextCost, IsThatOfTheSharedPairsWhereLinksCostNothing) {
  Machine machine = h200();
  for (Link& link : machine.links) {
    link.bytes_per_s = 1e30;
    link.latency_s = 0.0;
  }
  const Job job = long_job();
  const double S = static_cast<double>(job.seq_len);
  const double whole =
      3.5 * context_times(machine, job, with(1, 4, ContextMethod::ring)).pair * S * (S + 1.0) / 2.0;
  for (const ContextMethod method : {ContextMethod::ring, ContextMethod::ulysses}) {
    const ContextCost cost = context_cost(machine, job, with(1, 4, method));
    EXPECT_NEAR(cost.seconds, whole / 4.0, 1e-9 * whole) << name_of(method);
    EXPECT_NEAR(cost.exposed_f + cost.exposed_b, 0.0, 1e-9 * whole) << name_of(method);
  }
  // In contiguous order one rank has nearly twice the mean, and the others wait for it.
  Candidate contiguous = with(1, 4, ContextMethod::ring);
  contiguous.context_order = ContextOrder::contiguous;
  EXPECT_GT(context_cost(machine, job, contiguous).seconds, 1.5 * whole / 4.0);
}

TEST(ContextCost, GrowsWhenRanksAreInSeveralServers) {
  const Job job = long_job();
  const auto waits = [&](int tp, ContextMethod method) {
    const ContextCost cost = context_cost(h200(), job, with(tp, 4, method));
    return (cost.exposed_f + cost.exposed_b) * tp;  // heads, and so bytes, are divided by tp
  };
  for (const ContextMethod method : {ContextMethod::gather, ContextMethod::ulysses}) {
    EXPECT_GT(waits(8, method), 3.0 * waits(1, method)) << name_of(method);
  }
}

TEST(ContextCost, OfUspIsLessThanOfUlyssesWhereHeadsStayInAServer) {
  Job job = long_job();
  job.spec.kv_heads = job.spec.heads;
  Candidate usp = with(1, 16, ContextMethod::usp);
  usp.context_heads = 8;
  const ContextCost inside = context_cost(h200(), job, usp),
                    across = context_cost(h200(), job, with(1, 16, ContextMethod::ulysses));
  EXPECT_LT(inside.exposed_f + inside.exposed_b, across.exposed_f + across.exposed_b);
}

/// Every second layer attends to 1024 tokens: it computes and sends a fraction of what the others
/// do, and the mean block is between them.
TEST(ContextCost, IsTheMeanOfLayersWithAndWithoutWindows) {
  const Job whole = long_job();
  Job narrow = whole, mixed = whole;
  narrow.spec.blocks.front().window = 1024;
  mixed.spec.blocks.push_back(narrow.spec.blocks.front());
  for (const ContextMethod method :
       {ContextMethod::ring, ContextMethod::gather, ContextMethod::ulysses}) {
    const Candidate candidate = with(1, 8, method);
    const ContextCost of_whole = context_cost(h200(), whole, candidate),
                      of_narrow = context_cost(h200(), narrow, candidate),
                      of_mixed = context_cost(h200(), mixed, candidate);
    EXPECT_LT(of_narrow.seconds, 0.1 * of_whole.seconds) << name_of(method);
    EXPECT_NEAR(of_mixed.seconds, (of_whole.seconds + of_narrow.seconds) / 2,
                1e-9 * of_whole.seconds);
    if (method == ContextMethod::ulysses) {
      EXPECT_EQ(of_narrow.sent_bytes, of_whole.sent_bytes) << "heads are exchanged all the same";
    } else {
      EXPECT_LT(of_narrow.sent_bytes, of_whole.sent_bytes / 10) << name_of(method);
    }
    const ParallelPlan plan =
        make_plan(mixed.spec, {.dp = 1, .cp = 8, .context = method}, 8, mixed.seq_len);
    const auto by_block = predicted_attention(
        h200(), mixed.spec, plan, {.sequences = 1, .seq_len = mixed.seq_len}, DType::bf16);
    ASSERT_EQ(by_block.size(), 2u);
    EXPECT_LT(by_block[1].front().computed, 0.1 * by_block[0].front().computed);
  }
}

TEST(ComparedMethods, AreAllThatTheHeadsAllowAndTheFirstIsAmongTheFastest) {
  const Job job = long_job();
  const auto all = compare_methods(h200(), job, with(1, 8, ContextMethod::automatic));
  EXPECT_EQ(all.size(), 6u);
  const auto fastest = std::ranges::min(all, {}, &ContextCost::seconds);
  EXPECT_LE(all.front().seconds, 1.01 * fastest.seconds);
  const std::string why = why_method(all);
  for (const char* method : {"ring", "gather", "ulysses", "usp", "lightseq", "tokenring"}) {
    EXPECT_NE(why.find(method), std::string::npos) << why;
  }
  // One key head on each rank of tp, and five query heads, that no two ranks can divide.
  Job odd = job;
  odd.spec.heads = 40;
  const auto without = compare_methods(h200(), odd, with(8, 2, ContextMethod::automatic));
  EXPECT_EQ(without.size(), 4u);
  EXPECT_TRUE(std::ranges::none_of(without, [](const ContextCost& cost) {
    return cost.method == ContextMethod::ulysses || cost.method == ContextMethod::usp;
  }));
}

TEST(PredictedStep, OfASharedSequenceIsShorterAndCountsItsExchange) {
  const Job job = long_job();
  const auto seconds = [&](int cp, ContextMethod method, const Machine& machine) {
    const ParallelRequest request{.dp = 1, .cp = cp, .context = method};
    return predicted_step_seconds(machine, job.spec, make_plan(job.spec, request, cp, job.seq_len),
                                  {.sequences = 1, .seq_len = job.seq_len, .recompute = true},
                                  DType::bf16);
  };
  const double whole = seconds(1, ContextMethod::automatic, h200());
  EXPECT_NEAR(whole / seconds(8, ContextMethod::ring, h200()), 8.0, 0.8);
  Machine slow = h200();
  slow.links.front().bytes_per_s /= 100.0;
  EXPECT_GT(seconds(8, ContextMethod::ring, slow), 1.2 * seconds(8, ContextMethod::ring, h200()));
}

TEST(PredictedAttention, OfEveryRankEndsWithTheSlowest) {
  const Job job = long_job();
  const RunBatches batches{.sequences = 1, .seq_len = job.seq_len};
  for (const ContextMethod method : {ContextMethod::ring, ContextMethod::gather,
                                     ContextMethod::ulysses, ContextMethod::lightseq}) {
    const ParallelRequest request{.dp = 1, .cp = 8, .context = method};
    const ParallelPlan plan = make_plan(job.spec, request, 8, job.seq_len);
    const auto by_block = predicted_attention(h200(), job.spec, plan, batches, DType::bf16);
    ASSERT_EQ(by_block.size(), job.spec.blocks.size());
    const AttentionByRank& by_rank = by_block.front();
    ASSERT_EQ(by_rank.size(), 8u);
    const ContextCost cost = context_cost(h200(), job, with(1, 8, method));
    double slowest = 0;
    for (const PredictedAttention& rank : by_rank) {
      EXPECT_GT(rank.computed, 0.0);
      EXPECT_GE(std::min(rank.exposed_f, rank.exposed_b), 0.0);
      slowest = std::max(slowest, rank.computed + rank.exposed_f + rank.exposed_b);
    }
    EXPECT_LE(slowest, cost.seconds * (1 + 1e-9)) << name_of(method);
    EXPECT_GT(slowest, 0.95 * cost.seconds) << name_of(method);
  }
  const ParallelPlan alone = make_plan(job.spec, {}, 1, job.seq_len);
  EXPECT_TRUE(predicted_attention(h200(), job.spec, alone, batches, DType::bf16).empty());
}

TEST(SimulatedStep, SaysWhatAttentionWaitsForOverCp) {
  const Job job = long_job();
  const SimulatedStep step =
      simulate_step(h200(), job, {{.dp = 2, .cp = 8, .context = ContextMethod::gather, .zero = 1}});
  EXPECT_GT(step.mean.cp, 0.0);
  EXPECT_NEAR(step.mean.sum(), step.seconds, 1e-9 * step.seconds);
  const SimulatedStep whole = simulate_step(h200(), job, {{.dp = 4, .zero = 1}});
  EXPECT_EQ(whole.mean.cp, 0.0);
}

}  // namespace
}  // namespace heddle::planner
