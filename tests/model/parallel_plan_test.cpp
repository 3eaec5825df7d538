#include "model/parallel_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "model/config_testing.h"
#include "parallel/schedule/make_schedule.h"

namespace heddle {
namespace {

/// 8 heads, 4 key heads, an MLP of 48, 4 layers.
ModelSpec llama() {
  return spec_of(with(small_config("llama"), {{"hidden_size", 32},
                                              {"num_attention_heads", 8},
                                              {"num_key_value_heads", 4},
                                              {"num_hidden_layers", 4},
                                              {"intermediate_size", 48}}));
}

TEST(ParallelPlan, TakesForDpWhatTheRanksLeave) {
  const ParallelPlan plan = make_plan(llama(), {.tp = 2, .pp = 2}, 12, 16);
  EXPECT_EQ(plan.mesh.text(), "dp=3 tp=2 pp=2");
  EXPECT_EQ(make_plan(llama(), {}, 1, 16).mesh.text(), "dp=1 tp=1 pp=1");
  EXPECT_EQ(make_plan(llama(), {.dp = 4}, 4, 16).mesh.text(), "dp=4 tp=1 pp=1");
}

TEST(ParallelPlan, DividesExpertsOverRanksOfAnyAxes) {
  const ModelSpec experts = spec_of(
      with(small_config("mixtral"), {{"num_attention_heads", 4}, {"num_key_value_heads", 4}}));
  const ParallelPlan plan = make_plan(experts, {.tp = 2, .ep = 6}, 12, 16);
  EXPECT_EQ(plan.mesh.text(), "dp=6 tp=2 pp=1 ep=6");
  EXPECT_EQ(plan.mesh.size(Axis::edp), 2);
  const auto refusal = [](const ModelSpec& spec, const ParallelRequest& request, int ranks) {
    std::string all;
    for (const RequestProblem& problem : problems_of(spec, request, ranks)) all += problem.message;
    return all;
  };
  EXPECT_EQ(refusal(llama(), {.ep = 2}, 2),
            "parallel.ep = 2 divides experts, and a llama model has none; leave it out");
  EXPECT_EQ(refusal(experts, {.ep = 4}, 4),
            "parallel.ep = 4 does not divide the model's 6 experts; use one of 1, 2, 3, 6");
  EXPECT_EQ(refusal(experts, {.pp = 2, .ep = 2}, 6),
            "parallel.ep = 2 does not divide the 3 ranks of a stage (dp x cp x tp); use one of 1, "
            "3");
  EXPECT_EQ(refusal(experts, {.ep = 0}, 4), "parallel.ep = 0; use 1 or more");
}

TEST(ParallelPlan, DoesNotCapLogitsOverThePipeline) {
  const ModelSpec spec = spec_of(small_config("gemma2"));
  const ParallelRequest request{.pp = 2, .vocabulary = VocabularyPlacement::pipeline};
  const auto problems = problems_of(spec, request, 2);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].message,
            "parallel.vocabulary = \"pipeline\" knows no cap of logits, and this gemma2 model has "
            "one of 30; use \"tensor\" or \"replicated\"");
  EXPECT_TRUE(problems_of(spec, {.pp = 2}, 2).empty());
}

TEST(ParallelPlan, DividesTheWidthOfExperts) {
  const ModelSpec experts = spec_of(
      with(small_config("mixtral"), {{"num_attention_heads", 4}, {"num_key_value_heads", 4}}));
  const ParallelPlan plan = make_plan(experts, {.tp = 2, .ep = 3, .etp = 4}, 24, 16);
  EXPECT_EQ(plan.mesh.text(), "dp=12 tp=2 pp=1 ep=3 etp=4");
  EXPECT_EQ(plan.mesh.size(Axis::edp), 2);
  const auto refusal = [](const ModelSpec& spec, const ParallelRequest& request, int ranks) {
    std::string all;
    for (const RequestProblem& problem : problems_of(spec, request, ranks)) all += problem.message;
    return all;
  };
  EXPECT_EQ(refusal(llama(), {.etp = 2}, 2),
            "parallel.etp = 2 divides experts, and a llama model has none; leave it out");
  EXPECT_EQ(refusal(experts, {.etp = 3}, 3),
            "parallel.etp = 3 does not divide the experts' width = 40; use one of 1, 2, 4, 5, 8, "
            "10, 20, 40");
  EXPECT_EQ(refusal(experts, {.ep = 2, .etp = 2}, 2),
            "parallel.ep = 2 x etp = 2 does not divide the 2 ranks of a stage (dp x cp x tp); use "
            "one of 1, 2");
  EXPECT_EQ(refusal(experts, {.ep = 2, .ep_exchange = "r=2"}, 2),
            "parallel.ep_exchange = \"r=2\": r=2 is neither 0 nor a divisor of parallel.etp = 1; "
            "use 0, 1");
  EXPECT_EQ(refusal(experts, {.ep = 2, .ep_rows = 0.5}, 2),
            "parallel.ep_rows = 0.5 allows less than an even share of the rows, so no step; use 1 "
            "or more, or 0 for any number");
  EXPECT_EQ(refusal(experts, {.ep_rows = 2}, 1),
            "parallel.ep_rows = 2 bounds what ranks that divide experts receive, and none do; set "
            "parallel.ep or parallel.etp above 1, or leave it out");
  EXPECT_EQ(refusal(experts, {.ep_exchange = "r=0"}, 1),
            "parallel.ep_exchange = \"r=0\" is for ranks that divide experts, and none do; set "
            "parallel.ep or parallel.etp above 1, or leave it out");
}

/// Two of six experts are chosen.
TEST(ParallelPlan, KnowsTheMostRowsOfARank) {
  const ModelSpec experts = spec_of(small_config("mixtral"));
  EXPECT_EQ(most_expert_rows(experts, {.ep = 2}), 2.0);
  EXPECT_EQ(most_expert_rows(experts, {.ep = 3, .etp = 2}), 3.0);
  EXPECT_EQ(most_expert_rows(experts, {.ep = 6}), 3.0) << "one of its two choices";
  EXPECT_EQ(most_expert_rows(experts, {.ep = 3, .ep_rows = 1.5}), 1.5);
  EXPECT_EQ(most_expert_rows(experts, {.ep = 3, .ep_rows = 8}), 3.0);
  EXPECT_EQ(most_expert_rows(experts, {.etp = 4}), 1.0);
}

TEST(ParallelPlan, CopiesKeyHeadsWhereTpIsMore) {
  EXPECT_EQ(make_plan(llama(), {.tp = 2}, 2, 16).mesh.size(Axis::copy), 1);
  EXPECT_EQ(make_plan(llama(), {.tp = 4}, 4, 16).mesh.size(Axis::copy), 1);
  EXPECT_EQ(make_plan(llama(), {.tp = 8}, 8, 16).mesh.size(Axis::copy), 2);
}

TEST(ParallelPlan, SplitsTokensOnlyWhereThereIsTp) {
  EXPECT_FALSE(make_plan(llama(), {.sequence = true}, 2, 16).sequence);
  EXPECT_TRUE(make_plan(llama(), {.tp = 2, .sequence = true}, 2, 16).sequence);
}

TEST(ParallelPlan, PlacesStagesAsTheScheduleDoes) {
  const ParallelPlan chain = make_plan(llama(), {.pp = 2}, 2, 16);
  EXPECT_EQ(chain.rank_of_stage, (std::vector<int>{0, 1}));
  EXPECT_EQ(chain.mesh.ends, (std::array<int, 2>{0, 1}));
  const ParallelPlan v = make_plan(llama(), {.pp = 2, .schedule = Pipeline::zb_v}, 2, 16);
  EXPECT_EQ(v.rank_of_stage, (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(v.mesh.ends, (std::array<int, 2>{0, 0}));
  EXPECT_EQ(v.stages_of(0), (std::vector<int>{0, 3}));
  EXPECT_EQ(v.stages_of(1), (std::vector<int>{1, 2}));
  const ParallelPlan loop =
      make_plan(llama(), {.pp = 2, .schedule = Pipeline::interleaved, .chunks = 2}, 2, 16);
  EXPECT_EQ(loop.rank_of_stage, (std::vector<int>{0, 1, 0, 1}));
  for (const ParallelPlan& plan : {chain, v, loop}) {
    int next = 0;
    for (const auto& [begin, end] : plan.units_of_stage) {
      EXPECT_EQ(begin, std::exchange(next, end));
    }
    EXPECT_EQ(next, unit_count(llama()));
    EXPECT_EQ(plan.units_of_stage.size(), plan.rank_of_stage.size());
  }
}

TEST(ParallelPlan, HasAValidScheduleForEveryNameAndNumberOfMicroBatches) {
  for (const std::string_view name : schedule_names()) {
    const int chunks = name == "interleaved" ? 2 : 1;
    const ParallelPlan plan =
        make_plan(llama(), {.pp = 4, .schedule = pipeline_named(name), .chunks = chunks}, 4, 16);
    for (const int microbatches : {1, 2, 5, 8}) {
      const Schedule schedule = step_schedule(plan, microbatches);
      EXPECT_TRUE(validate(schedule).empty()) << name << " " << microbatches;
      EXPECT_EQ(schedule.microbatches, microbatches);
    }
  }
}

TEST(ParallelPlan, OfASingleRankIsTheOneWithoutAxes) {
  const ParallelPlan single = single_rank_plan(llama()), made = make_plan(llama(), {}, 1, 16);
  EXPECT_EQ(single.mesh.text(), made.mesh.text());
  EXPECT_EQ(single.rank_of_stage, made.rank_of_stage);
  EXPECT_TRUE(single.units_of_stage.front() == made.units_of_stage.front());
}

std::string refusal(const ModelSpec& spec, const ParallelRequest& request, int ranks) {
  try {
    make_plan(spec, request, ranks, 16);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.what();
  }
  return "no refusal";
}

TEST(ParallelPlan, SaysWhatIsWrongAndWhatToChange) {
  EXPECT_EQ(refusal(llama(), {.tp = 3}, 3),
            "parallel.tp = 3 does not divide the model's attention heads = 8; use one of 1, 2, 4, "
            "8");
  EXPECT_EQ(refusal(llama(), {.dp = 2, .tp = 2}, 8),
            "parallel.dp 2 x tp 2 x pp 1 makes 4 ranks, but 8 are started; start 4 (--ranks 4 or "
            "the launcher), or change one of them");
  EXPECT_EQ(refusal(llama(), {.tp = 2, .pp = 2}, 6),
            "parallel.tp 2 x pp 2 = 4 does not divide the 6 ranks; use sizes whose product does, "
            "or start 4 ranks");
  EXPECT_EQ(refusal(llama(), {.pp = 5}, 5),
            "parallel.pp = 5 is more stages than the model's 4 layers; use at most 4");
  EXPECT_EQ(refusal(llama(), {.cp = 2}, 1),
            "parallel.cp 2 x tp 1 x pp 1 = 2 does not divide the 1 ranks; use sizes whose product "
            "does, or start 2 ranks");
  EXPECT_EQ(refusal(llama(), {.cp = 0}, 1), "parallel.cp = 0; use 1 or more");
  EXPECT_EQ(refusal(llama(), {.zero = 4}, 1), "parallel.zero = 4; use 0, 1, 2 or 3");
  EXPECT_EQ(refusal(llama(), {.tp = 0}, 1), "parallel.tp = 0; use 1 or more");
  EXPECT_EQ(refusal(llama(), {.pp = -1}, 1), "parallel.pp = -1; use 1 or more");
  EXPECT_NE(refusal(llama(), {.pp = 2, .chunks = 2}, 2).find("leave chunks = 1"),
            std::string::npos);
}

TEST(ParallelPlan, NamesOnlySizesOfTpThatTheWholeModelAllows) {
  const ModelSpec odd = spec_of(with(small_config("llama"), {{"hidden_size", 48},
                                                             {"num_attention_heads", 12},
                                                             {"num_key_value_heads", 4},
                                                             {"intermediate_size", 20}}));
  EXPECT_EQ(refusal(odd, {.tp = 3}, 3),
            "parallel.tp = 3 neither divides the model's key heads = 4 nor is a multiple; use one "
            "of 1, 2, 4\n  parallel.tp = 3 does not divide the model's MLP width = 20; use one of "
            "1, 2, 4");
  EXPECT_EQ(refusal(odd, {.tp = 12}, 12),
            "parallel.tp = 12 does not divide the model's MLP width = 20; use one of 1, 2, 4");
}

/// With ep or etp, tp divides the tokens that go to experts and not the experts.
TEST(ParallelPlan, NeedsATpThatDividesExpertsOnlyWhereNothingElseDoes) {
  const ModelSpec experts = spec_of(
      with(small_config("mixtral"),
           {{"num_attention_heads", 4}, {"num_key_value_heads", 4}, {"intermediate_size", 6}}));
  EXPECT_EQ(refusal(experts, {.tp = 4}, 4),
            "parallel.tp = 4 does not divide the experts' width = 6; use one of 1, 2");
  EXPECT_EQ(make_plan(experts, {.tp = 4, .ep = 2, .etp = 2}, 4, 16).mesh.text(),
            "dp=1 tp=4 pp=1 ep=2 etp=2");
  EXPECT_EQ(refusal(experts, {.tp = 3, .ep = 3}, 3),
            "parallel.tp = 3 does not divide the model's attention heads = 4; use one of 1, 2, 4");
}

TEST(ParallelPlan, NamesEverythingThatIsWrongAtOnce) {
  const std::string all = refusal(llama(), {.dp = 1, .tp = 5, .pp = 6, .zero = 7, .chunks = 2}, 4);
  for (const char* part : {"30 ranks", "attention heads = 8", "MLP width = 48", "at most 4",
                           "zero = 7", "leave chunks = 1"}) {
    EXPECT_NE(all.find(part), std::string::npos) << part << " is missing in:\n" << all;
  }
}

TEST(ParallelPlan, RefusesAttentionThatRanksOfCpCannotShare) {
  using enum ContextMethod;
  EXPECT_EQ(
      refusal(llama(), {.cp = 6, .context = ulysses}, 6),
      "parallel.context = \"ulysses\" cannot deal 8 query and 4 key heads out to parallel.cp = "
      "6 ranks; use cp = 1, 2, 4 or 8, context = \"usp\" with context_heads = 1 or 2, or "
      "context = \"ring\"");
  EXPECT_EQ(refusal(llama(), {.cp = 6, .context = usp, .context_heads = 3}, 6),
            "parallel.context_heads = 3 does not divide parallel.cp = 6 and 8 query and 4 key "
            "heads; use 1 or 2");
  EXPECT_EQ(refusal(llama(), {.cp = 2, .context = ring, .context_heads = 2}, 2),
            "parallel.context_heads = 2 is for context = \"usp\", not for parallel.context = "
            "\"ring\"; leave it out");
  EXPECT_EQ(refusal(llama(), {.cp = 2, .context = automatic, .context_heads = 2}, 2),
            "parallel.context_heads = 2 is for context = \"usp\", not for parallel.context = "
            "\"auto\"; leave it out");
  EXPECT_EQ(
      refusal(llama(), {.cp = 2, .context = lightseq, .context_order = ContextOrder::zigzag}, 2),
      "parallel.context = \"lightseq\" balances tokens in contiguous order by itself, and cannot "
      "have parallel.context_order = \"zigzag\"; use context_order = \"contiguous\", or context = "
      "\"ring\"");
  // Heads are those that tp leaves to a rank.
  EXPECT_EQ(refusal(llama(), {.tp = 4, .cp = 4, .context = ulysses}, 16),
            "parallel.context = \"ulysses\" cannot deal 2 query and 1 key heads (of each of tp = 4 "
            "ranks) out to parallel.cp = 4 ranks; use cp = 1 or 2, context = \"usp\" with "
            "context_heads = 1 or 2, or context = \"ring\"");
}

TEST(ParallelPlan, NamesAllThatIsWrongWithCpAtOnceAndWithTheRest) {
  const std::string all = refusal(llama(),
                                  {.dp = 1,
                                   .pp = 6,
                                   .cp = 3,
                                   .context = ContextMethod::lightseq,
                                   .context_order = ContextOrder::striped,
                                   .context_heads = 3,
                                   .zero = 7},
                                  4);
  for (const char* part :
       {"cp 3 x tp 1 x pp 6 makes 18 ranks", "at most 4", "context_order = \"striped\"",
        "context_heads = 3 is for context = \"usp\"", "zero = 7"}) {
    EXPECT_NE(all.find(part), std::string::npos) << part << " is missing in:\n" << all;
  }
}

TEST(ParallelPlan, IgnoresHowAttentionIsSharedWhereNobodySharesIt) {
  EXPECT_EQ(refusal(llama(), {.context = ContextMethod::usp, .context_heads = 7}, 1), "no refusal");
}

TEST(UnitCosts, AreOnePerUnitAndNothingForEmbeddingAndNorm) {
  const auto costs = unit_costs(llama(), 16);
  ASSERT_EQ(costs.size(), 7u);
  EXPECT_EQ(costs[0], 0.0);
  EXPECT_EQ(costs[5], 0.0);
  EXPECT_EQ(costs[1], costs[4]);
  EXPECT_EQ(costs[6], 2.0 * 32 * 50);
  // q, k, v and output projections, three matrices of the MLP, and attention to half the keys.
  EXPECT_EQ(costs[1], 2.0 * 32 * (32 + 16 + 16 + 32) + 3 * 2.0 * 32 * 48 + 2.0 * 32 * 16);
}

}  // namespace
}  // namespace heddle
