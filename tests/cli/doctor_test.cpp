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

TEST(Doctor, RefusesOptionsItDoesNotKnow) {
  EXPECT_EQ(run_heddle({"doctor", "--nonsense"}).status, 2);
}

}  // namespace
}  // namespace heddle::cli
