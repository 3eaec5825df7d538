#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <set>
#include <string>

#include "base/json.h"

namespace heddle::cli {
namespace {

struct Outcome {
  int status = -1;
  std::string output;  ///< standard output only
};

Outcome run(const std::string& arguments) {
  Outcome outcome;
  const std::string command = std::string(HEDDLE_PROGRAM " ") + arguments + " 2>/dev/null";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> block{};
  while (const std::size_t size = std::fread(block.data(), 1, block.size(), pipe)) {
    outcome.output.append(block.data(), size);
  }
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

TEST(Doctor, PrintsOneJsonObjectWithAStatusAndAReasonForEverything) {
  const Outcome outcome = run("doctor --json");
  ASSERT_EQ(outcome.status, 0);
  const Json json = parse_json(outcome.output, "doctor --json");
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

TEST(Doctor, RefusesOptionsItDoesNotKnow) { EXPECT_EQ(run("doctor --nonsense").status, 2); }

}  // namespace
}  // namespace heddle::cli
