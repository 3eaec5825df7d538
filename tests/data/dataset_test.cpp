#include "data/dataset.h"

#include <gtest/gtest.h>

#include <map>

#include "data/test_files.h"

namespace heddle {
namespace {

std::vector<std::int32_t> values(const Tensor& tensor) {
  const auto span = tensor.host<std::int32_t>();
  return {span.begin(), span.end()};
}

class DatasetTest : public testing::Test {
 protected:
  DatasetOptions options(double holdout, DocumentMode mode = DocumentMode::ignore) {
    return {.sources = {{a_, 3.0}, {b_, 1.0}},
            .seq_len = 7,
            .seed = 5,
            .holdout = holdout,
            .documents = mode};
  }

  TemporaryFolder folder_;
  Memory memory_;
  std::filesystem::path a_ = write_counting_file(folder_ / "a.tok", {300, 200, 100}, 1000);
  std::filesystem::path b_ = write_counting_file(folder_ / "b.tok", {150, 53}, 1000);
};

TEST_F(DatasetTest, BatchesAreTheSameHoweverTheyAreCut) {
  const Dataset dataset(options(0.1));
  const Batch whole = dataset.batch(40, 12, memory_);
  std::vector<std::int32_t> pieces;
  for (std::int64_t first = 40; first < 52; first += 3) {
    const auto part = values(Dataset(options(0.1)).batch(first, 3, memory_).ids_BS);
    pieces.insert(pieces.end(), part.begin(), part.end());
  }
  EXPECT_EQ(values(whole.ids_BS), pieces);
  EXPECT_EQ(whole.target_count, 12 * 7);
}

TEST_F(DatasetTest, OrderDependsOnContentAndPlaceAndNotOnNames) {
  const auto order = [&](const std::filesystem::path& first, const std::filesystem::path& second) {
    DatasetOptions chosen = options(0.1);
    chosen.sources = {{first, 3.0}, {second, 1.0}};
    const Dataset dataset(chosen);
    std::vector<std::int64_t> begins;
    for (std::int64_t i = 0; i < 100; ++i) begins.push_back(dataset.sample(i).begin);
    return begins;
  };
  std::filesystem::create_directory(folder_ / "elsewhere");
  std::filesystem::copy_file(a_, folder_ / "elsewhere/other.tokens");
  EXPECT_EQ(order(a_, b_), order(folder_ / "elsewhere/other.tokens", b_));
  write_counting_file(b_, {600}, 1000);
  EXPECT_NE(order(a_, b_), order(b_, b_)) << "the same tokens in other documents";
}

TEST_F(DatasetTest, TrainingNeverReadsHeldOutTokens) {
  const Dataset dataset(options(0.2));
  for (std::int64_t i = 0; i < 1000; ++i) {
    const SampleOrigin origin = dataset.sample(i);
    EXPECT_LE(origin.begin + 8, dataset.splits(origin.source).train.end);
  }
}

TEST_F(DatasetTest, AccountsForEverySampleOfEverySource) {
  const Dataset dataset(options(0.1));
  std::map<int, std::int64_t> counted;
  for (std::int64_t i = 0; i < 403; ++i) ++counted[dataset.sample(i).source];
  const auto use = dataset.use(403);
  ASSERT_EQ(use.size(), 2U);
  EXPECT_EQ(use[0].samples, counted[0]);
  EXPECT_EQ(use[1].samples, counted[1]);
  EXPECT_EQ(use[0].tokens + use[1].tokens, 403 * 7);
  EXPECT_EQ(use[0].weight, 0.75);
  EXPECT_NEAR(use[1].epochs, static_cast<double>(counted[1]) / ((183 - 1) / 7), 1e-12);
}

TEST_F(DatasetTest, EvaluationScoresEveryHeldOutTokenOnce) {
  for (const double holdout : {0.1, 0.31, 1.0}) {
    const Dataset dataset(options(holdout));
    std::map<std::int32_t, int> expected, scored;
    for (int source = 0; source < 2; ++source) {
      const TokenRange part = dataset.splits(source).held_out;
      for (std::int64_t t = part.begin + 1; t < part.end; ++t) {
        ++expected[static_cast<std::int32_t>(t)];
      }
    }
    std::int64_t counted = 0;
    for (std::int64_t first = 0; first < dataset.eval_windows(); first += 4) {
      const Batch batch = dataset.eval_batch(first, 4, memory_);
      counted += batch.target_count;
      const auto ids = values(batch.ids_BS), targets = values(batch.targets_BS);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (targets[i] == kIgnoredTarget) continue;
        EXPECT_EQ(targets[i], ids[i] + 1);
        ++scored[targets[i]];
      }
    }
    EXPECT_EQ(scored, expected) << holdout;
    EXPECT_EQ(counted, dataset.splits(0).held_out.size() + dataset.splits(1).held_out.size() - 2);
  }
}

TEST_F(DatasetTest, EvaluationMasksDocumentStarts) {
  const Dataset dataset(options(1.0, DocumentMode::mask));
  std::int64_t counted = 0;
  for (std::int64_t w = 0; w < dataset.eval_windows(); ++w) {
    counted += dataset.eval_batch(w, 1, memory_).target_count;
  }
  EXPECT_EQ(counted, 600 - 3 + 203 - 2);
}

TEST_F(DatasetTest, SaysHowManyTokensAWindowNeeds) {
  auto bad = options(0.1);
  bad.seq_len = 256;
  const Error error = error_of([&] { Dataset{bad}; });
  EXPECT_EQ(error.code(), ErrorCode::data);
  EXPECT_TRUE(contains(error.what(), "b.tok: 183 tokens for training")) << error.what();
  EXPECT_TRUE(contains(error.what(), "needs 257")) << error.what();
}

TEST_F(DatasetTest, RefusesFilesOfDifferentTokenizers) {
  write_counting_file(b_, {100}, 1000, 8);
  const std::string refusal = error_of([&] { Dataset{options(0.1)}; }).what();
  EXPECT_TRUE(contains(refusal, "different tokenizers")) << refusal;
  EXPECT_TRUE(contains(refusal, "0000000000000008")) << refusal;
  write_counting_file(b_, {100}, 1000, 0);
  EXPECT_EQ(Dataset(options(0.1)).source_count(), 2) << "0: it is not known";
}

TEST_F(DatasetTest, RefusesBadOptions) {
  auto bad = options(-0.5);
  EXPECT_EQ(error_of([&] { Dataset{bad}; }).code(), ErrorCode::usage);
  bad = options(0.1);
  bad.seq_len = 0;
  EXPECT_EQ(error_of([&] { Dataset{bad}; }).code(), ErrorCode::usage);
  bad = options(0.1);
  bad.sources.clear();
  EXPECT_EQ(error_of([&] { Dataset{bad}; }).code(), ErrorCode::usage);
  bad = options(0.0001);
  EXPECT_TRUE(contains(error_of([&] { Dataset{bad}; }).what(), "evaluation needs 2"));
  write_token_file(real_file_system(), a_, {1000, 7}, {}, {});
  EXPECT_TRUE(contains(error_of([&] { Dataset{options(0.0)}; }).what(), "0 tokens for training"));
}

}  // namespace
}  // namespace heddle
