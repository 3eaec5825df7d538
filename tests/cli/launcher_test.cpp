#include "cli/launcher.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace heddle::cli {
namespace {

Launcher detect(const std::map<std::string, std::string>& variables) {
  return detect_launcher([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
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
  EXPECT_EQ(detect({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}).name, "Slurm");
}

TEST(DetectLauncher, TakesTorchrunUnderSrun) {
  const Launcher launcher =
      detect({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"RANK", "11"}, {"WORLD_SIZE", "16"}});
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
