#include "planner/search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "model/registry.h"
#include "planner/advice.h"
#include "planner/measured_rows.h"
#include "planner/plan_page.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

// The search makes and copies hundreds of thousands a second: two cache lines each, of which one is
// for routes. Their text is empty there, so a copy allocates nothing.
static_assert(sizeof(Candidate) <= 128 && std::is_nothrow_move_constructible_v<Candidate>);

Machine system(const std::string& name) {
  return read_machine(source_dir() + "/configs/systems/" + name + ".toml");
}

Job job_175b() {
  return {.spec = gpt_spec(12288, 96, 96, 2048),
          .seq_len = 2048,
          .batch = 1536,
          .stack = Stack::heddle(DType::bf16)};
}

Job small_job() {
  return {.spec = gpt_spec(2048, 16, 24, 1024),
          .seq_len = 1024,
          .batch = 64,
          .stack = Stack::heddle(DType::bf16)};
}

TEST(Search, OfALargeModelFindsPlansThatFitFastestFirst) {
  const Machine machine = system("a100-dgx-hdr");
  const Job job = job_175b();
  const SearchResult result = search(machine, job, {.gpus = 512});
  EXPECT_GT(result.evaluated, 100000u);
  ASSERT_EQ(result.best.size(), 64u);
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    const Found& found = result.best[i];
    EXPECT_LE(found.memory.total(), 0.9 * machine.device.memory_bytes);
    EXPECT_EQ(found.candidate.gpus(), 512);
    EXPECT_EQ(job.batch % (found.candidate.dp * found.candidate.sequences), 0);
    EXPECT_GE(found.time.total, result.best[i == 0 ? 0 : i - 1].time.total);
  }
  for (const Found& found : result.too_large) {
    EXPECT_GT(found.memory.total(), result.limit_bytes);
    EXPECT_LT(found.time.total, result.best.front().time.total);
  }
}

Job llama_job(std::int64_t seq_len, std::int64_t batch) {
  return {.spec = read_model_spec(source_dir() + "/configs/models/llama3-8b.json"),
          .seq_len = seq_len,
          .batch = batch,
          .stack = Stack::heddle(DType::bf16)};
}

TEST(Search, SharesSequencesOfAMillionTokensAndSaysByWhichMethod) {
  const Machine machine = system("h200-hgx-ndr");
  const Job job = llama_job(1 << 20, 4);
  const PlanReport report = make_report("llama3-8b", machine, job, {.gpus = 64});
  const Candidate& best = report.plans.front().found.candidate;
  EXPECT_GT(best.cp, 1);
  for (const Found& found : report.result.by_mesh) {
    const Candidate& plan = found.candidate;
    EXPECT_EQ(plan.tp * plan.cp * plan.pp * plan.dp, 64);
    if (plan.cp == 1) continue;
    EXPECT_NE(plan.context, ContextMethod::automatic);
    EXPECT_EQ(plan.sequences, 1);
    EXPECT_GE(job.seq_len / plan.cp, 1024);
  }
  // What a layout costs is what one that is made for it alone says.
  const Found& fastest = report.result.best.front();
  const Candidate& plan = fastest.candidate;
  const Split split = split_blocks(job, plan.schedule, plan.pp, plan.chunks, plan.vocabulary);
  EXPECT_DOUBLE_EQ(estimate_time(machine, job, plan, split, block_cost(machine, job, plan)).total,
                   fastest.time.total);
  EXPECT_GT(report.methods.size(), 3u);
  EXPECT_EQ(report.methods.front().method, best.context);
  const std::string text = report_text(report);
  EXPECT_NE(text.find(why_method(report.methods)), std::string::npos) << text;
  EXPECT_NE(text.find(why_context(report)), std::string::npos) << text;
  EXPECT_NE(plan_toml(report).find("context = \""), std::string::npos) << plan_toml(report);
  const Json json = Json::parse(report_json(report).dump(0));
  EXPECT_EQ(json.at("plans")[0].at("cp"), best.cp);
  EXPECT_EQ(json.at("context_methods").size(), report.methods.size());
  EXPECT_NE(plan_page(report).find("Attention shared by"), std::string::npos);
}

TEST(Search, SharesSequencesThatFitInNoOtherWay) {
  // Four heads: tp alone cannot divide activations far enough.
  Job job = llama_job(1 << 22, 1);
  job.spec.heads = job.spec.kv_heads = 4;
  const PlanReport report = make_report("m", system("h200-hgx-ndr"), job, {.gpus = 64});
  for (const Found& found : report.result.by_mesh) EXPECT_GT(found.candidate.cp, 1);
  EXPECT_NE(why_context(report).find("no layout fits"), std::string::npos) << why_context(report);
}

TEST(Search, LeavesShortSequencesWhole) {
  for (const std::int64_t seq_len : {2048, 8192}) {
    const PlanReport report =
        make_report("m", system("h200-hgx-ndr"), llama_job(seq_len, 512), {.gpus = 64});
    for (const Found& found : report.result.by_mesh) EXPECT_EQ(found.candidate.cp, 1);
    EXPECT_TRUE(report.methods.empty());
    EXPECT_EQ(plan_toml(report).find("cp ="), std::string::npos);
  }
}

TEST(Search, SharesShortSequencesWhereNothingElseCanBeDivided) {
  Job job = llama_job(8192, 1);
  job.spec.heads = job.spec.kv_heads = 1;
  job.spec.layers = 1;
  const SearchResult result = search(system("h200-hgx-ndr"), job, {.gpus = 8});
  ASSERT_FALSE(result.best.empty());
  EXPECT_EQ(result.best.front().candidate.cp, 8);
}

TEST(Search, DoesNotDependOnTheNumberOfThreads) {
  const Machine machine = system("a100-dgx-hdr");
  const Job job = small_job();
  const auto one = search(machine, job, {.gpus = 16}),
             three = search(machine, job, {.gpus = 16, .threads = 3});
  EXPECT_EQ(one.evaluated, three.evaluated);
  EXPECT_EQ(one.fitting, three.fitting);
  ASSERT_EQ(one.best.size(), three.best.size());
  for (std::size_t i = 0; i < one.best.size(); ++i) {
    EXPECT_EQ(describe(one.best[i].candidate), describe(three.best[i].candidate)) << i;
  }
  ASSERT_EQ(one.front.size(), three.front.size());
  for (std::size_t i = 0; i < one.front.size(); ++i) {
    EXPECT_EQ(describe(one.front[i].candidate), describe(three.front[i].candidate)) << i;
  }
  ASSERT_EQ(one.cloud.size(), three.cloud.size());
  for (std::size_t i = 0; i < one.cloud.size(); ++i) {
    EXPECT_EQ(one.cloud[i].seconds, three.cloud[i].seconds) << i;
    EXPECT_EQ(one.cloud[i].layouts, three.cloud[i].layouts) << i;
  }
}

bool is_worse(const Found& found, const Found& than) {
  return found.memory.total() >= than.memory.total() && found.time.total >= than.time.total &&
         (found.memory.total() > than.memory.total() || found.time.total > than.time.total);
}

TEST(Search, KeepsTheFrontOfTimeAgainstMemory) {
  const SearchResult result = search(system("a100-dgx-hdr"), job_175b(), {.gpus = 512});
  ASSERT_GT(result.front.size(), 10u);
  for (std::size_t i = 1; i < result.front.size(); ++i) {
    EXPECT_GT(result.front[i].memory.total(), result.front[i - 1].memory.total());
    EXPECT_LT(result.front[i].time.total, result.front[i - 1].time.total);
  }
  for (const auto* all : {&result.best, &result.by_mesh, &result.too_large}) {
    for (const Found& found : *all) {
      for (const Found& best : result.front) EXPECT_FALSE(is_worse(best, found));
    }
  }
  // The fastest that fits is on it, and what needs least memory starts it, within its classes.
  const auto fits = [&](const Found& found) { return found.memory.total() <= result.limit_bytes; };
  const auto last = std::find_if(result.front.rbegin(), result.front.rend(), fits);
  ASSERT_NE(last, result.front.rend());
  EXPECT_LE(last->time.total, 1.02 * result.best.front().time.total);
}

TEST(Search, CountsEveryLayoutInItsCloud) {
  const SearchResult result =
      search(system("a100-dgx-hdr"), small_job(), {.gpus = 16, .threads = 2});
  std::uint64_t layouts = 0;
  for (const CloudPoint& point : result.cloud) {
    layouts += point.layouts;
    const auto beats = [&](const Found& found) {
      return point.memory_bytes < 0.999999 * found.memory.total() &&
             point.seconds < 0.999999 * found.time.total;
    };
    EXPECT_TRUE(std::none_of(result.front.begin(), result.front.end(), beats));
  }
  EXPECT_EQ(layouts, result.evaluated);
  EXPECT_LT(result.cloud.size(), 10'000u);
}

TEST(Search, RefusesABatchThatNoLayoutDivides) {
  Job job = small_job();
  job.spec.layers = 3;
  job.batch = 5;
  EXPECT_THROW(search(system("a100-dgx-hdr"), job, {.gpus = 128}), Error);
}

TEST(Finalists, AreNearTheClosedFormAndTheFirstIsWithinATieOfTheFastest) {
  const Machine machine = system("a100-dgx-hdr");
  const Job job = job_175b();
  const SearchResult result = search(machine, job, {.gpus = 512});
  const auto finalists = choose_finalists(machine, job, result, 12);
  ASSERT_EQ(finalists.size(), 12u);
  double fastest = 1e9;
  for (const Finalist& one : finalists) {
    EXPECT_TRUE(one.is_simulated);
    EXPECT_NEAR(one.seconds, one.found.time.total, 0.07 * one.seconds)
        << describe(one.found.candidate);
    fastest = std::min(fastest, one.seconds);
  }
  EXPECT_LE(finalists.front().seconds, 1.02 * fastest);
}

TEST(Report, SaysHowFarAModelIsFromFitting) {
  try {
    make_report("gpt3-175b", system("a100-dgx-hdr"), job_175b(), {.gpus = 16});
    FAIL() << "175B parameters on 16 devices";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resources);
    EXPECT_NE(error.message().find("does not fit on 16 x A100"), std::string::npos) << error.what();
    EXPECT_NE(error.message().find("times the 72.0 GiB"), std::string::npos) << error.what();
    EXPECT_NE(error.hint().find("devices"), std::string::npos);
  }
}

TEST(Report, SaysWhenNoNumberOfDevicesIsEnough) {
  Machine machine = system("a100-dgx-hdr");
  machine.device.memory_bytes = 1e9;
  machine.software.reserved_bytes = 2e9;
  Job job = small_job();
  job.spec.layers = job.batch = 1;
  try {
    make_report("small", machine, job, {.gpus = 8});
    FAIL() << "reserved memory alone is more than there is";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resources);
    EXPECT_NE(error.hint().find("no number of devices is enough"), std::string::npos);
  }
}

TEST(Report, HasPlansReasonsAndARunFile) {
  const Machine machine = system("h200-hgx-ndr");
  const Job job = small_job();
  const PlanReport report = make_report("small", machine, job, {.gpus = 16});
  const Json json = parse_json(report_json(report).dump(), "report");
  ASSERT_FALSE(json.at("plans").empty());
  const Json& best = json.at("plans").front();
  EXPECT_GT(best.at("mfu").get<double>(), 0.1);
  EXPECT_LT(best.at("mfu").get<double>(), 0.8);
  EXPECT_LT(best.at("step_seconds_low").get<double>(), best.at("step_seconds").get<double>());
  EXPECT_GT(best.at("memory_bytes").at("total").get<double>(), 1e9);
  for (const Json& miss : json.at("near_misses"))
    EXPECT_NE(miss.at("reason").get<std::string>(), "");
  const std::string toml = plan_toml(report);
  EXPECT_NE(toml.find("[parallel]\ndp = "), std::string::npos) << toml;
  EXPECT_EQ(toml.find("[optim]"), std::string::npos) << toml;
  EXPECT_NE(report_text(report).find("best plan: "), std::string::npos);
}

TEST(Report, WritesTheOptimizerThatWasPlannedForWhereARunFileHasToNameIt) {
  Job job = small_job();
  job.stack = Stack::heddle(DType::bf16, Updates::muon);
  const std::string toml =
      plan_toml(make_report("small", system("h200-hgx-ndr"), job, {.gpus = 16}));
  EXPECT_NE(toml.find("[optim]\nname = \"muon\"\n\n[parallel]"), std::string::npos) << toml;
}

Finalist finalist(double seconds, int pp, int sequences) {
  Finalist made;
  made.seconds = seconds;
  made.found.candidate.pp = pp;
  made.found.candidate.sequences = sequences;
  return made;
}

TEST(Finalists, SayWhyAFasterPlanWasNotTaken) {
  const std::vector<Finalist> plans = {finalist(1.01, 2, 1), finalist(1.00, 4, 1),
                                       finalist(1.005, 2, 4), finalist(1.2, 1, 1)};
  EXPECT_EQ(why_not_taken(plans[1], plans[0]), "1.0 % faster, but pp 4 instead of 2");
  EXPECT_EQ(why_not_taken(plans[2], plans[0]), "0.5 % faster, but micro-batch 4 instead of 1");
  EXPECT_EQ(why_not_taken(plans[3], plans[0]), "");
  const std::string why = why_taken(plans);
  EXPECT_TRUE(why.starts_with("2 plans below are faster by up to 1.0 %")) << why;
  EXPECT_NE(why.find("fewest pipeline ranks"), std::string::npos) << why;
  EXPECT_EQ(why_taken({plans[1], plans[0]}), "");
}

TEST(Report, NamesTheRuleWheneverTheBestPlanStandsAboveFasterOnes) {
  const Machine machine = system("h200-hgx-ndr");
  const Job job = small_job();
  int above_faster = 0;
  for (const int gpus : {8, 16, 32, 64}) {
    const PlanReport report = make_report("small", machine, job, {.gpus = gpus});
    const std::string text = report_text(report), page = plan_page(report);
    const Json json = parse_json(report_json(report).dump(), "report");
    const bool is_fastest = std::ranges::all_of(report.plans, [&](const Finalist& plan) {
      return plan.seconds >= report.plans.front().seconds;
    });
    above_faster += is_fastest ? 0 : 1;
    EXPECT_EQ(text.find("times within 2 %") == std::string::npos, is_fastest) << text;
    EXPECT_EQ(page.find("times within 2 %") == std::string::npos, is_fastest);
    EXPECT_EQ(json.contains("taken"), !is_fastest);
    for (const Json& plan : json.at("plans")) {
      const bool is_faster = plan.at("step_seconds") < json.at("plans").at(0).at("step_seconds");
      EXPECT_EQ(plan.contains("not_taken"), is_faster);
    }
  }
  EXPECT_GT(above_faster, 0) << "no case of what this test is about";
}

TEST(PlanPage, ShowsPlansTimelineMemoryLayoutsAndCommunication) {
  const Machine machine = system("a100-dgx-hdr");
  const Job job = job_175b();
  const PlanReport report = make_report("<large>", machine, job, {.gpus = 512});
  const std::string page = plan_page(report);
  for (const char* part : {"id=\"plans\"", "id=\"timeline\"", "id=\"memory\"", "id=\"layouts\"",
                           "id=\"communication\"", "id=\"near-misses\"", "&lt;large&gt; on 512",
                           "may be used", "class=\"timeline-figure\"", "prefers-color-scheme"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  for (const auto& miss : report.near_misses) {
    EXPECT_NE(page.find(miss.reason), std::string::npos) << miss.reason;
  }
  EXPECT_EQ(page.find("<large>"), std::string::npos);
  EXPECT_LT(page.size(), 3'000'000u);
}

TEST(PlanPage, OfOneDeviceSaysThatNothingIsSent) {
  const Machine machine = system("h200-hgx-ndr");
  Job job = small_job();
  job.batch = 8;
  const std::string page = plan_page(make_report("one", machine, job, {.gpus = 1}));
  EXPECT_NE(page.find("nothing is sent"), std::string::npos);
}

TEST(Report, MapsStagesToServersWhereLinksWereMeasured) {
  Machine machine = system("a100-dgx-hdr");
  Job job = job_175b();
  machine.pairs.assign(8, std::vector<double>(8, 25e9));
  for (std::size_t i = 0; i < 8; ++i) {
    machine.pairs[i][i] = 300e9;
    for (const std::size_t slow : {(i + 1) % 8, (i + 7) % 8}) machine.pairs[i][slow] = 5e9;
  }
  job.spec.layers = 32;
  const PlanReport report = make_report("part of 175B", machine, job, {.gpus = 64});
  if (report.plans.front().found.candidate.pp > 1) {
    ASSERT_TRUE(report.mapping);
    EXPECT_LT(report.mapping->placement.seconds, report.mapping->in_order_seconds);
  }
  machine.pairs.pop_back();
  for (auto& row : machine.pairs) row.pop_back();
  EXPECT_THROW(make_report("other servers", machine, job, {.gpus = 64}), Error);
}

TEST(Advice, NamesWhatLosesAlignmentAndTheNearestBetterSize) {
  const Machine machine = system("a100-dgx-hdr");
  Job job = small_job();
  job.spec.ffn = 10922;
  job.spec.vocab = 50257;
  const auto lines = shape_advice(machine, job, {{.dp = 1}, Recompute::none, 8});
  std::string all;
  for (const auto& line : lines) all += line + "\n";
  EXPECT_NE(all.find("MLP width of 10922"), std::string::npos) << all;
  EXPECT_NE(all.find("10944 is aligned"), std::string::npos) << all;
  EXPECT_EQ(all.find("vocabulary"), std::string::npos) << all;  // Heddle pads it
  EXPECT_TRUE(shape_advice(machine, small_job(), {{.dp = 1}, Recompute::none, 8}).empty());

  job = small_job();
  job.spec.vocab = 50257;
  job.stack = Stack::megatron();
  const auto without_padding = shape_advice(machine, job, {{.dp = 1}, Recompute::none, 8});
  ASSERT_FALSE(without_padding.empty());
  EXPECT_NE(without_padding[0].find("pad it to 50304"), std::string::npos) << without_padding[0];
}

TEST(Advice, OnSizesOfHeadsComesFromWhatWasMeasured) {
  Machine machine = system("a100-dgx-hdr");
  Job job = small_job();
  job.spec.head_dim = 80;
  const auto about_heads = [&] {
    std::string all;
    for (const auto& line : shape_advice(machine, job, {{.dp = 1}, Recompute::none, 8})) {
      if (line.starts_with("heads of")) all += line;
    }
    return all;
  };
  EXPECT_NE(about_heads().find("heads of 80 run at 97 % of the rate"), std::string::npos)
      << about_heads();  // assumed, from the alignment of 16
  machine.software.attention_by_head = {{64, 0.4}, {80, 0.2}, {128, 0.5}};
  EXPECT_NE(about_heads().find("heads of 80 run at 40 % of the rate"), std::string::npos)
      << about_heads();
  machine.software.attention_by_head[1][1] = 0.49;
  EXPECT_EQ(about_heads(), "");
}

}  // namespace
}  // namespace heddle::planner
