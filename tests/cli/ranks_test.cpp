// The program as ranks that a launcher started: processes that join over TCP.

#include <gtest/gtest.h>

#include "cli/rank_processes.h"
#include "cli/slurm.h"
#include "observe/machine.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

/// What the tiny run needs to be divided by three ranks.
constexpr const char* kForThree = "train.tokens_per_step=192";

Variables by_torchrun(int rank, int size, std::uint16_t port) {
  Variables variables = by_hand(rank, size, port);
  variables["TORCHELASTIC_RUN_ID"] = "none";
  return variables;
}
/// As srun without PMI does.
Variables by_srun(int rank, int size, int job) {
  return {{"SLURM_JOB_ID", std::to_string(job)},  {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", std::to_string(rank)}, {"SLURM_LOCALID", std::to_string(rank)},
          {"SLURM_NTASKS", std::to_string(size)}, {"SLURM_STEP_NUM_TASKS", std::to_string(size)},
          {"SLURM_STEP_NODELIST", "localhost"}};
}

/// On which ranks an error was printed.
std::vector<int> speakers(const std::vector<Outcome>& outcomes) {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    for (std::size_t at = 0; (at = outcomes[i].err.find("error: ", at)) != std::string::npos;
         ++at) {
      ranks.push_back(static_cast<int>(i));
    }
  }
  return ranks;
}

TEST(JoiningRanks, SayWhoIsMissingAndEndWhenTheRunFileSays) {
  const TinyRun run;
  const std::uint16_t port = free_port();
  const auto command = run.command({"run.timeout=4", kForThree});
  const auto outcomes = run_all({command, command}, [&](int r) { return by_hand(r, 3, port); });
  SCOPED_TRACE(all_text(outcomes));
  expect_statuses(outcomes, 4);
  EXPECT_TRUE(says(outcomes[0], "waiting for rank 2 of 3"));
  EXPECT_TRUE(says(outcomes[0], "rank 2 of 3 did not come"));
  EXPECT_TRUE(says(outcomes[0], "within 4 s"));
  EXPECT_TRUE(says(outcomes[1], "rank 1 stopped; rank 0 says why"));
}

TEST(JoiningRanks, SayThatTheyWaitForRankZeroAndWhere) {
  const TinyRun run;
  const std::uint16_t port = free_port();
  const Outcome outcome =
      run_heddle(run.command({"run.timeout=3"}), {.environment = by_hand(1, 2, port)});
  SCOPED_TRACE(outcome.err);
  EXPECT_EQ(outcome.status, 4);
  const std::string where = fmt::format("rank 0 at 127.0.0.1 port {}", port + 1);
  EXPECT_TRUE(says(outcome, "rank 1 waits for " + where));
  EXPECT_TRUE(says(outcome, "rank 1 did not reach " + where + " within 3 s"));
}

TEST(JoiningRanks, TrainWithOneTokenAndAreNamedOnBothSidesWithTwo) {
  const TinyRun run;
  const auto file = run.path() / "token";
  write_file_atomically(real_file_system(), file, "a token that nobody guesses\n");
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  const auto meet = [&](const std::string& second, const std::vector<std::string>& command) {
    const std::uint16_t port = free_port();
    auto outcomes = run_all({command, command}, [&](int r) {
      Variables variables = by_hand(r, 2, port);
      variables[r == 0 ? "HEDDLE_TOKEN_FILE" : "HEDDLE_TOKEN"] = r == 0 ? file.string() : second;
      return variables;
    });
    EXPECT_EQ(all_text(outcomes).find("nobody guesses"), std::string::npos);
    return outcomes;
  };
  const auto strangers = meet("quite another token", run.command({"run.timeout=4"}));
  expect_statuses(strangers, 4);
  EXPECT_TRUE(says(strangers[0], "from 127.0.0.1) has another token than rank 0: it is not let in"))
      << all_text(strangers);
  EXPECT_TRUE(says(strangers[1], "has another token than rank 1")) << all_text(strangers);
  EXPECT_EQ(all_text(strangers).find("quite another"), std::string::npos);
  const auto friends = meet("a token that nobody guesses", run.command({}));
  SCOPED_TRACE(all_text(friends));
  expect_statuses(friends, 0);
}

TEST(JoiningRanks, RefuseATokenThatCannotBeReadAndSocketsThatAreNoNumber) {
  const TinyRun run;
  Variables variables = by_hand(0, 2, free_port());
  variables["HEDDLE_TOKEN_FILE"] = "/nowhere/token";
  const auto refused = [&](const std::string& text) {
    const Outcome outcome = run_heddle(run.command({}), {.environment = variables});
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_TRUE(says(outcome, text)) << outcome.err;
  };
  refused("HEDDLE_TOKEN_FILE = /nowhere/token");
  variables["HEDDLE_TOKEN"] = "sixteen characters";
  refused("HEDDLE_TOKEN and HEDDLE_TOKEN_FILE are both set");
  variables.erase("HEDDLE_TOKEN_FILE");
  variables["HEDDLE_TOKEN"] = "short";
  refused("HEDDLE_TOKEN has 5 characters");
  variables.erase("HEDDLE_TOKEN");
  variables["HEDDLE_SOCKETS"] = "many";
  refused("HEDDLE_SOCKETS = \"many\" is no number of connections");
}

TEST(SlurmStep, JoinsOverTcpAndTrains) {
  const TinyRun run;
  const auto command = run.command({});
  const int job = getpid();
  const auto outcomes = run_all({command, command}, [&](int r) { return by_srun(r, 2, job); });
  SCOPED_TRACE(all_text(outcomes));
  expect_statuses(outcomes, 0);
  EXPECT_TRUE(says(outcomes[0], "dp=2"));
  EXPECT_TRUE(std::filesystem::exists(run.checkpoint(10)));
}

TEST(RanksOnSeveralMachines, ShareTheCoresOfTheirOwn) {
  const int cores = observe::inspect_machine().cores_usable;
  const auto threads_with = [](const std::function<Variables(int)>& place) {
    const TinyRun run;
    const auto command = run.command({"run.threads=0", "train.steps=2"});
    const auto outcomes = run_all({command, command}, [&](int r) {
      Variables variables = place(r);
      variables["OMP_NUM_THREADS"] = "";  // not what tests say otherwise
      return variables;
    });
    EXPECT_EQ(outcomes[0].status, 0) << all_text(outcomes);
    return read_json_file(run.run_folder() / "report.json")["starts"][0]["threads"].get<int>();
  };
  const std::uint16_t port = free_port();
  EXPECT_EQ(threads_with([&](int r) { return by_hand(r, 2, port); }), std::max(1, cores / 2));
  const std::uint16_t other = free_port();
  EXPECT_EQ(threads_with([&](int r) {
              Variables variables = by_hand(r, 2, other);
              variables["LOCAL_WORLD_SIZE"] = "1";
              return variables;
            }),
            cores);
  EXPECT_EQ(threads_with([&](int r) {
              Variables variables = by_srun(r, 2, getpid());
              variables["SLURM_CPUS_PER_TASK"] = "2";
              return variables;
            }),
            std::min(2, cores));
}

TEST(SlurmBatchScript, IsASingleProcess) {
  const TinyRun run;
  const Outcome outcome = run_heddle(run.command({}), {.environment = {{"SLURM_JOB_ID", "7"},
                                                                       {"SLURM_PROCID", "0"},
                                                                       {"SLURM_LOCALID", "0"},
                                                                       {"SLURM_NTASKS", "4"}}});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST(RanksOfOneLauncher, SayOnceWhatIsWrongWithTheRunFileOfAll) {
  const TinyRun run;
  const std::uint16_t port = free_port();
  const auto command = run.command({"train.stepz=3"});
  const auto outcomes =
      run_all({command, command, command}, [&](int r) { return by_torchrun(r, 3, port); });
  SCOPED_TRACE(all_text(outcomes));
  expect_statuses(outcomes, 2);
  EXPECT_EQ(speakers(outcomes), std::vector<int>{0});
  EXPECT_FALSE(says(outcomes[0], "rank 0: "));
}

TEST(RanksOfOneLauncher, NameTheRankWhoseRunFileIsWrong) {
  const TinyRun run;
  const std::uint16_t port = free_port();
  const auto good = run.command({kForThree}), bad = run.command({kForThree, "train.stepz=3"});
  const auto outcomes = run_all({good, good, bad}, [&](int r) { return by_torchrun(r, 3, port); });
  SCOPED_TRACE(all_text(outcomes));
  expect_statuses(outcomes, 2);
  EXPECT_EQ(speakers(outcomes), std::vector<int>{2});
  EXPECT_TRUE(says(outcomes[2], "error: rank 2: "));
  EXPECT_TRUE(says(outcomes[2], "train.stepz"));
}

TEST(RanksOfOneLauncher, SayOnceThatTheCommandLineIsWrong) {
  const std::uint16_t port = free_port();
  const std::vector<std::string> command = {"train", "--nonsense"};
  const auto outcomes = run_all({command, command}, [&](int r) { return by_torchrun(r, 2, port); });
  SCOPED_TRACE(all_text(outcomes));
  expect_statuses(outcomes, 2);
  EXPECT_EQ(speakers(outcomes), std::vector<int>{0});
}

TEST(RanksOfOneLauncher, SayOnceWhatTheyAllFindWrongInTheData) {
  const TinyRun run;
  const std::uint16_t port = free_port();
  run.write("data.tokens", "this is no token file, and it is long enough to be looked at");
  const auto command = run.command({kForThree});
  const auto outcomes =
      run_all({command, command, command}, [&](int r) { return by_torchrun(r, 3, port); });
  SCOPED_TRACE(all_text(outcomes));
  expect_statuses(outcomes, 5);
  EXPECT_EQ(speakers(outcomes).size(), 1U);
}

}  // namespace
}  // namespace heddle
