#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "cli/run_program.h"
#include "support/temporary_folder.h"

namespace heddle {
namespace {

constexpr int kUsage = static_cast<int>(ErrorCode::usage);

TEST(Launch, StartsTrainingRunsOnly) {
  const Outcome outcome = run_heddle({"launch", "--ranks", "2", "--", "eval", "model"});
  EXPECT_EQ(outcome.status, kUsage);
  EXPECT_NE(outcome.err.find("heddle launch starts the ranks of a training run"), std::string::npos)
      << outcome.err;
  EXPECT_EQ(run_heddle({"launch", "--ranks", "2"}).status, kUsage);
  const Outcome alone = run_heddle({"launch", "--ranks", "1", "--", "train", "run.toml"});
  EXPECT_EQ(alone.status, kUsage);
  EXPECT_NE(alone.err.find("--ranks: Value 1 not in range"), std::string::npos) << alone.err;
}

TEST(Launch, IsNotStartedByAnotherLauncher) {
  const Outcome outcome = run_heddle({"launch", "--", "train", "run.toml"},
                                     {.environment = {{"RANK", "0"}, {"WORLD_SIZE", "2"}}});
  EXPECT_EQ(outcome.status, kUsage);
  EXPECT_NE(outcome.err.find("torchrun has made this process one of 2 ranks"), std::string::npos)
      << outcome.err;
}

TEST(Launch, PrintsAJobScriptThatAShellUnderstands) {
  const Outcome outcome =
      run_heddle({"launch", "--ranks", "8", "--restart", "--slurm", "--", "train",
                  "it's mine/run.toml", "--fresh", "--set", "train.steps=5"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part :
       {"#SBATCH --ntasks=8\n", "--kill-on-bad-exit=0", "HEDDLE_TOKEN_FILE",
        "--fresh --set train.steps=5 --elastic", "run.toml'\\'' --set train.steps=5 --join"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
  const TemporaryFolder folder;
  const auto script = folder.path() / "job.sh";
  std::ofstream(script) << outcome.out;
  EXPECT_EQ(std::system(("bash -n " + script.string()).c_str()), 0);
}

std::string job_script(const std::vector<std::string>& options) {
  std::vector<std::string> words = {"launch", "--slurm"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "train", "run.toml"});
  const Outcome outcome = run_heddle(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return outcome.out;
}

TEST(Launch, AsksForNodesProcessorsAndGpus) {
  const std::string script =
      job_script({"--ranks", "16", "--nodes", "2", "--gpus", "--cpus", "6", "--plain"});
  for (const char* part :
       {"#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=8\n", "#SBATCH --gpus-per-node=8\n",
        "#SBATCH --cpus-per-task=6\n", "#SBATCH --signal=INT@120",
        "\nsrun --mpi=none --kill-on-bad-exit=1 --cpus-per-task=6 heddle train run.toml\n"}) {
    EXPECT_NE(script.find(part), std::string::npos) << part << "\n" << script;
  }
  EXPECT_EQ(script.find("--ntasks="), std::string::npos) << script;
  EXPECT_EQ(script.find("--no-kill"), std::string::npos) << script;
  EXPECT_NE(job_script({"--gpus"}).find("#SBATCH --gpus-per-task=1\n"), std::string::npos);
}

TEST(Launch, RefusesJobsThatCannotBe) {
  const auto refused = [](const std::vector<std::string>& options, const std::string& reason) {
    std::vector<std::string> words = {"launch"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", "train", "run.toml"});
    const Outcome outcome = run_heddle(words);
    EXPECT_EQ(outcome.status, kUsage);
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << outcome.err;
  };
  refused({"--slurm", "--ranks", "7", "--nodes", "2"}, "use a multiple of 2");
  refused({"--slurm", "--plain", "--restart"}, "leave out --plain");
  refused({"--ranks", "4", "--gpus"}, "add --slurm");
}

/// A rank is started again where it was lost, not where it was told to stop.
TEST(Launch, ItsScriptStartsAgainWhatWasLost) {
  const std::string script = job_script({"--restart"});
  const auto starts = [&](int status) {
    const TemporaryFolder folder;
    const auto file = folder.path() / "job.sh", told = folder.path() / "told";
    std::ofstream(file) << "srun() { while [ \"$1\" != bash ]; do shift; done; \"$@\"; }\n"
                        << "heddle() { echo \"$@\" >> " << told.string() << "; return " << status
                        << "; }\nexport -f heddle\n"
                        << script;
    const std::string command =
        fmt::format("cd {} && bash {}", folder.path().string(), file.string());
    EXPECT_NE(std::system(command.c_str()), -1);
    std::ifstream lines(told);
    return std::count(std::istreambuf_iterator<char>(lines), {}, '\n');
  };
  for (const int lost : {4, 137, 139}) EXPECT_EQ(starts(lost), 4) << lost;
  for (const int ended : {0, 2, 6, 130, 143}) EXPECT_EQ(starts(ended), 1) << ended;
}

/// Each rank has connections to all others.
TEST(Launch, RefusesMoreRanksThanThereMayBeOpenFilesFor) {
  const auto limited = [](const std::string& limit, const std::string& ranks) {
    return run_heddle(
        {"-c", fmt::format("ulimit {} && exec {} launch --ranks {} -- train gone.toml", limit,
                           HEDDLE_PROGRAM, ranks)},
        {.program = "/bin/sh"});
  };
  const Outcome hard = limited("-n 64", "16");
  EXPECT_EQ(hard.status, static_cast<int>(ErrorCode::resources));
  EXPECT_NE(hard.err.find("each of 16 ranks that may be lost opens up to 144 files, and this "
                          "system allows a process 64"),
            std::string::npos)
      << hard.err;
  const Outcome soft = limited("-Sn 64", "4");
  EXPECT_EQ(soft.status, kUsage) << "a soft limit is raised: " << soft.err;
}

/// What a rank runs is one word for the shell that srun starts.
TEST(Launch, ItsScriptPassesWordsOnAsTheyWere) {
  const Outcome outcome = run_heddle({"launch", "--slurm", "--", "train", "it's mine/run.toml"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const TemporaryFolder folder;
  const auto script = folder.path() / "job.sh";
  std::ofstream(script) << "srun() { while [ \"$1\" != bash ]; do shift; done; \"$@\"; }\n"
                        << "heddle() { printf '%s\\n' \"$@\"; }\nexport -f heddle\n"
                        << outcome.out;
  const auto told = folder.path() / "told";
  ASSERT_EQ(std::system(("cd " + folder.path().string() + " && bash " + script.string() + " > " +
                         told.string())
                            .c_str()),
            0);
  std::ifstream file(told);
  const std::string words{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(words, "train\nit's mine/run.toml\n--elastic\n");
}

}  // namespace
}  // namespace heddle
