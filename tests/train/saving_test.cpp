#include "train/saving.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <numeric>

#include "base/error.h"
#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "support/temporary_folder.h"
#include "support/watched_file_system.h"
#include "train/small_rank.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

const TestMesh kOne{"one", 1, {}};

void save(const fs::path& root, std::int64_t step, Rank& rank, World& world) {
  Saving saving({.root = root, .identity = {}}, rank.model(), world);
  saving.begin({.step = step});
  saving.finish();
}

/// A checkpoint of one rank after two steps.
void save_one(const fs::path& root) {
  run_ranks(1, [&](World& world) {
    Rank rank(kOne, world);
    initialize(rank.model().store(), 3, rank.stream());
    for (int step = 0; step < 2; ++step) rank.train(step);
    save(root, 2, rank, world);
  });
}

TEST(Saving, OfEveryMeshGivesTheSameFiles) {
  const TemporaryFolder folder;
  save_one(folder / "one");
  const auto expected = tensors_of(folder / "one" / "step-000002");
  ASSERT_EQ(expected.size(), 3u);
  for (const TestMesh& mesh :
       {TestMesh{"dp4", 4, {.zero = 0}}, TestMesh{"dp2_zero1", 2, {.zero = 1}},
        TestMesh{"dp4_zero3", 4, {.zero = 3}}, TestMesh{"tp4", 4, {.tp = 4}},
        TestMesh{"pp2_vocabulary", 2, {.pp = 2, .vocabulary = VocabularyPlacement::pipeline}},
        TestMesh{"dp2_tp2_replicated", 4, {.tp = 2, .vocabulary = VocabularyPlacement::replicated}},
        TestMesh{"dp2_tp2_pp2_zero2", 8, {.tp = 2, .pp = 2, .zero = 2, .sequence = true}}}) {
    run_ranks(mesh.ranks, [&](World& world) {
      Rank rank(mesh, world);
      restore_state(*open_latest(folder / "one"), rank.model(), MissingStates::are_refused,
                    rank.stream());
      save(folder / mesh.name, 2, rank, world);
    });
    EXPECT_TRUE(tensors_of(folder / mesh.name / "step-000002") == expected) << mesh.name;
    EXPECT_NO_THROW(CheckpointReader(folder / mesh.name / "step-000002")) << mesh.name;
  }
}

TEST(Saving, KeepsTheStateOfItsStepWhileTrainingGoesOn) {
  const TemporaryFolder folder;
  save_one(folder / "one");
  const TestMesh mesh{"dp2_pp2", 4, {.pp = 2, .zero = 1}};
  std::atomic<bool> may_write = false;
  WatchedFileSystem files([&](const auto&, std::size_t) { may_write.wait(false); });
  run_ranks(mesh.ranks, [&](World& world) {
    Rank rank(mesh, world);
    restore_state(*open_latest(folder / "one"), rank.model(), MissingStates::are_refused,
                  rank.stream());
    Saving saving({.root = folder / "many", .identity = {}, .files = &files}, rank.model(), world);
    rank.before_update([&] { saving.before_update(); });
    saving.begin({.step = 2});
    for (int step = 2; step < 4; ++step) {
      rank.train(step);
      EXPECT_FALSE(saving.poll()) << "nothing could be written yet";
    }
    may_write = true;
    may_write.notify_all();
    EXPECT_TRUE(saving.finish());
    EXPECT_EQ(saving.newest_step(), 2);
  });
  EXPECT_TRUE(tensors_of(folder / "many" / "step-000002") ==
              tensors_of(folder / "one" / "step-000002"));
}

TEST(Saving, IsSharedByRanksThatHoldTheSame) {
  const TemporaryFolder folder;
  for (const int zero : {0, 1}) {
    const TestMesh mesh{"dp4", 4, {.zero = zero}};
    std::array<std::atomic<std::size_t>, 4> written{};
    run_ranks(mesh.ranks, [&](World& world) {
      Rank rank(mesh, world);
      initialize(rank.model().store(), 3, rank.stream());
      auto& own = written[static_cast<std::size_t>(world.rank())];
      WatchedFileSystem files([&](const auto&, std::size_t bytes) { own += bytes; });
      Saving saving({.root = folder / std::to_string(zero), .identity = {}, .files = &files},
                    rank.model(), world);
      saving.begin({.step = 1});
      saving.finish();
    });
    const auto all =
        static_cast<double>(std::accumulate(written.begin(), written.end(), std::size_t{0}));
    // The first writes the headers too, which are much of so small a model.
    for (int rank = 1; rank < 4; ++rank) {
      const auto own = static_cast<double>(written[static_cast<std::size_t>(rank)]);
      EXPECT_LT(own, 0.3 * all) << "ZeRO " << zero << ", rank " << rank;
      EXPECT_GT(own, 0.1 * all) << "ZeRO " << zero << ", rank " << rank;
    }
  }
}

TEST(Saving, AnErrorOfOneRankIsThrownByAllAndTheCheckpointBeforeStays) {
  const TemporaryFolder folder;
  const TestMesh mesh{"dp2_pp2", 4, {.pp = 2, .zero = 1}};
  std::atomic<int> threw = 0;
  run_ranks(mesh.ranks, [&](World& world) {
    Rank rank(mesh, world);
    initialize(rank.model().store(), 3, rank.stream());
    bool is_full = false;
    WatchedFileSystem files([&](const fs::path& path, std::size_t) {
      if (is_full) fail(ErrorCode::resources, "cannot write {}: no space left", path.string());
    });
    Saving saving({.root = folder.path(), .identity = {}, .files = &files}, rank.model(), world);
    rank.before_update([&] { saving.before_update(); });
    saving.begin({.step = 1});
    saving.finish();
    is_full = world.rank() == 2;
    saving.begin({.step = 2});
    rank.train(1);
    try {
      saving.finish();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::resources);
      const std::string what = error.what();
      EXPECT_NE(what.find("checkpoint step-000002 was not written"), std::string::npos) << what;
      EXPECT_NE(what.find("no space left"), std::string::npos) << what;
      EXPECT_EQ(saving.newest_step(), 1);
      ++threw;
    }
  });
  EXPECT_EQ(threw, mesh.ranks);
  EXPECT_TRUE(list_leftovers(folder.path()).empty()) << "the space is given back";
  EXPECT_EQ(open_latest(folder.path())->manifest().step, 1);
}

TEST(Saving, ToFoldersThatRanksDoNotShareIsRefusedByName) {
  const TemporaryFolder folder;
  std::atomic<int> threw = 0;
  run_ranks(2, [&](World& world) {
    Rank rank({"dp2", 2, {}}, world);
    Saving saving({.root = folder / std::to_string(world.rank()), .identity = {}}, rank.model(),
                  world);
    saving.begin({.step = 1});
    try {
      saving.finish();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(".safetensors is not there"), std::string::npos)
          << error.what();
      EXPECT_NE(error.hint().find("a file system that all ranks share"), std::string::npos);
      ++threw;
    }
  });
  EXPECT_EQ(threw, 2);
}

}  // namespace
}  // namespace heddle
