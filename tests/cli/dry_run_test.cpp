#include <chrono>

#include "cli/refusals.h"
#include "support/source_dir.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

using Words = std::vector<std::string>;

/// What `train --dry-run --json` prints.
Json dry_run(const TinyRun& run, const Words& settings, Words flags = {}, int status = 0) {
  flags.insert(flags.end(), {"--dry-run", "--json"});
  const Outcome outcome = run.train(settings, flags);
  EXPECT_EQ(outcome.status, status) << outcome.err;
  EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1) << "one line: " << outcome.out;
  return parse_json(outcome.out, "train --dry-run --json");
}

std::uint64_t reserved(const TinyRun& run, const Words& settings, const Words& flags = {}) {
  std::uint64_t most = 0;
  const Json plan = dry_run(run, settings, flags);
  for (const Json& group : plan.at("ranks")) {
    most = std::max(most, group.at("memory_bytes").at("reserved").get<std::uint64_t>());
  }
  return most;
}

TEST(DryRun, PrintsThePlanAsOneJsonObject) {
  const TinyRun run;
  const Json plan = dry_run(run, {"parallel.pp=2", "parallel.zero=1"}, {"--ranks", "4"});
  EXPECT_TRUE(plan.at("dry_run").get<bool>());
  EXPECT_TRUE(plan.at("fits").get<bool>());
  EXPECT_FALSE(plan.contains("finished"));
  EXPECT_GT(plan.at("parameters").get<std::int64_t>(), 40'000);
  EXPECT_EQ(plan.at("steps"), 10);
  EXPECT_EQ(plan.at("tokens_per_step"), 128);
  EXPECT_EQ(plan.at("microbatches"), 1);
  EXPECT_EQ(plan.at("microbatch").at("sequences"), 2);
  EXPECT_EQ(plan.at("mesh").at("dp"), 2);
  EXPECT_EQ(plan.at("mesh").at("pp"), 2);
  EXPECT_EQ(plan.at("mesh").at("schedule"), "1f1b");
  EXPECT_TRUE(plan.at("predicted_step_seconds").is_null());
  ASSERT_EQ(plan.at("ranks").size(), 2u);
  for (const Json& group : plan.at("ranks")) {
    const Json& memory = group.at("memory_bytes");
    std::uint64_t sum = 0;
    for (const Json& bytes : memory.at("at_peak")) sum += bytes.get<std::uint64_t>();
    EXPECT_EQ(sum, memory.at("peak").get<std::uint64_t>());
    EXPECT_GE(memory.at("reserved").get<std::uint64_t>(), sum);
    EXPECT_FALSE(group.at("traffic").empty());
  }
  EXPECT_EQ(plan.at("ranks").at(1).at("first_rank"), 2);
  EXPECT_EQ(plan.at("ranks").at(1).at("last_rank"), 3);
}

/// All tokens may choose the experts of one rank: what that takes is said beforehand, and a step
/// that goes beyond what is allowed ends by name.
TEST(DryRun, OfExpertsSaysWhatTheMostRowsTake) {
  const TinyRun run;
  Json config = parse_json(read_text_file(run.path() / "config.json"), "config.json");
  config.update({{"model_type", "mixtral"}, {"num_local_experts", 8}, {"num_experts_per_tok", 2}});
  run.write("config.json", config.dump());
  const auto memory = [&](const Words& settings, const char* key) {
    const Json plan = dry_run(run, settings, {"--ranks", "4"});
    return plan.at("ranks").at(0).at("memory_bytes").at(key).get<std::uint64_t>();
  };
  const Words any = {"train.microbatch=1", "parallel.ep=4"},
              some = {"train.microbatch=1", "parallel.ep=4", "parallel.ep_rows=1.5"},
              even = {"train.microbatch=1", "parallel.ep=4", "parallel.ep_rows=1"};
  EXPECT_EQ(memory(any, "peak"), memory(some, "peak"));
  EXPECT_LT(memory(some, "peak"), memory(some, "peak_at_most"));
  EXPECT_LT(memory(some, "peak_at_most"), memory(any, "peak_at_most"));
  const std::string text = run.train(any, {"--ranks", "4", "--dry-run"}).err;
  EXPECT_NE(text.find("one may receive 4 times as many (all tokens choosing its experts)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("if it receives the most rows"), std::string::npos) << text;
  EXPECT_NE(text.find("ep all_to_all: "), std::string::npos) << text;
  const Outcome ended = run.train(even, {"--ranks", "4"});
  EXPECT_EQ(ended.status, 3) << ended.err;
  EXPECT_NE(ended.err.find("block 0: rank "), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("parallel.ep_rows = 1 allows"), std::string::npos) << ended.err;
}

TEST(DryRun, OfRecomputationSaysWhatLimitsTheLength) {
  const TinyRun run;
  const auto kept = [&](const char* recompute) {
    const Json plan = dry_run(run, {std::string("train.recompute=") + recompute});
    const Json& memory = plan.at("ranks").at(0).at("memory_bytes");
    const auto bytes = memory.at("kept_for_backward").get<std::uint64_t>();
    EXPECT_GT(bytes, 0u);
    EXPECT_LE(bytes, memory.at("at_peak").at("activations").get<std::uint64_t>());
    return bytes;
  };
  EXPECT_LT(kept("block"), kept("none"));
  const auto lines = [&](const char* recompute) {
    return run.train({std::string("train.recompute=") + recompute}, {"--dry-run"}).err;
  };
  EXPECT_NE(lines("block").find("length      limited by "), std::string::npos) << lines("block");
  EXPECT_EQ(lines("none").find("length "), std::string::npos);
}

/// Whoever plans a run has not the weights yet.
TEST(DryRun, OfAModelNeedsItsConfigAlone) {
  const TinyRun run;
  std::filesystem::create_directory(run.path() / "model");
  std::filesystem::copy(run.path() / "config.json", run.path() / "model");
  const Words model = {"model.config=\"\"", "model.path=" + (run.path() / "model").string()};
  EXPECT_TRUE(dry_run(run, model).at("fits").get<bool>());
  expect_refusal(run.command(model), 5, {"neither model.safetensors nor"});
}

/// The planner has the bytes between sites from the same list of a step.
TEST(DryRun, OfSitesPredictsTheStepFromTheBytesThatItCounts) {
  const TinyRun run;
  const std::string system = source_dir() + "/configs/systems/h200-hgx-ndr.toml";
  for (const Words& mesh : {Words{}, {"parallel.pp=2"}, {"parallel.dp=2", "parallel.zero=1"}}) {
    Words settings = {"parallel.sites=2",        "outer.every=4",    "outer.fragments=2",
                      "outer.delay=1",           "outer.codec=e3m0", "train.tokens_per_step=256",
                      "observe.system=" + system};
    settings.insert(settings.end(), mesh.begin(), mesh.end());
    const Json plan = dry_run(run, settings, {"--ranks", mesh.empty() ? "2" : "4"});
    const Json& sites = plan.at("predicted_sites");
    EXPECT_GT(sites.at("utilisation").get<double>(), 0.0);
    EXPECT_LT(sites.at("utilisation").get<double>(), 1.0);
    EXPECT_GE(plan.at("predicted_step_seconds").get<double>(),
              sites.at("inner_seconds").get<double>());
    double most = 0.0;
    for (const Json& ranks : plan.at("ranks")) {
      double sent = 0.0;
      for (const Json& row : ranks.at("traffic_between_sites")) {
        sent += row.at("wire_bytes").get<double>() / 2;
      }
      most = std::max(most, sent);
    }
    EXPECT_DOUBLE_EQ(sites.at("sent_bytes_per_step").get<double>(), most / 4);
  }
}

TEST(DryRun, PredictsTheStepWhereAMachineIsNamed) {
  const TinyRun run;
  const Json plan =
      dry_run(run, {"observe.system=" + source_dir() + "/configs/systems/h200-hgx-ndr.toml"});
  EXPECT_GT(plan.at("predicted_step_seconds").get<double>(), 0.0);
}

TEST(DryRun, ThatDoesNotFitSaysSoInJsonAndEndsWithStatus3) {
  const TinyRun run;
  const Json plan = dry_run(run, {"run.memory_limit=1000000"}, {}, 3);
  EXPECT_FALSE(plan.at("fits").get<bool>());
  EXPECT_EQ(plan.at("memory_limit_bytes"), 1'000'000);
  const std::string problem = plan.at("problem");
  EXPECT_NE(problem.find("at its peak"), std::string::npos);
  EXPECT_NE(problem.find("what is kept for backward ("), std::string::npos) << problem;
  EXPECT_FALSE(plan.at("hint").get<std::string>().empty());
}

TEST(DryRun, LooksAtEveryRankOfThePipeline) {
  const TinyRun run;
  // The output projection of a large vocabulary is on the last rank only.
  const Words settings = {"parallel.pp=2", "model.vocab_size=20000"};
  const Json plan = dry_run(run, settings, {"--ranks", "2"});
  const auto bytes = [&](int group) {
    return plan.at("ranks")
        .at(static_cast<std::size_t>(group))
        .at("memory_bytes")
        .at("reserved")
        .get<std::uint64_t>();
  };
  const std::uint64_t less = std::min(bytes(0), bytes(1));
  ASSERT_LT(less, std::max(bytes(0), bytes(1)));
  Words limited = settings;
  limited.push_back("run.memory_limit=" + std::to_string(less));
  EXPECT_FALSE(dry_run(run, limited, {"--ranks", "2"}, 3).at("fits").get<bool>());
}

TEST(DryRun, TakesAsLongForAMillionMicrobatchesAsForAFew) {
  const TinyRun run;
  const Words pipelines[] = {
      {},
      {"parallel.pp=2"},
      {"parallel.pp=2", "parallel.schedule=gpipe"},
      {"parallel.pp=2", "parallel.schedule=zb-v"},
      {"parallel.pp=2", "parallel.schedule=interleaved", "parallel.chunks=2"},
      {"observe.system=" + source_dir() + "/configs/systems/h200-hgx-ndr.toml"}};
  for (Words settings : pipelines) {
    settings.push_back("train.tokens_per_step=64000000");
    settings.push_back("run.memory_limit=2000000000000");
    const bool is_pipeline = settings.front() == "parallel.pp=2";
    const auto begin = std::chrono::steady_clock::now();
    const Json plan = dry_run(run, settings, {"--ranks", is_pipeline ? "2" : "1"});
    EXPECT_EQ(plan.at("microbatches"), 1'000'000);
    // Every micro-batch played would take two minutes on a quiet machine.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  }
}

TEST(Advice, NamesAMicrobatchThatFits) {
  const TinyRun run;
  const Words large = {"train.microbatch=32", "train.tokens_per_step=1024"};
  Words limited = {"train.microbatch=8", "train.tokens_per_step=1024"};
  const auto limit = "run.memory_limit=" + std::to_string(reserved(run, limited));
  limited = large;
  limited.push_back(limit);
  const Json refused = dry_run(run, limited, {}, 3);
  const std::string hint = refused.at("hint");
  EXPECT_NE(hint.find("train.microbatch = 8 would need"), std::string::npos) << hint;
  limited[0] = "train.microbatch=8";
  EXPECT_TRUE(dry_run(run, limited).at("fits").get<bool>());
}

TEST(Advice, NamesTheZeroStageThatFits) {
  const TinyRun run;
  const Words settings = {"train.microbatch=1", "train.recompute=block", "parallel.zero=0",
                          "model.vocab_size=2000"};
  Words divided = settings;
  divided[2] = "parallel.zero=3";
  divided.push_back("run.memory_limit=" + std::to_string(reserved(run, divided, {"--ranks", "2"})));
  EXPECT_TRUE(dry_run(run, divided, {"--ranks", "2"}).at("fits").get<bool>());
  divided[2] = "parallel.zero=0";
  const std::string hint = dry_run(run, divided, {"--ranks", "2"}, 3).at("hint");
  EXPECT_NE(hint.find("parallel."), std::string::npos) << hint;
  EXPECT_NE(hint.find(" would need "), std::string::npos) << hint;
}

TEST(Advice, ForOneRankNamesHowManyWouldDo) {
  const TinyRun run;
  const Words settings = {"model.vocab_size=2000", "run.memory_limit=1500000",
                          "train.tokens_per_step=4096"};
  const std::string hint = dry_run(run, settings, {}, 3).at("hint");
  EXPECT_TRUE(hint.starts_with("--ranks ")) << hint;
  EXPECT_NE(hint.find("parallel."), std::string::npos) << hint;
}

TEST(Advice, SaysWhenNothingHelps) {
  const TinyRun run;
  const std::string hint = dry_run(run, {"run.memory_limit=1000"}, {}, 3).at("hint");
  EXPECT_NE(hint.find("data.seq_len"), std::string::npos) << hint;
}

}  // namespace
}  // namespace heddle
