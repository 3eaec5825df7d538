#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/json.h"
#include "cli/run_program.h"

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

TEST(DoctorCalibrate, RefusesAFileThatCannotBeWrittenBeforeItMeasures) {
  const Outcome outcome =
      run_heddle({"doctor", "--calibrate", "--out", "/nonexistent-folder/machine.toml"});
  EXPECT_EQ(outcome.status, 3);
  EXPECT_NE(outcome.err.find("/nonexistent-folder"), std::string::npos) << outcome.err;
  EXPECT_EQ(run_heddle({"doctor", "--calibrate", "--out", "/"}).status, 3);
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
