#include "cli/launcher.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace heddle::cli {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

Launcher detect(const Variables& variables) { return detect_launcher(environment_of(variables)); }

/// What srun gives a task.
Variables step_variables(const Variables& more = {}) {
  Variables variables = {{"SLURM_JOB_ID", "1234"},
                         {"SLURM_STEP_ID", "2"},
                         {"SLURM_PROCID", "1"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_STEP_NUM_TASKS", "2"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_STEP_NODELIST", "node7"},
                         {"SLURM_JOB_NODELIST", "node[7-9]"}};
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(DetectLauncher, FindsNobodyInAnOrdinaryShell) {
  const Launcher launcher = detect({{"PATH", "/bin"}});
  EXPECT_EQ(launcher.name, "");
  EXPECT_EQ(launcher.rank, 0);
  EXPECT_EQ(launcher.size, 1);
}

TEST(DetectLauncher, KnowsEachConvention) {
  const Launcher torchrun = detect({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}});
  EXPECT_EQ(torchrun.name, "torchrun");
  EXPECT_EQ(torchrun.rank, 5);
  EXPECT_EQ(torchrun.size, 8);
  EXPECT_EQ(torchrun.local_rank, 1);
  EXPECT_EQ(detect({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).name,
            "Open MPI");
  EXPECT_EQ(detect({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).name, "PMI");
}

TEST(DetectLauncher, KnowsTheTasksOfAStepOfSlurm) {
  const Launcher launcher = detect(step_variables());
  EXPECT_EQ(launcher.name, "Slurm");
  EXPECT_EQ(launcher.rank, 1);
  EXPECT_EQ(launcher.size, 2) << "of the step, not of the job";
  EXPECT_EQ(launcher.local_rank, 1);
  EXPECT_FALSE(launcher.joins_by_mpi);
  EXPECT_TRUE(detect(step_variables({{"PMIX_RANK", "1"}})).joins_by_mpi);
  const Launcher by_pmi = detect(step_variables({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}));
  EXPECT_EQ(by_pmi.name, "PMI");
  EXPECT_TRUE(by_pmi.joins_by_mpi);
}

TEST(DetectLauncher, KnowsHowManyRanksShareTheMachine) {
  const Variables torchrun = {{"RANK", "5"}, {"WORLD_SIZE", "8"}};
  EXPECT_EQ(detect(torchrun).local_size, 8) << "nothing is said";
  Variables on_two = torchrun;
  on_two["LOCAL_WORLD_SIZE"] = "4";
  EXPECT_EQ(detect(on_two).local_size, 4);
  EXPECT_EQ(detect({{"OMPI_COMM_WORLD_RANK", "1"},
                    {"OMPI_COMM_WORLD_SIZE", "6"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})
                .local_size,
            2);
  EXPECT_EQ(detect(step_variables()).local_size, 2);
  EXPECT_EQ(detect(step_variables({{"SLURM_STEP_NUM_TASKS", "7"},
                                   {"SLURM_STEP_TASKS_PER_NODE", "4,3"},
                                   {"SLURM_NODEID", "1"}}))
                .local_size,
            3);
  EXPECT_EQ(detect({}).local_size, 1);
}

TEST(DetectLauncher, TakesABatchScriptOfSlurmForASingleProcess) {
  // What sbatch --ntasks=8 gives a script, and salloc a shell.
  const Variables batch = {{"SLURM_JOB_ID", "1234"}, {"SLURM_PROCID", "0"},
                           {"SLURM_LOCALID", "0"},   {"SLURM_NTASKS", "8"},
                           {"SLURM_NPROCS", "8"},    {"SLURM_JOB_NODELIST", "node[7-9]"}};
  EXPECT_EQ(detect(batch).name, "");
  EXPECT_EQ(detect(batch).size, 1);
  // A shell that salloc opens on a node is a step of its own.
  EXPECT_EQ(detect(step_variables({{"SLURM_STEP_ID", "4294967290"}, {"SLURM_PROCID", "0"}})).size,
            1);
  EXPECT_EQ(detect(step_variables({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}})).size, 1);
}

TEST(DetectLauncher, KnowsWhoShowsWhatAllRanksPrint) {
  EXPECT_TRUE(detect(step_variables()).prints_together);
  const Variables by_hand = {{"RANK", "5"}, {"WORLD_SIZE", "8"}};
  EXPECT_FALSE(detect(by_hand).prints_together);
  Variables by_torchrun = by_hand;
  by_torchrun["TORCHELASTIC_RUN_ID"] = "none";
  EXPECT_TRUE(detect(by_torchrun).prints_together);
}

TEST(MeetingPoint, IsThePortAfterTorchrunsOwn) {
  const Variables variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node3"}, {"MASTER_PORT", "29500"}};
  const MeetingPoint point = meeting_point(detect(variables), environment_of(variables));
  EXPECT_EQ(point.address, "node3");
  EXPECT_EQ(point.port, 29501);
}

TEST(MeetingPoint, FollowsFromTheStepUnderSlurm) {
  const Variables variables = step_variables({{"SLURM_STEP_NODELIST", "node[08-09],gpu5"}});
  const MeetingPoint point = meeting_point(detect(variables), environment_of(variables));
  EXPECT_EQ(point.address, "node08");
  EXPECT_GE(point.port, 20000);
  EXPECT_LT(point.port, 30000);
  const Variables next = step_variables({{"SLURM_STEP_ID", "3"}});
  EXPECT_NE(meeting_point(detect(next), environment_of(next)).port, point.port);
}

TEST(MeetingPoint, IsTheJobsFirstHostWhereTheStepNamesNone) {
  Variables variables = step_variables({{"SLURM_JOB_NODELIST", "node[01-03,7]"}});
  variables.erase("SLURM_STEP_NODELIST");
  EXPECT_EQ(meeting_point(detect(variables), environment_of(variables)).address, "node01");
}

TEST(MeetingPoint, IsWhatTheUserSaysUnderSlurmToo) {
  const Variables variables = step_variables({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "99"}});
  const MeetingPoint point = meeting_point(detect(variables), environment_of(variables));
  EXPECT_EQ(point.address, "10.0.0.1");
  EXPECT_EQ(point.port, 100);
}

TEST(MeetingPoint, RefusesWhatSaysNoPlace) {
  for (const Variables& more :
       std::vector<Variables>{{},
                              {{"MASTER_ADDR", "a"}},
                              {{"MASTER_PORT", "1"}},
                              {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "x"}},
                              {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "0"}},
                              {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "65535"}}}) {
    Variables variables = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
    variables.insert(more.begin(), more.end());
    EXPECT_THROW(meeting_point(detect(variables), environment_of(variables)), Error);
  }
}

TEST(DetectLauncher, TakesTorchrunUnderSrun) {
  const Launcher launcher = detect(step_variables({{"RANK", "11"}, {"WORLD_SIZE", "16"}}));
  EXPECT_EQ(launcher.name, "torchrun");
  EXPECT_EQ(launcher.rank, 11);
}

TEST(DetectLauncher, IgnoresHalfASetOfVariables) {
  EXPECT_EQ(detect({{"RANK", "3"}}).name, "");
  EXPECT_EQ(detect({{"SLURM_NTASKS", "4"}}).name, "");
}

TEST(DetectLauncher, RefusesTwoLaunchersThatDisagree) {
  try {
    detect({{"RANK", "0"},
            {"WORLD_SIZE", "2"},
            {"OMPI_COMM_WORLD_RANK", "1"},
            {"OMPI_COMM_WORLD_SIZE", "4"}});
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_EQ(e.message(), "torchrun says rank 0 of 2, Open MPI says rank 1 of 4");
  }
}

TEST(DetectLauncher, RefusesValuesThatMakeNoSense) {
  EXPECT_THROW(detect({{"RANK", "two"}, {"WORLD_SIZE", "4"}}), Error);
  EXPECT_THROW(detect({{"RANK", ""}, {"WORLD_SIZE", "4"}}), Error);
  EXPECT_THROW(detect({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}), Error);
  EXPECT_THROW(detect({{"RANK", "99999999999"}, {"WORLD_SIZE", "4"}}), Error);
  EXPECT_THROW(detect({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), Error);
}

}  // namespace
}  // namespace heddle::cli
