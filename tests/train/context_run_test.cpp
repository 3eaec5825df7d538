#include <gtest/gtest.h>

#include "train/tiny_run.h"

// Training of packed documents whose tokens ranks share, as the program does it.

namespace heddle {
namespace {

struct SharedRun {
  int ranks;
  std::vector<std::string> settings;
};

/// Steps, losses and losses of evaluations of a run.
std::vector<std::pair<std::string, double>> losses_of(const TinyRun& run) {
  std::vector<std::pair<std::string, double>> losses;
  for (const Json& line : run.metrics()) {
    for (const char* key : {"loss", "eval_loss"}) {
      if (!line.contains(key)) continue;
      losses.emplace_back(key + std::string(" of step ") + line.at("step").dump(),
                          line.at(key).get<double>());
    }
  }
  return losses;
}

TEST(ContextRun, HasLossesAndEvaluationsOfOneRank) {
  const std::vector<std::string> common = {"data.documents=mask", "train.eval_every=3",
                                           "parallel.zero=1"};
  const TinyRun whole;
  const Outcome alone = whole.train(common);
  ASSERT_EQ(alone.status, 0) << alone.err;
  const auto expected = losses_of(whole);
  ASSERT_GE(expected.size(), 13u);  // ten steps and three evaluations
  for (auto& [ranks, settings] : std::vector<SharedRun>{
           {2, {"parallel.cp=2"}},
           {3, {"parallel.cp=3", "parallel.context=lightseq"}},
           {4, {"parallel.cp=2", "parallel.tp=2", "parallel.context=tokenring"}},
           {5, {"parallel.cp=5", "parallel.context=ring", "parallel.context_order=striped"}},
           {4, {"parallel.cp=2", "parallel.dp=2", "parallel.context=gather"}},
           {4, {"parallel.cp=4", "parallel.context=usp", "parallel.context_heads=2"}}}) {
    settings.insert(settings.end(), common.begin(), common.end());
    const TinyRun run;
    const Outcome shared = run.train(settings, {"--ranks", std::to_string(ranks)});
    ASSERT_EQ(shared.status, 0) << shared.err;
    const auto losses = losses_of(run);
    ASSERT_EQ(losses.size(), expected.size());
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_EQ(losses[i].first, expected[i].first);
      EXPECT_NEAR(losses[i].second, expected[i].second, 2e-5)
          << settings[0] << " " << settings[1] << ", " << losses[i].first;
    }
  }
}

}  // namespace
}  // namespace heddle
