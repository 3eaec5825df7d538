#include <gtest/gtest.h>

#include "support/source_dir.h"
#include "train/tiny_run.h"

// What report.json and report.html say of attention that ranks share, as the program writes it.

namespace heddle {
namespace {

constexpr int kLayers = 2, kHeads = 4, kSequences = 4, kSeqLen = 32;  // of TinyRun, in a step
constexpr std::int64_t kPairs =
    std::int64_t{kLayers} * kHeads * kSequences * kSeqLen * (kSeqLen + 1) / 2;

Json report_of(const TinyRun& run, int ranks, std::vector<std::string> settings) {
  settings.insert(settings.end(), {"train.steps=3", "data.documents=ignore"});
  const Outcome outcome = run.train(settings, {"--ranks", std::to_string(ranks)});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return read_json_file(run.run_folder() / "report.json");
}

double seconds(const Json& passes) {
  return passes.at("forward").get<double>() + passes.at("backward").get<double>();
}

/// EXPECTs what holds on every mesh: each layer once, each rank once, and sums that agree.
void expect_consistent(const Json& attention, int ranks, int ranks_of_a_layer) {
  ASSERT_EQ(attention.at("by_layer").size(), std::size_t{kLayers});
  ASSERT_EQ(attention.at("by_rank").size(), static_cast<std::size_t>(ranks));
  double by_layer = 0, by_rank = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    const Json& row = attention.at("by_layer").at(static_cast<std::size_t>(layer));
    EXPECT_EQ(row.at("layer"), layer);
    const double mean = seconds(row.at("exposed_seconds"));
    EXPECT_GE(mean, 0.0);
    EXPECT_GE(row.at("most_exposed_seconds").get<double>(), mean * (1 - 1e-9));
    by_layer += ranks_of_a_layer * mean;
  }
  std::int64_t pairs = 0, predicted_pairs = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Json& row = attention.at("by_rank").at(static_cast<std::size_t>(rank));
    EXPECT_EQ(row.at("rank"), rank);
    EXPECT_GT(row.at("computed_seconds").get<double>(), 0.0);
    const double exposed = row.at("exposed_seconds").get<double>();
    EXPECT_GE(row.at("idle_seconds").get<double>(), exposed - 1e-12);
    by_rank += exposed;
    pairs += row.at("pairs").get<std::int64_t>();
    predicted_pairs += row.at("predicted_pairs").get<std::int64_t>();
  }
  EXPECT_NEAR(by_rank, by_layer, 1e-9 * by_layer);
  EXPECT_EQ(pairs, kPairs);
  EXPECT_EQ(predicted_pairs, kPairs);
  EXPECT_GE(attention.at("exposed_fraction").get<double>(), 0.0);
  EXPECT_GE(attention.at("idle_fraction"), attention.at("exposed_fraction"));
  EXPECT_LT(attention.at("idle_fraction").get<double>(), 1.0);
}

TEST(AttentionReport, HasEveryLayerAndRankOnceWithSumsThatAgree) {
  const TinyRun ring;
  const Json attention =
      report_of(ring, 4, {"parallel.cp=4", "parallel.context=ring"}).at("attention");
  EXPECT_EQ(attention.at("method"), "ring");
  EXPECT_EQ(attention.at("order"), "zigzag");
  EXPECT_EQ(attention.at("cp"), 4);
  expect_consistent(attention, 4, 4);
  for (const Json& row : attention.at("by_rank")) EXPECT_EQ(row.at("pairs"), kPairs / 4);
  EXPECT_TRUE(attention.at("by_layer").at(0).at("predicted_exposed_seconds").is_null());
  EXPECT_TRUE(attention.at("by_rank").at(0).at("predicted").is_null());
  const std::string page = read_text_file(ring.run_folder() / "report.html");
  for (const char* part : {"id=\"attention\"", "layer 1", "rank 3", "Balance by rank"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
}

TEST(AttentionReport, OfOtherAxesBesideCpCountsEachLayerWhereItIs) {
  const TinyRun run;
  const Json attention = report_of(run, 8,
                                   {"parallel.cp=2", "parallel.pp=2", "parallel.tp=2",
                                    "parallel.context=ulysses", "train.recompute=block"})
                             .at("attention");
  EXPECT_EQ(attention.at("method"), "ulysses");
  expect_consistent(attention, 8, 4);
}

TEST(AttentionReport, PutsWhatTheMachineFilePredictsBesideIt) {
  const TinyRun run;
  const Json attention =
      report_of(
          run, 4,
          {"parallel.cp=4", "parallel.context=lightseq",
           fmt::format("observe.system=\"{}/configs/systems/h200-hgx-ndr.toml\"", source_dir())})
          .at("attention");
  expect_consistent(attention, 4, 4);
  double by_layer = 0, by_rank = 0;
  for (const Json& row : attention.at("by_layer")) {
    by_layer += 4 * seconds(row.at("predicted_exposed_seconds"));
  }
  for (const Json& row : attention.at("by_rank")) {
    EXPECT_GT(row.at("predicted").at("computed_seconds").get<double>(), 0.0);
    by_rank += row.at("predicted").at("exposed_seconds").get<double>();
  }
  EXPECT_GT(by_layer, 0.0);
  EXPECT_NEAR(by_rank, by_layer, 1e-9 * by_layer);
}

TEST(AttentionReport, CountsOnlyPairsWithinDocuments) {
  const TinyRun run;
  const Outcome outcome =
      run.train({"train.steps=5", "data.documents=mask", "parallel.cp=2"}, {"--ranks", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("attention over cp waited"), std::string::npos) << outcome.err;
  const Json attention = read_json_file(run.run_folder() / "report.json").at("attention");
  std::int64_t pairs = 0;
  for (const Json& row : attention.at("by_rank")) pairs += row.at("pairs").get<std::int64_t>();
  EXPECT_GT(pairs, kPairs / 2);
  EXPECT_LT(pairs, kPairs);  // documents have 100 tokens, and sequences 32
}

TEST(AttentionReport, IsAbsentWhereRanksShareNoAttention) {
  const TinyRun run;
  EXPECT_TRUE(report_of(run, 2, {"parallel.tp=2"}).at("attention").is_null());
  EXPECT_EQ(read_text_file(run.run_folder() / "report.html").find("id=\"attention\""),
            std::string::npos);
}

}  // namespace
}  // namespace heddle
