// Two processes of the program as torchrun starts them, each with settings of its own.

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

#include "comm/tcp_listener.h"
#include "support/source_dir.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

using Settings = std::vector<std::string>;

/// The outcomes of rank 0, which has the run file's settings, and rank 1, which has `other` too.
std::array<Outcome, 2> train_two(const TinyRun& run, const Settings& other) {
  const TcpListener free = listen_on(0, 1);
  ::close(free.socket);
  std::array<std::future<Outcome>, 2> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    const RunOptions options{.environment = {{"RANK", std::to_string(rank)},
                                             {"LOCAL_RANK", std::to_string(rank)},
                                             {"WORLD_SIZE", "2"},
                                             {"MASTER_ADDR", "127.0.0.1"},
                                             {"MASTER_PORT", std::to_string(free.port - 1)}}};
    ranks[static_cast<std::size_t>(rank)] = std::async(std::launch::async, [&, rank, options] {
      return run.train(rank == 0 ? Settings{} : other, {}, options);
    });
  }
  return {ranks[0].get(), ranks[1].get()};
}

/// Both end with 2, the first says why, and nothing is left of the run.
void expect_both_refused(const TinyRun& run, const Settings& other, const Settings& mentions) {
  const auto [first, second] = train_two(run, other);
  EXPECT_EQ(first.status, 2) << first.err;
  EXPECT_EQ(second.status, 2) << second.err;
  for (const std::string& text : mentions) {
    EXPECT_NE(first.err.find(text), std::string::npos) << "no \"" << text << "\" in\n" << first.err;
  }
  EXPECT_EQ(second.err.find("error"), std::string::npos) << "said once\n" << second.err;
  EXPECT_FALSE(fs::exists(run.run_folder() / "run.toml")) << "nothing was started";
}

TEST(RanksStartedDifferently, AreRefusedWithEveryKeyAndBothValues) {
  const TinyRun run;
  Json model = parse_json(read_text_file(run.path() / "config.json"), "config.json");
  model["rope_theta"] = 500000.0;
  run.write("other.json", model.dump());
  expect_both_refused(
      run,
      {"optim.lr=0.001", "data.seed=3", "train.recompute=block", "checkpoint.every=3",
       "model.config=" + (run.path() / "other.json").string(),
       "data.tokenizer=" + source_dir() + "/tests/reference/tokenizer/tokenizer.json"},
      {"rank 1 has optim.lr = 0.001, rank 0 has 0.003", "data.seed = 3, rank 0 has 0",
       "train.recompute = \"block\", rank 0 has \"none\"", "checkpoint.every = 3",
       "model rope_theta = 500000, rank 0 has 10000", "rank 1 has tokenizer = xxh64",
       "start all ranks with the same run file"});
}

TEST(RanksStartedDifferently, AreRefusedBeforeTheirMeshesWouldMeet) {
  const TinyRun run;
  expect_both_refused(run, {"parallel.tp=2"},
                      {"rank 1 has parallel.tp = 2, rank 0 has 1", "parallel.dp"});
}

TEST(RanksStartedDifferently, AreRefusedWithOtherData) {
  const TinyRun run;
  run.write_tokens("other.tokens", 2);
  expect_both_refused(run, {"data.train=" + (run.path() / "other.tokens").string()},
                      {"rank 1 has data.train = 6,000 tokens, xxh64"});
}

TEST(RanksStartedDifferently, AreRefusedWithRunFoldersOfTheirOwn) {
  const TinyRun run;
  const auto [first, second] = train_two(run, {"run.dir=" + (run.path() / "other").string()});
  EXPECT_EQ(first.status, 2) << first.err;
  EXPECT_EQ(second.status, 2) << second.err;
  EXPECT_NE((first.err + second.err).find("rank 1 does not see what rank 0 has in the run folder"),
            std::string::npos)
      << first.err << second.err;
  EXPECT_FALSE(fs::exists(run.run_folder() / "run.toml")) << "nothing was started";
}

TEST(RanksStartedDifferently, MayHaveOtherPathsAndResources) {
  const TinyRun run;
  fs::copy_file(run.path() / "data.tokens", run.path() / "copy.tokens");
  const auto [first, second] =
      train_two(run, {"data.train=" + (run.path() / "copy.tokens").string(), "run.threads=2",
                      "data.prefetch=1", "run.memory_limit=1 GiB", "observe.console_every=5"});
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_TRUE(fs::exists(run.checkpoint(10)));
}

}  // namespace
}  // namespace heddle
