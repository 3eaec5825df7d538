#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/json.h"
#include "cli/run_program.h"
#include "support/temporary_folder.h"

namespace heddle::cli {
namespace {

TEST(Doctor, PrintsOneJsonObjectWithAStatusAndAReasonForEverything) {
  const Outcome outcome = run_heddle({"doctor", "--json"});
  ASSERT_EQ(outcome.status, 0);
  const Json json = parse_json(outcome.out, "doctor --json");
  EXPECT_TRUE(json["ok"].get<bool>());
  std::set<std::string> names;
  for (const auto& finding : json["findings"]) {
    names.insert(finding["name"].get<std::string>());
    EXPECT_TRUE(std::set<std::string>({"ok", "low", "missing"}).count(finding["status"]));
    EXPECT_FALSE(finding["found"].get<std::string>().empty());
    EXPECT_FALSE(finding["why"].get<std::string>().empty());
  }
  for (const char* name : {"processor", "vectors", "memory", "gemm", "disk", "terminal", "launcher",
                           "CUDA", "NCCL", "MPI"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

Json finding(const std::filesystem::path& program_folder, const std::string& name) {
  RunOptions options;
  if (!program_folder.empty()) options.program = program_folder / "heddle";
  const Json json = parse_json(run_heddle({"doctor", "--json"}, options).out, "doctor --json");
  for (const auto& one : json["findings"]) {
    if (one["name"] == name) return one;
  }
  return {};
}

TEST(Doctor, FindsTheMpiThatRanksWouldOpen) {
  const bool has_mpi = std::filesystem::exists(std::filesystem::path(HEDDLE_PROGRAM).parent_path() /
                                               "libheddle_mpi.so");
  const Json found = finding("", "MPI");
  EXPECT_EQ(found["status"], has_mpi ? "ok" : "missing") << found["found"];
  EXPECT_NE(found["found"].get<std::string>().find(has_mpi ? "libmpi" : "not in this build"),
            std::string::npos)
      << found["found"];
}

TEST(Doctor, SaysWhyMpiCannotBeUsed) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(HEDDLE_PROGRAM, folder.path() / "heddle");
  EXPECT_EQ(finding(folder.path(), "MPI")["status"], "missing");
  std::ofstream(folder.path() / "libheddle_mpi.so") << "this is no library";
  const Json found = finding(folder.path(), "MPI");
  EXPECT_EQ(found["status"], "missing");
  EXPECT_NE(found["found"].get<std::string>().find("libheddle_mpi.so: "), std::string::npos)
      << found["found"];
}

TEST(DoctorCalibrate, RefusesAFileThatCannotBeWrittenBeforeItMeasures) {
  const Outcome outcome = run_heddle({"doctor", "--calibrate", "--out", "/dev/null/machine.toml"});
  EXPECT_EQ(outcome.status, 3);
  EXPECT_NE(outcome.err.find("/dev/null"), std::string::npos) << outcome.err;
  EXPECT_EQ(run_heddle({"doctor", "--calibrate", "--out", "/"}).status, 3);
  EXPECT_EQ(run_heddle({"doctor", "--calibrate", "--samples", "/"}).status, 3);
}

TEST(DoctorCalibrate, RefusesMoreRanksThanThereAreGpus) {
  const Outcome outcome =
      run_heddle({"doctor", "--calibrate", "--device", "cuda", "--ranks", "1000"});
  EXPECT_EQ(outcome.status, 3);
  EXPECT_NE(outcome.err.find("--ranks 1000"), std::string::npos) << outcome.err;
}

TEST(DoctorCalibrate, RefusesADtypeThatTheDeviceLacks) {
  EXPECT_EQ(run_heddle({"doctor", "--calibrate", "--dtype", "bf16"}).status, 2);
  EXPECT_EQ(run_heddle({"doctor", "--calibrate", "--device", "tpu"}).status, 2);
}

TEST(Doctor, RefusesOptionsItDoesNotKnow) {
  EXPECT_EQ(run_heddle({"doctor", "--nonsense"}).status, 2);
}

}  // namespace
}  // namespace heddle::cli
