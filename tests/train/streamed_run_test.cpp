#include <gtest/gtest.h>

#include "train/tiny_run.h"

namespace heddle {
namespace {

/// A run on text of several blocks, which is tokenized meanwhile.
class StreamedRunTest : public testing::Test {
 protected:
  void SetUp() override {
    run_.write_text();
    std::string config = read_text_file(run_.path() / "config.json");
    const std::string vocab = "\"vocab_size\":61";
    config.replace(config.find(vocab), vocab.size(), "\"vocab_size\":300");
    run_.write("config.json", config);
    ASSERT_EQ(run_heddle({"demo-text", "--out", (run_.path() / "many.jsonl").string(), "--bytes",
                          "900000", "--seed", "3"})
                  .status,
              0);
  }
  Outcome train(const std::vector<std::string>& more, const std::vector<std::string>& flags = {}) {
    std::vector<std::string> settings = {
        "data.train=" + (run_.path() / "many.jsonl").string(),
        "data.tokenizer=" + (run_.path() / "tokenizer.json").string(), "data.stream=true",
        "train.eval_every=5"};
    settings.insert(settings.end(), more.begin(), more.end());
    return run_.train(settings, flags);
  }
  TinyRun run_;
};

TEST_F(StreamedRunTest, IsTheSameWhenResumedAndOnTwoRanks) {
  const Outcome whole = train({});
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_NE(whole.err.find("trains while data is tokenized"), std::string::npos) << whole.err;
  const std::string numbers = run_.numbers();
  std::filesystem::remove_all(run_.run_folder());
  ASSERT_EQ(train({"train.steps=10", "checkpoint.every=4"}).status, 0);
  std::filesystem::remove_all(run_.checkpoint(10));
  std::filesystem::remove_all(run_.checkpoint(8));
  const Outcome resumed = train({});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(run_.numbers(), numbers);
  std::filesystem::remove_all(run_.run_folder());
  const Outcome two = train({"parallel.dp=2"}, {"--ranks", "2"});
  ASSERT_EQ(two.status, 0) << two.err;
  EXPECT_EQ(run_.metrics().size(), std::count(numbers.begin(), numbers.end(), '\n'));
}

TEST_F(StreamedRunTest, NamesFilesOfAFolderThatItLeavesOut) {
  const std::filesystem::path folder = run_.path() / "folder";
  std::filesystem::create_directory(folder);
  std::filesystem::copy(run_.path() / "many.jsonl", folder);
  run_.write("folder/tokens.bin", "abc");
  const Outcome outcome = train({"data.train=" + folder.string(), "train.steps=2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("left out: " + (folder / "tokens.bin").string()), std::string::npos)
      << outcome.err;
}

TEST_F(StreamedRunTest, IsRefusedForTokensAndForRanksThatMayGo) {
  const Outcome tokens = run_.train({"data.stream=true"});
  EXPECT_EQ(tokens.status, 2);
  EXPECT_NE(tokens.err.find("is tokenized already"), std::string::npos) << tokens.err;
  const Outcome elastic = train({"recover.elastic=true"});
  EXPECT_EQ(elastic.status, 2);
  EXPECT_NE(elastic.err.find("data.stream"), std::string::npos) << elastic.err;
}

}  // namespace
}  // namespace heddle
