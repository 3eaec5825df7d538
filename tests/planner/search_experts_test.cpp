// Layouts of models with experts: which ranks divide them, and how their rows meet their weights.

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/json.h"
#include "model/parallel_plan.h"
#include "model/registry.h"
#include "nn/experts/experts_pass.h"
#include "planner/collectives.h"
#include "planner/experts_cost.h"
#include "planner/gemm.h"
#include "planner/plan_page.h"
#include "planner/predicted_step.h"
#include "planner/two_level_exchange.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

struct Mixture {
  int experts = 8, per_token = 2, width = 14336;
  int hidden = 4096, layers = 32, heads = 32;
};

Job job_of(const Mixture& mixture, std::int64_t batch) {
  const Json config = {{"model_type", "mixtral"},
                       {"vocab_size", 32000},
                       {"hidden_size", mixture.hidden},
                       {"num_hidden_layers", mixture.layers},
                       {"num_attention_heads", mixture.heads},
                       {"num_key_value_heads", mixture.heads},
                       {"intermediate_size", mixture.width},
                       {"num_local_experts", mixture.experts},
                       {"num_experts_per_tok", mixture.per_token},
                       {"rope_theta", 10000.0}};
  return {.spec = model_spec(config, "config.json"),
          .seq_len = 2048,
          .batch = batch,
          .stack = Stack::heddle(DType::bf16)};
}

Machine h200() { return read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml"); }

/// Servers as they are, with a link between them that is so many times as fast.
Machine with_link(double times) {
  Machine machine = h200();
  machine.links.back().bytes_per_s *= times;
  return machine;
}

/// Ranks of ep and etp are all in one server.
bool is_near(const Machine& machine, const Candidate& plan) {
  return group_shape(machine, plan.ep * plan.etp, 1).servers() == 1;
}

TEST(SearchOfExperts, OffersNothingThatARunWouldRefuse) {
  const Job job =
      job_of({.experts = 12, .width = 3072, .hidden = 1024, .layers = 4, .heads = 8}, 64);
  const SearchResult result = search(h200(), job, {.gpus = 16});
  std::set<int> eps, etps;
  for (const auto* found : {&result.best, &result.by_mesh, &result.front}) {
    for (const Found& one : *found) {
      const auto problems = problems_of(job.spec, one.candidate, 16);
      EXPECT_TRUE(problems.empty()) << describe(one.candidate) << ": " << problems[0].message;
      eps.insert(one.candidate.ep);
      etps.insert(one.candidate.etp);
    }
  }
  // 12 experts on 16 devices.
  for (const int ep : eps) EXPECT_TRUE(ep == 1 || ep == 2 || ep == 4) << ep;
  EXPECT_GT(eps.size(), 1u);
  EXPECT_GE(*etps.begin(), 1);
  const SearchResult three = search(h200(), job, {.gpus = 16, .threads = 3});
  EXPECT_EQ(three.evaluated, result.evaluated);
  EXPECT_EQ(describe(three.best[0].candidate), describe(result.best[0].candidate));
}

/// Ranks of tp that share the tokens need not divide the width of experts.
TEST(SearchOfExperts, OffersTpThatOnlyDividedExpertsMakePossible) {
  const Job job =
      job_of({.experts = 8, .width = 3076, .hidden = 1024, .layers = 4, .heads = 8}, 64);
  const SearchResult result = search(h200(), job, {.gpus = 16});
  std::set<int> tps;
  for (const Found& one : result.by_mesh) {
    const auto problems = problems_of(job.spec, one.candidate, 16);
    EXPECT_TRUE(problems.empty()) << describe(one.candidate) << ": " << problems[0].message;
    tps.insert(one.candidate.tp);
    EXPECT_TRUE(one.candidate.tp < 8 || one.candidate.divides_experts());
  }
  EXPECT_EQ(tps, (std::set<int>{1, 2, 4, 8}));
}

TEST(SearchOfExperts, KeepsThemInAServerWhereTheLinkBetweenIsSlow) {
  const Job job = job_of({}, 256);
  const Machine slow = with_link(0.05);
  const SearchResult result = search(slow, job, {.gpus = 16});
  ASSERT_FALSE(result.best.empty());
  const Candidate& best = result.best.front().candidate;
  EXPECT_TRUE(best.divides_experts()) << describe(best);
  EXPECT_TRUE(is_near(slow, best)) << describe(best);
}

TEST(SearchOfExperts, SpreadsManyOverFastLinks) {
  const Job job = job_of({.experts = 64, .per_token = 4, .width = 2048, .layers = 16}, 256);
  const auto ep_on = [&](double times) {
    const SearchResult result = search(with_link(times), job, {.gpus = 32});
    return result.best.empty() ? 0 : result.best.front().candidate.ep;
  };
  EXPECT_LE(ep_on(0.02), 8);
  EXPECT_GT(ep_on(9), 8);
}

TEST(SearchOfExperts, FitsWhatOnlyDividedExpertsLetFit) {
  // One layer and one head: nothing else divides a block, and ZeRO-3 needs it whole for a while.
  const Job job =
      job_of({.experts = 64, .width = 16384, .hidden = 8192, .layers = 1, .heads = 1}, 8);
  const Machine machine = h200();
  const SearchResult result = search(machine, job, {.gpus = 8});
  ASSERT_FALSE(result.best.empty());
  for (const Found& found : result.best) EXPECT_TRUE(found.candidate.divides_experts());
  Candidate whole = result.best.front().candidate;
  whole.ep = whole.etp = 1;
  whole.ep_exchange = {};
  for (whole.zero = 0; whole.zero <= 3; ++whole.zero) {
    const Split split = split_blocks(job, whole.schedule, whole.pp, whole.chunks);
    EXPECT_GT(estimate_memory(machine, job, whole, split, activations(job, whole)).total(),
              result.limit_bytes);
  }
}

TEST(SearchOfExperts, PredictsWhatAPlanOfItsOwnPredicts) {
  const Job job = job_of({.layers = 8}, 128);
  const Machine machine = h200();
  const PlanReport report = make_report("mixtral", machine, job, {.gpus = 16});
  for (const Finalist& finalist : report.plans) {
    const Candidate& plan = finalist.found.candidate;
    const Split split = split_blocks(job, plan.schedule, plan.pp, plan.chunks, plan.vocabulary);
    const BlockCost block = block_cost(machine, job, plan);
    EXPECT_DOUBLE_EQ(estimate_time(machine, job, plan, split, block).total,
                     finalist.found.time.total)
        << describe(plan);
    EXPECT_DOUBLE_EQ(estimate_memory(machine, job, plan, split, activations(job, plan)).total(),
                     finalist.found.memory.total())
        << describe(plan);
  }
  // And `train` shows the same number for it.
  const Finalist& taken = report.plans.front();
  const Candidate& plan = taken.found.candidate;
  const ParallelPlan own = make_plan(job.spec, plan, plan.gpus(), job.seq_len);
  const RunBatches batches{.sequences = plan.sequences,
                           .seq_len = job.seq_len,
                           .microbatches = static_cast<int>(plan.microbatches(job)),
                           .recompute = plan.recompute == Recompute::full};
  EXPECT_DOUBLE_EQ(predicted_step_seconds(machine, job.spec, own, batches, DType::bf16),
                   taken.seconds);
}

TEST(SearchOfExperts, IsShownInAllForms) {
  const Job job = job_of({}, 256);
  const PlanReport report = make_report("mixtral", with_link(0.05), job, {.gpus = 16});
  const Candidate& best = report.plans.front().found.candidate;
  ASSERT_TRUE(best.divides_experts());
  const std::string named = "ep " + std::to_string(best.ep);
  const std::string text = report_text(report), page = plan_page(report), toml = plan_toml(report);
  EXPECT_NE(text.find(named), std::string::npos) << text;
  EXPECT_NE(text.find("times as many (all tokens choosing its experts), then"), std::string::npos)
      << text;
  EXPECT_NE(toml.find("ep = " + std::to_string(best.ep) + "\n"), std::string::npos) << toml;
  EXPECT_NE(page.find("<th class=\"n\">ep</th>"), std::string::npos);
  const Json json = Json::parse(report_json(report).dump(0));
  EXPECT_EQ(json.at("plans")[0].at("ep"), best.ep);
  EXPECT_EQ(json.at("plans")[0].at("etp"), best.etp);
  EXPECT_EQ(json.at("plans")[0].at("ep_exchange"), best.ep_exchange.plan(best.etp).text());
  EXPECT_GT(json.at("plans")[0].at("seconds").at("ep_exposed"), 0.0);
  EXPECT_GT(json.at("experts").at("memory_bytes_at_most"),
            json.at("plans")[0].at("memory_bytes").at("total"));
}

TEST(SearchOfExperts, LeavesDenseModelsAsTheyWere) {
  Job job = job_of({}, 64);
  job.spec = read_model_spec(source_dir() + "/configs/models/llama3-8b.json");
  const PlanReport report = make_report("llama", h200(), job, {.gpus = 16});
  for (const Found& found : report.result.front) EXPECT_FALSE(found.candidate.divides_experts());
  EXPECT_EQ(report_json(report).dump(0).find("\"ep"), std::string::npos);
  EXPECT_EQ(plan_page(report).find(">ep<"), std::string::npos);
}

// ---- What an exchange costs ---------------------------------------------------------------------

Candidate spread(int ep, int etp, const char* exchange = "") {
  Candidate plan{{.dp = 16, .ep = ep, .etp = etp, .ep_exchange = exchange}};
  plan.sequences = 4;
  return plan;
}

TEST(ExpertsCost, IsTheBytesOfDispatchAndCombineOverTheirLinks) {
  const Machine machine = h200();
  const Job job = job_of({}, 256);
  const Candidate plan = spread(8, 1);
  const DryBlocks dry = dry_blocks(job, plan);
  // moe.md 2.3: K rows of a token there and back, and counts of all ranks for all experts.
  const double rows = 4.0 * 2048 * 2, bytes = rows * 4096 * 2;
  const GroupShape group{8, 8};
  const double way = collective_seconds(machine, CommOp::all_to_all, group, bytes);
  const double counts = collective_seconds(machine, CommOp::all_gather, group, 8 * 9 * 4);
  const ExpertsCost cost = experts_cost(machine, job, plan, dry);
  EXPECT_NEAR(cost.exposed_f, 2 * way + counts, 1e-12);
  const double numbers = collective_seconds(machine, CommOp::all_to_all, group, rows * 4);
  EXPECT_NEAR(cost.exposed_b, 2 * way + 2 * numbers, 1e-12);
  EXPECT_NEAR(cost.again, way, 1e-12);  // neither counts nor outputs
  // Over two servers half of it leaves, each rank's by its own adapter.
  const Candidate far = spread(16, 1);
  Job sixteen = job;
  sixteen.spec.experts->count = 16;
  const ExpertsCost slower = experts_cost(machine, sixteen, far, dry_blocks(sixteen, far));
  EXPECT_GT(slower.exposed_f, 2 * linear_exchange_seconds(exchange_network(machine, 2, 8), bytes));
  EXPECT_GT(slower.exposed_f, 4 * cost.exposed_f);
}

TEST(ExpertsCost, OfPiecesHidesWhatComputationCovers) {
  const Machine machine = h200();
  const Job job = job_of({}, 256);
  const DryBlocks dry = dry_blocks(job, spread(8, 1));
  const auto exposed = [&](const char* exchange) {
    return experts_cost(machine, job, spread(8, 1, exchange), dry).exposed_f;
  };
  EXPECT_LT(exposed("degree=2"), exposed(""));
  EXPECT_GT(exposed("degree=2"), 0.4 * exposed(""));
  Candidate waits = spread(8, 1, "degree=2");
  waits.overlap = false;
  EXPECT_GE(experts_cost(machine, job, waits, dry).exposed_f, exposed(""));
  const ExchangeRequest chosen = fastest_exchange(machine, job, spread(8, 1), dry);
  EXPECT_LE(experts_cost(machine, job, spread(8, 1, chosen.text().c_str()), dry).exposed_f,
            std::min({exposed(""), exposed("degree=2"), exposed("degree=4"), exposed("degree=8")}));
}

/// Ranks of etp share a server, those of ep do not: both networks and products overlap as the list
/// of the pass says.
TEST(ExpertsCost, IsTheRecurrenceOfAPassOverTwoNetworks) {
  Machine machine = h200();
  machine.software.contention = 0.0;
  const Job job = job_of({.experts = 2}, 256);
  const auto candidate = [&](const char* exchange) { return spread(2, 8, exchange); };
  const DryBlocks dry = dry_blocks(job, candidate(""));
  const double tokens = 4.0 * 2048, rows = tokens * 2, bytes = rows * 4096 * 2;
  const auto product = [&](double m, double n, double k, double inputs) {
    return gemm_seconds(machine.device, machine.device.matrix_rate(DType::bf16), 2,
                        {m, n, k, 1, inputs});
  };
  const double width = 14336 / 8.0;
  const auto chunk = [&](int degree, bool is_backward) {
    const GroupShape within{8, 8};
    const auto far = [&](double moved) {
      return linear_exchange_seconds(exchange_network(machine, 2, 1, 8), moved / degree);
    };
    const auto near = [&](double moved) {
      return collective_seconds(machine, CommOp::all_to_all, within, 8 * moved / degree);
    };
    // In backward the weight of each choice goes along.
    const double m = 8 * rows / degree, numbers = is_backward ? rows * 4 : 0.0;
    const double n = numbers > 0.0 ? near(numbers) : 0.0;
    ExpertsSeconds seconds{
        .exchange = far(bytes) + (numbers > 0.0 ? far(numbers) : 0.0),
        .gather = near(bytes) + n,
        .expert = product(m, 2 * width, 4096, 4096) + product(m, 4096, width, width),
        .scatter = near(bytes) + n};
    if (is_backward) {
      seconds.expert = product(m, 4096, 2 * width, 4096) + product(m, width, 4096, width);
      seconds.weights =
          product(4096, 2 * width, 8 * rows, 4096) + product(width, 4096, 8 * rows, width);
    }
    return seconds;
  };
  const double counts =
      collective_seconds(machine, CommOp::all_gather, group_shape(machine, 2, 8), 2 * 3 * 4) +
      collective_seconds(machine, CommOp::all_gather, GroupShape{8, 8}, 16 * 3 * 4);
  for (const bool has_one_network : {false, true}) {
    const std::string named = std::string("degree=4/2") + (has_one_network ? " networks=1" : "");
    const ExpertsCost cost = experts_cost(machine, job, candidate(named.c_str()), dry);
    const ExpertsSeconds forward = chunk(4, false), backward = chunk(2, true);
    EXPECT_NEAR(
        cost.exposed_f,
        makespan(make_experts_pass({.degree = 4, .has_one_network = has_one_network}), forward) -
            chunk(1, false).expert + counts,
        1e-9);
    const ExpertsSeconds whole = chunk(1, true);
    EXPECT_NEAR(
        cost.exposed_b,
        makespan(make_experts_pass(
                     {.degree = 2, .has_one_network = has_one_network, .makes_weights = true}),
                 backward) -
            whole.expert - whole.weights,
        1e-9);
  }
}

/// Of all degrees, forward's and backward's apart, none is faster than those that are planned.
TEST(ExpertsCost, DegreesAreTheFastestOfEachPass) {
  const Job job = job_of({}, 256);
  std::set<std::string> chosen;
  for (const double times : {0.02, 0.2, 1.0, 5.0}) {
    const Machine machine = with_link(times);
    const DryBlocks dry = dry_blocks(job, spread(2, 8));
    const auto seconds = [&](const ExchangeRequest& exchange) {
      Candidate plan = spread(2, 8);
      plan.ep_exchange = exchange;
      const ExpertsCost cost = experts_cost(machine, job, plan, dry);
      return cost.exposed_f + cost.exposed_b;
    };
    const ExchangeRequest planned =
        with_fastest_degrees(machine, job, spread(2, 8, "degree=planned networks=1"), dry);
    EXPECT_FALSE(planned.leaves_degrees());
    EXPECT_EQ(planned.plan(8).networks, 1);
    chosen.insert(planned.text());
    for (const int forward : {1, 2, 4, 8}) {
      for (const int backward : {1, 2, 4, 8}) {
        EXPECT_LE(seconds(planned), seconds(planned.with_degrees(forward, backward)))
            << planned.text() << " against " << forward << "/" << backward;
      }
    }
  }
  EXPECT_GT(chosen.size(), 1u);
}

TEST(ExpertsCost, TakesTwoLevelsForManySmallMessages) {
  Machine machine = h200();
  machine.links.back().latency_s = 1e-3;
  Job job = job_of({.experts = 32, .width = 64, .hidden = 256, .heads = 4}, 256);
  const Candidate plan = spread(32, 1);
  const ExchangePlan chosen =
      fastest_exchange(machine, job, plan, dry_blocks(job, plan)).plan(plan.etp);
  EXPECT_EQ(chosen.node, 8);
}

}  // namespace
}  // namespace heddle::planner
