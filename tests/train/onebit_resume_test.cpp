// What 1-bit Adam keeps from step to step, saved and restored.

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "checkpoint/reader.h"
#include "support/temporary_folder.h"
#include "train/saving.h"
#include "train/small_rank.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

constexpr std::int64_t kFreeze = 3;
constexpr int kErrors = 2;  // the state worker_error
const OptimizerConfig kOnebit = OnebitAdamConfig{.freeze_step = kFreeze};

/// Sums over all boxes that ranks write, by tensor and place.
using Sums = std::map<std::string, double>;

void add_sums(const std::vector<ParamPiece>& pieces, Sums& sums) {
  for (const ParamPiece& piece : pieces) {
    if (!piece.is_first_writer()) continue;
    for (std::int64_t row = 0; row < piece.data.size(0); ++row) {
      for (std::int64_t column = 0; column < piece.data.size(1); ++column) {
        sums[fmt::format("{} {} {}", piece.part->name, piece.begin[0] + row,
                         piece.begin[1] + column)] +=
            piece.data.data<float>()[row * piece.data.stride(0) + column];
      }
    }
  }
}

/// Trains so many steps, from a checkpoint if there is one, saves, and adds up the errors.
std::vector<double> train(const TestMesh& mesh, const std::filesystem::path& folder, int from,
                          int steps, Sums* before, Sums* after) {
  std::vector<double> losses;
  std::mutex mutex;
  run_ranks(mesh.ranks, [&](World& world) {
    Rank rank(mesh, world, kOnebit);
    if (from == 0) {
      initialize(rank.model().store(), 3, rank.stream());
    } else {
      restore_state(*open_latest(folder), rank.model(), MissingStates::are_refused, rank.stream());
    }
    const auto add = [&](Sums* sums) {
      const std::lock_guard lock(mutex);
      if (sums != nullptr) add_sums(rank.model().store().state_pieces(kErrors), *sums);
    };
    add(before);
    for (int step = from; step < from + steps; ++step) {
      const double loss = rank.train(step);
      if (world.rank() == 0) losses.push_back(loss);
    }
    add(after);
    Saving saving({.root = folder, .identity = {}}, rank.model(), world);
    saving.begin({.step = from + steps});
    saving.finish();
  });
  return losses;
}

const TestMesh kFour{"dp4", 4, {.zero = 0}};

TEST(OnebitAdamStates, GoOnToTheBitOnTheSameMeshInBothPhasesAndAcrossThem) {
  for (const TestMesh& mesh : {kFour, TestMesh{"dp2_zero1", 2, {.zero = 1}},
                               TestMesh{"dp2_tp4", 8, {.tp = 4, .zero = 1, .sequence = true}},
                               TestMesh{"dp2_pp2", 4, {.pp = 2, .zero = 0}}}) {
    const TemporaryFolder whole;
    const auto expected = train(mesh, whole.path(), 0, 8, nullptr, nullptr);
    for (const int saved : {2, 3, 5}) {
      const TemporaryFolder folder;
      auto losses = train(mesh, folder.path(), 0, saved, nullptr, nullptr);
      const auto later = train(mesh, folder.path(), saved, 8 - saved, nullptr, nullptr);
      losses.insert(losses.end(), later.begin(), later.end());
      EXPECT_EQ(losses, expected) << mesh.name << ", saved at " << saved;
    }
  }
}

TEST(OnebitAdamStates, KeepTheSumOfTheirErrorsOnAnotherMesh) {
  for (const TestMesh& mesh :
       {TestMesh{"dp2_zero1", 2, {.zero = 1}}, TestMesh{"dp2_tp2", 4, {.tp = 2, .zero = 0}},
        TestMesh{"cp2", 2, {.cp = 2, .zero = 0}}, TestMesh{"dp2_pp2", 4, {.pp = 2, .zero = 1}}}) {
    const TemporaryFolder folder;
    Sums saved, restored;
    train(kFour, folder.path(), 0, 6, nullptr, &saved);
    train(mesh, folder.path(), 6, 1, &restored, nullptr);
    ASSERT_EQ(restored.size(), saved.size()) << mesh.name;
    double largest = 0.0;
    for (const auto& [place, sum] : saved) {
      EXPECT_NEAR(restored.at(place), sum, 1e-6) << mesh.name << " " << place;
      largest = std::max(largest, std::abs(sum));
    }
    EXPECT_GT(largest, 1e-5) << "errors of zero would be kept by anything";
  }
}

TEST(OnebitAdamStates, GoOnTrainingOnOneRankAndOnMoreRanks) {
  const TemporaryFolder folder;
  const auto four = train(kFour, folder.path(), 0, 6, nullptr, nullptr);
  const auto one = train({"one", 1, {}}, folder.path(), 6, 6, nullptr, nullptr);
  const auto two = train({"dp2", 2, {.zero = 1}}, folder.path(), 12, 6, nullptr, nullptr);
  for (const double loss : one) EXPECT_LT(loss, four.front() + 0.1);
  for (const double loss : two) EXPECT_LT(loss, four.front() + 0.1);
}

// ---- Whole runs
// -------------------------------------------------------------------------------------

std::vector<std::string> onebit(std::vector<std::string> more) {
  more.insert(more.begin(), {"optim.name=onebit-adam", "train.tokens_per_step=256",
                             "optim.beta2=0.5", "parallel.zero=0"});
  return more;
}

TEST(OnebitAdamRun, ThatFreezesByItselfIsResumedToTheSameEndBitForBit) {
  const TinyRun whole, broken;
  const std::vector<std::string> settings = onebit({"optim.freeze_ratio=0.02"});
  const Outcome all = whole.train(settings, {"--ranks", "2"});
  ASSERT_EQ(all.status, 0) << all.err;
  EXPECT_NE(all.err.find("the second moment has settled"), std::string::npos) << all.err;
  // Stopped by its length behind the freeze, and continued.
  std::vector<std::string> shorter = settings;
  shorter.push_back("train.steps=8");
  shorter.push_back("optim.schedule=constant");
  std::vector<std::string> constant = settings;
  constant.push_back("optim.schedule=constant");
  const TinyRun plain;
  ASSERT_EQ(plain.train(constant, {"--ranks", "2"}).status, 0);
  ASSERT_EQ(broken.train(shorter, {"--ranks", "2"}).status, 0);
  const Outcome resumed = broken.train(constant, {"--ranks", "2"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resuming from"), std::string::npos) << resumed.err;
  expect_same_state(broken.checkpoint(10), plain.checkpoint(10));
}

TEST(OnebitAdamRun, OnOtherRanksSaysWhatBecameOfErrors) {
  const TinyRun run;
  ASSERT_EQ(run.train(onebit({"optim.freeze_step=3", "train.steps=5", "optim.schedule=constant"}),
                      {"--ranks", "4"})
                .status,
            0);
  const Outcome resumed =
      run.train(onebit({"optim.freeze_step=3", "train.steps=10", "optim.schedule=constant"}),
                {"--ranks", "2"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("worker_error of 4 ranks goes on on 2"), std::string::npos)
      << resumed.err;
}

TEST(OnebitAdamRun, RefusesToFreezeASecondMomentThatStartsAtZero) {
  const TinyRun run;
  ASSERT_EQ(run.train({"train.steps=5", "optim.schedule=constant"}).status, 0);
  const Outcome resumed =
      run.train({"optim.name=onebit-adam", "optim.freeze_step=4", "optim.schedule=constant"},
                {"--accept-changes"});
  EXPECT_EQ(resumed.status, 2) << resumed.err;
  EXPECT_NE(resumed.err.find("optim.freeze_step = 4 lies behind step 5"), std::string::npos)
      << resumed.err;
}

}  // namespace
}  // namespace heddle
