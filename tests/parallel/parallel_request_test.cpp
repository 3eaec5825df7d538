#include "parallel/parallel_request.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(ParallelRequest, ThatSaysNothingDividesNothing) {
  const ParallelRequest none;
  EXPECT_EQ(none.ranks(), 1);
  EXPECT_EQ(none.zero, 0);
  EXPECT_FALSE(none.sequence);
  EXPECT_TRUE(problems_of(none, 1).empty());
}

TEST(ParallelRequest, LeavesToDpWhatTheOtherAxesDoNotTake) {
  EXPECT_EQ((ParallelRequest{.tp = 2, .pp = 3}.replicas_on(24)), 4);
  EXPECT_EQ((ParallelRequest{.dp = 2, .tp = 2, .pp = 3}.replicas_on(24)), 2);
  EXPECT_EQ((ParallelRequest{.tp = 8}.replicas_on(4)), 1);
  constexpr int kMost = 1 << 20;  // of each axis in the run file
  EXPECT_EQ((ParallelRequest{.tp = kMost, .pp = kMost}.replicas_on(4)), 1);
  EXPECT_EQ((ParallelRequest{.dp = kMost, .tp = kMost, .pp = kMost}.ranks()),
            std::int64_t{1} << 60);
}

TEST(ParallelRequest, CountsTheRanksOfAllSites) {
  EXPECT_EQ((ParallelRequest{.sites = 3, .dp = 2, .tp = 2}.ranks()), 12);
  EXPECT_EQ((ParallelRequest{.sites = 3, .tp = 2}.replicas_on(24)), 4);
  const auto problems = problems_of({.sites = 3, .dp = 2}, 4);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_TRUE(
      problems[0].message.starts_with("parallel.sites 3 x dp 2 x tp 1 x pp 1 makes 6 ranks"))
      << problems[0].message;
}

TEST(ParallelRequest, IsRefusedWithTheKeysThatItIsAbout) {
  const auto problems =
      problems_of({.dp = 2, .cp = 2, .chunks = 2, .vocabulary = VocabularyPlacement::pipeline}, 3);
  std::vector<std::string> keys, messages;
  for (const RequestProblem& problem : problems) {
    keys.push_back(problem.keys.front());
    messages.push_back(problem.message);
  }
  EXPECT_EQ(keys,
            (std::vector<std::string>{"parallel.chunks", "parallel.vocabulary", "parallel.dp"}));
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[2],
            "parallel.dp 2 x cp 2 x tp 1 x pp 1 makes 4 ranks, but 3 are started; start 4 "
            "(--ranks 4 or the launcher), or change one of them");
}

TEST(ParallelRequest, HasANameForEveryPlaceOfTheVocabulary) {
  EXPECT_EQ(name_of(VocabularyPlacement::replicated), "replicated");
  EXPECT_EQ(name_of(VocabularyPlacement::tensor), "tensor");
  EXPECT_EQ(name_of(VocabularyPlacement::pipeline), "pipeline");
  EXPECT_EQ(vocabulary_names().size(), 3u);
}

TEST(ParallelRequest, SplitsTheVocabularyInTheScheduleOnlyWhereItAsksForThat) {
  ParallelRequest request{.pp = 2, .vocabulary_algorithm = 1};
  EXPECT_EQ(step_schedule(request, 3).vocabulary, 0);
  request.vocabulary = VocabularyPlacement::pipeline;
  EXPECT_EQ(step_schedule(request, 3).vocabulary, 1);
  EXPECT_EQ(step_schedule(request, 3).microbatches, 3);
}

}  // namespace
}  // namespace heddle
