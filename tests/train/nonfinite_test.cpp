#include <gtest/gtest.h>

#include "support/occurrences.h"
#include "train/huge_weights.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// A run from finite weights whose products overflow: no step has a finite loss.
class Nonfinite : public testing::Test {
 protected:
  Nonfinite() {
    EXPECT_EQ(run_.train({"run.dir=" + origin(), "train.steps=2"}).status, 0);
    copy_with_huge(fs::path(origin()) / "checkpoints" / checkpoint_name(2), "lm_head.weight",
                   run_.path() / "huge");
  }
  std::string origin() const { return (run_.path() / "origin").string(); }
  Outcome train(const std::string& setting) const {
    return run_.train({"model.config=\"\"", "model.path=" + (run_.path() / "huge").string(),
                       "checkpoint.every=0", "train.eval_every=0", setting});
  }

  const TinyRun run_;
};

TEST_F(Nonfinite, UpdatesAreSkippedAndCountedUpToTheLimit) {
  const Outcome outcome = train("train.nonfinite_limit=3");
  EXPECT_EQ(outcome.status, 5) << outcome.err;
  EXPECT_EQ(occurrences(outcome.err, "update skipped,"), 3u) << outcome.err;
  EXPECT_NE(outcome.err.find("3 of 3 allowed"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("error: "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("optim.lr"), std::string::npos) << outcome.err;
  EXPECT_TRUE(run_.metrics().back()["loss"].is_null()) << "JSON has no NaN";
}

TEST_F(Nonfinite, StopsAtOnceWhenAskedTo) {
  const Outcome outcome = train("train.nonfinite=stop");
  EXPECT_EQ(outcome.status, 5) << outcome.err;
  EXPECT_EQ(occurrences(outcome.err, "update skipped"), 0u) << outcome.err;
}

}  // namespace
}  // namespace heddle
