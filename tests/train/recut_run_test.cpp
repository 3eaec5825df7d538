#include <gtest/gtest.h>

#include <thread>

#include "train/fake_company.h"
#include "train/model_setup.h"
#include "train/tiny_run.h"
#include "train/trainer.h"

namespace heddle {
namespace {

/// A pipeline of eight blocks over two ranks and two replicas, with made-up clocks: a pass over a
/// block takes a member as long as it is told to.
class RecutRun {
 public:
  explicit RecutRun(std::vector<std::string> settings)
      : run_({{"hidden_size", 16},
              {"intermediate_size", 24},
              {"num_hidden_layers", 8},
              {"num_attention_heads", 2},
              {"tie_word_embeddings", true}}) {
    // Without clipping no number depends on which rank has which block.
    const std::vector<std::string> usual = {"train.steps=36",     "train.tokens_per_step=256",
                                            "train.microbatch=1", "checkpoint.every=36",
                                            "parallel.zero=0",    "parallel.dp=2",
                                            "parallel.pp=2",      "train.eval_tokens=64",
                                            "optim.clip=0",       "recover.elastic=true"};
    settings.insert(settings.begin(), usual.begin(), usual.end());
    config_ = load_run(run_.path() / "run.toml", settings, kRanks).config;
    settings_ = std::move(settings);
  }

  /// `heddle plan stages` of this run.
  Outcome plan_stages(const std::filesystem::path& speeds,
                      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"plan", "stages", (run_.path() / "run.toml").string(),
                                      "--speeds", speeds.string()};
    for (const std::string& setting : settings_) words.insert(words.end(), {"--set", setting});
    words.insert(words.end(), more.begin(), more.end());
    return run_heddle(words);
  }

  /// Seconds that a pass over a block takes each member. Returns the epochs that there were.
  int train(const std::vector<double>& seconds) {
    FakeCompany company(1);
    company.expect(kRanks);
    std::vector<std::unique_ptr<FakeCompany::Seat>> seats;
    std::vector<std::thread> threads;
    for (int member = 0; member < kRanks; ++member) seats.push_back(company.seat());
    for (std::size_t member = 0; member < seats.size(); ++member) {
      threads.emplace_back(
          [&, member] { heddle::train(config_, options(seconds[member]), *seats[member]); });
    }
    for (std::thread& thread : threads) thread.join();
    return company.epochs();
  }
  void train_in_one_world(const std::vector<double>& seconds) {
    run_ranks(kRanks, [&](World& world) {
      heddle::train(config_, options(seconds[static_cast<std::size_t>(world.rank())]), world);
    });
  }

  /// What the fullest rank needs, also while members come or go.
  std::int64_t bytes() const {
    const ModelSpec spec = configured_model(config_, {});
    const ParallelPlan plan = configured_plan(config_, spec, kRanks);
    std::size_t most = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const StepPlan step = plan_rank(config_, spec, plan, rank, {});
      const auto of = [&](MemoryTag tag) {
        return step.before_step[static_cast<std::size_t>(tag)];
      };
      const std::size_t twice =
          total(step.before_step) + of(MemoryTag::parameters) + of(MemoryTag::optimizer);
      most = std::max({most, step.memory.reserved, twice});
    }
    return static_cast<std::int64_t>(most);
  }

  const TinyRun& files() const { return run_; }
  std::filesystem::path last() const { return run_.checkpoint(config_.total_steps()); }
  std::vector<double> losses() const {
    std::vector<double> losses;
    for (const Json& line : run_.metrics()) {
      if (line.contains("loss")) losses.push_back(line["loss"]);
    }
    return losses;
  }
  Json report() const {
    return parse_json(read_text_file(run_.run_folder() / "report.json"), "report");
  }

 private:
  static constexpr int kRanks = 4;

  /// Every look at the clock is so much later.
  static TrainOptions options(double seconds) {
    TrainOptions options;
    options.terminal.is_silent = true;
    options.block_clock = [seconds, looks = 0]() mutable { return seconds * ++looks; };
    return options;
  }

  TinyRun run_;
  config::RunConfig config_;
  std::vector<std::string> settings_;
};

/// Rank 3 has the second stage, with rank 2.
const std::vector<double> kEqual(4, 1.0), kSlowLast = {1.0, 1.0, 1.0, 3.0};

TEST(RecutRun, CutsStagesBySpeedsAndEndsWithTheSameWeights) {
  RecutRun undisturbed({}), run({"recover.recut=true"});
  EXPECT_EQ(undisturbed.train(kSlowLast), 1);
  EXPECT_EQ(run.train(kSlowLast), 2);
  expect_same_state(run.last(), undisturbed.last());
  EXPECT_EQ(run.losses(), undisturbed.losses());
  const Json epochs = run.report()["epochs"];
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_EQ(epochs[1]["step"], 10);
  EXPECT_EQ(epochs[1]["members"], 4);
  const std::string cause = epochs[1]["cause"];
  EXPECT_EQ(cause.find("stages are cut again: "), 0u) << cause;
  const Json speeds = run.report()["speeds"];
  ASSERT_EQ(speeds.size(), 4u);
  EXPECT_LT(speeds[3]["blocks"], speeds[0]["blocks"]) << speeds;
}

TEST(RecutRun, LeavesEqualRanksAlone) {
  RecutRun run({"recover.recut=true"});
  EXPECT_EQ(run.train(kEqual), 1);
}

/// Blocks that are wanted where there is no room for them stay where they are.
TEST(RecutRun, DoesNotMoveBlocksToWhereTheyDoNotFit) {
  RecutRun unlimited({});
  unlimited.train(kSlowLast);
  RecutRun run({"recover.recut=true", fmt::format("run.memory_limit={}", unlimited.bytes())});
  EXPECT_EQ(run.train(kSlowLast), 1);
  expect_same_state(run.last(), unlimited.last());
}

/// Whoever takes another's place has what it had and what it is given.
TEST(RecutRun, IsRefusedWhereStatesDoNotFitTwice) {
  // With few activations: what a step holds beside states is there only while no state is twice.
  const std::string few = "train.recompute=\"block\"";
  const std::string limit = fmt::format("run.memory_limit={}", RecutRun({few}).bytes() - 1024);
  RecutRun once({few, limit, "recover.elastic=false"}), twice({few, limit});
  once.train_in_one_world(kEqual);
  try {
    twice.train_in_one_world(kEqual);
    ADD_FAILURE() << "took what does not fit";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("while a lost rank is replaced"), std::string::npos)
        << error.what();
  }
}

/// What ranks tell each other reaches metrics and report, in any run.
TEST(RecutRun, RecordsWhatBlocksTakeRanks) {
  RecutRun run({"recover.elastic=false"});
  run.train_in_one_world(kSlowLast);
  int lines = 0;
  for (const Json& line : run.files().metrics()) {
    if (!line.contains("loss")) continue;
    // Forward and backward of a block are a look each.
    EXPECT_EQ(line.at("block_seconds"), (std::vector{2.0, 2.0, 2.0, 6.0}));
    ++lines;
  }
  EXPECT_EQ(lines, 36);
  const Json speeds = run.report()["speeds"];
  ASSERT_EQ(speeds.size(), 4u);
  EXPECT_EQ(speeds[3]["of_peers"], 3.0);
  EXPECT_EQ(speeds[3]["stage"], 1);
  const std::string html = read_text_file(run.files().run_folder() / "report.html");
  EXPECT_NE(html.find("id=\"speeds\""), std::string::npos);
  EXPECT_NE(html.find("rank 3 was the slowest, at 3.00"), std::string::npos);
  const std::string log = read_text_file(run.files().run_folder() / "log.txt");
  const std::string line = "rank 3 is slow: ";
  const auto found = log.find(line);
  ASSERT_NE(found, std::string::npos) << log;
  EXPECT_EQ(log.find(line, found + 1), std::string::npos) << "said twice";
}

/// How blocks lie on stages changes nothing that is computed.
TEST(RecutRun, TakesTheCutOfTheRunFile) {
  RecutRun usual({"recover.elastic=false"}),
      given({"recover.elastic=false", "parallel.cut=\"6 2\""});
  usual.train_in_one_world(kEqual);
  given.train_in_one_world(kEqual);
  expect_same_state(given.last(), usual.last());
  EXPECT_EQ(given.report()["speeds"][0]["blocks"], 6);
  EXPECT_EQ(given.report()["speeds"][3]["blocks"], 2);
}

TEST(RecutRun, PlanStagesSaysTheBetterCutAndItsGain) {
  RecutRun run({"recover.elastic=false"});
  run.train_in_one_world(kSlowLast);
  const Outcome outcome = run.plan_stages(run.files().run_folder(), {"--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json plan = parse_json(outcome.out, "stdout");
  EXPECT_EQ(plan["block_seconds"], (std::vector{2.0, 6.0}));
  EXPECT_EQ(plan["now"]["parallel.cut"], "4 4");
  EXPECT_GT(plan["gain"], 1.3);
  const std::string better = plan["better"]["parallel.cut"];
  // The slowest rank of a stage counts, three times as slow.
  EXPECT_TRUE(better == "6 2" || better == "7 1") << better;
  const Outcome text = run.plan_stages(run.files().run_folder() / "report.json");
  EXPECT_NE(text.out.find(fmt::format("[parallel]\ncut = \"{}\"\n", better)), std::string::npos)
      << text.out;
  // What it says is what a run takes, and then nothing is better.
  const Outcome again = run.plan_stages(run.files().run_folder(),
                                        {"--set", fmt::format("parallel.cut=\"{}\"", better)});
  EXPECT_NE(again.out.find("no other cut is faster"), std::string::npos) << again.out << again.err;
}

TEST(RecutRun, PlanStagesRefusesReportsWithoutSpeeds) {
  RecutRun run({"recover.elastic=false"});
  const auto refused = [&](const std::string& report) {
    run.files().write("other.json", report);
    const Outcome outcome = run.plan_stages(run.files().path() / "other.json");
    EXPECT_NE(outcome.status, 0) << outcome.out;
    return outcome.err;
  };
  EXPECT_NE(refused(R"({"loss": 1})").find("is no report of a run"), std::string::npos);
  EXPECT_NE(refused(R"({"starts": [{"ranks": 4}], "speeds": []})").find("has no speeds of ranks"),
            std::string::npos);
  EXPECT_NE(refused(R"({"starts": [{"ranks": 4}], "speeds": [{"stage": 2, "block_seconds": 1}]})")
                .find("of a pipeline of 3 ranks, and the run file's has 2"),
            std::string::npos);
}

TEST(RecutRun, RefusesCutsThatTheModelHasNot) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"6 1", "has 7 blocks in all, and the model 8"},
      {"4 2 2", "is for 3 stages, and the pipeline has 2"},
      {"six 2", "which is no number of blocks"},
      {"-1 9", "which is no number of blocks"}};
  for (const auto& [cut, message] : cases) {
    try {
      RecutRun run({fmt::format("parallel.cut=\"{}\"", cut)});
      ADD_FAILURE() << cut;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(RecutRun({"recover.recut=true", "parallel.schedule=\"routes\""}), Error);
}

}  // namespace
}  // namespace heddle
