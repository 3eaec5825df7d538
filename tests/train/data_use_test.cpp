#include <gtest/gtest.h>

#include "train/tiny_run.h"

namespace heddle {
namespace {

bool says(const Outcome& outcome, const std::string& text) {
  return outcome.err.find(text) != std::string::npos;
}

// 6000 tokens of which a tenth is held out: 168 windows; a step takes 4.
TEST(DataUse, IsShownInEpochs) {
  const TinyRun run;
  const Outcome less = run.train({"train.steps=21"}, {"--dry-run"});
  EXPECT_TRUE(says(less, "0.5 epochs\n")) << less.err;
  const Outcome more = run.train({"train.steps=84"}, {"--dry-run"});
  EXPECT_TRUE(says(more, "2 epochs (read more than once)")) << more.err;
  EXPECT_FALSE(says(more, "warning")) << more.err;
}

TEST(DataUse, WarnsAboutTextReadTooOftenByName) {
  const TinyRun run;
  const Outcome outcome = run.train({"train.steps=420"}, {"--dry-run"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(says(outcome, "data.tokens is read 10 times")) << outcome.err;
}

TEST(DataUse, IsShownForEachSourceOfAMixture) {
  const TinyRun run;
  run.use_two_sources();
  const Outcome outcome = run.train({"train.steps=280"}, {"--dry-run"});
  EXPECT_TRUE(says(outcome, "data: 75.0 % of the samples, 5 epochs")) << outcome.err;
  EXPECT_TRUE(says(outcome, "other: 25.0 % of the samples, 1.67 epochs")) << outcome.err;
  EXPECT_TRUE(says(outcome, "data is read 5 times")) << outcome.err;
  EXPECT_FALSE(says(outcome, "other is read")) << outcome.err;
}

}  // namespace
}  // namespace heddle
