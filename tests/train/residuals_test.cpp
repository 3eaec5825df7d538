#include "train/residuals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "checkpoint/reader.h"
#include "support/temporary_folder.h"
#include "train/run_state.h"
#include "train/saving.h"
#include "train/small_rank.h"

namespace heddle {
namespace {

constexpr int kSaved = 3, kAfter = 3;

TestMesh coded(int ranks, const ParallelRequest& request, const char* codec = "int4:32") {
  return {"coded", ranks, request, {.gradients = codec, .min_bytes = 0}};
}

/// All residuals of all ranks and of their sums, added up, by tensor.
class Sums {
 public:
  void add(const ParamStore& store) {
    const auto residuals = store.residuals();
    if (!residuals) return;
    const std::lock_guard lock(mutex_);
    for (const auto* pieces : {&residuals->own, &residuals->of_the_sum}) {
      for (const ParamPiece& piece : *pieces) add(piece);
    }
  }
  const std::map<std::string, std::vector<double>>& by_name() const { return by_name_; }
  double size() const {
    double squares = 0;
    for (const auto& [name, values] : by_name_) {
      for (const double value : values) squares += value * value;
    }
    return std::sqrt(squares);
  }

 private:
  void add(const ParamPiece& piece) {
    if (!piece.is_first_writer()) return;  // another rank has the same
    const Shape& whole = piece.part->whole;
    auto& sum = by_name_[piece.part->name];
    sum.resize(static_cast<std::size_t>(whole.count()), 0.0);
    ASSERT_EQ(piece.data.dims(), 2);
    for (std::int64_t row = 0; row < piece.data.size(0); ++row) {
      const Tensor values = piece.data.slice(0, row, row + 1);
      for (std::int64_t column = 0; column < piece.data.size(1); ++column) {
        const auto at = (piece.begin[0] + row) * whole[1] + piece.begin[1] + column;
        sum[static_cast<std::size_t>(at)] +=
            static_cast<double>(values.slice(1, column, column + 1).host<float>()[0]);
      }
    }
  }

  std::mutex mutex_;
  std::map<std::string, std::vector<double>> by_name_;
};

/// Trains, saves, and trains on; the losses after the checkpoint, and the residuals in it.
std::vector<double> save(const TestMesh& mesh, const std::filesystem::path& folder, Sums& sums) {
  std::vector<double> losses;
  run_ranks(mesh.ranks, [&](World& world) {
    Rank rank(mesh, world);
    initialize(rank.model().store(), 3, rank.stream());
    for (int step = 0; step < kSaved; ++step) rank.train(step);
    sums.add(rank.model().store());
    Saving saving({.root = folder, .identity = {}}, rank.model(), world);
    rank.before_update([&] { saving.before_update(); });
    saving.begin({.step = kSaved});
    for (int step = 0; step < kAfter; ++step) {
      const double loss = rank.train(kSaved + step);
      if (world.rank() == 0) losses.push_back(loss);
    }
    saving.finish();
  });
  return losses;
}

struct Resumed {
  std::vector<double> losses;
  std::string line;
};

Resumed resume(const TestMesh& mesh, const std::filesystem::path& folder, Sums& sums) {
  Resumed resumed;
  run_ranks(mesh.ranks, [&](World& world) {
    Rank rank(mesh, world);
    const auto checkpoint = open_latest(folder);
    restore_state(*checkpoint, rank.model(), MissingStates::are_refused, rank.stream());
    const Json then = checkpoint->manifest().trainer->value("residuals", Json());
    const std::string line = restore_residuals(*checkpoint, then, rank.model(), rank.stream());
    sums.add(rank.model().store());
    for (int step = 0; step < kAfter; ++step) {
      const double loss = rank.train(kSaved + step);
      if (world.rank() == 0) resumed.losses.push_back(loss);
    }
    if (world.rank() == 0) resumed.line = line;
  });
  return resumed;
}

TEST(Residuals, OfACheckpointThatIsWrittenWhileTheRunGoesOnContinueItBitForBit) {
  for (const TestMesh& mesh :
       {coded(2, {.zero = 0}), coded(2, {.zero = 1}), coded(4, {.zero = 2}), coded(2, {.zero = 3}),
        coded(4, {.tp = 2, .zero = 0, .sequence = true}), coded(4, {.pp = 2, .zero = 1}),
        coded(4, {.cp = 2, .context = ContextMethod::ring, .zero = 2})}) {
    const TemporaryFolder folder;
    Sums before, after;
    const std::vector<double> losses = save(mesh, folder.path(), before);
    const Resumed resumed = resume(mesh, folder.path(), after);
    EXPECT_GT(before.size(), 0.0);
    EXPECT_EQ(resumed.losses, losses) << "zero " << mesh.request.zero;
    EXPECT_EQ(resumed.line, "");
    EXPECT_EQ(before.by_name(), after.by_name());
  }
}

TEST(Residuals, KeepTheirSumOnAnotherMesh) {
  for (const TestMesh& other : {coded(2, {.zero = 1}), coded(2, {.zero = 0}),
                                coded(4, {.tp = 2, .zero = 3}), coded(4, {.pp = 2, .zero = 2})}) {
    const TemporaryFolder folder;
    Sums before, after;
    save(coded(4, {.zero = 0}), folder.path(), before);
    const Resumed resumed = resume(other, folder.path(), after);
    EXPECT_EQ(resumed.line,
              "residuals of gradients were those of 4 ranks and are those of 2: their sum is the "
              "same");
    for (const auto& [name, values] : before.by_name()) {
      // Tables of a tied pair that a pipeline's ends hold go plainly.
      if (!after.by_name().contains(name)) continue;
      const auto& kept = after.by_name().at(name);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(kept[i], values[i], 1e-6 * (1e-3 + std::abs(values[i]))) << name << " " << i;
      }
    }
    EXPECT_GT(after.size(), 0.0);
  }
}

TEST(Residuals, AreDealtOutToMoreRanks) {
  const TemporaryFolder folder;
  Sums before, after;
  save(coded(2, {.zero = 2}), folder.path(), before);
  EXPECT_NE(resume(coded(4, {.zero = 0}), folder.path(), after).line, "");
  EXPECT_EQ(after.by_name(), before.by_name());
}

TEST(Residuals, OfAnotherCodecBeginWithZeros) {
  const TemporaryFolder folder;
  Sums before, after;
  save(coded(2, {.zero = 1}), folder.path(), before);
  const Resumed resumed = resume(coded(2, {.zero = 1}, "int8:128"), folder.path(), after);
  EXPECT_EQ(resumed.line,
            "compress.gradients was int4:32 and is int8:128: residuals begin with zeros");
  EXPECT_EQ(after.size(), 0.0);
}

TEST(Residuals, ThatARunDoesNotHaveOrKeepAreSaid) {
  const TemporaryFolder with, without;
  Sums sums;
  const TestMesh plain{"plain", 2, {.zero = 1}};
  save(coded(2, {.zero = 1}), with.path(), sums);
  save(plain, without.path(), sums);
  EXPECT_EQ(resume(plain, with.path(), sums).line,
            "what encoding lost of gradients before is left behind: this run keeps none of it");
  EXPECT_EQ(resume(coded(2, {.zero = 1}), without.path(), sums).line,
            "the checkpoint has no residuals of gradients: they begin with zeros");
  EXPECT_EQ(resume(plain, without.path(), sums).line, "");
}

}  // namespace
}  // namespace heddle
