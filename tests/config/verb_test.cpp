// The program itself: exit status, and JSON alone on standard output.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "cli/run_program.h"
#include "config/error_text.h"
#include "config/schema.h"

namespace heddle::config {
namespace {

class ConfigVerb : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(file_) << kGoodRun; }
  void TearDown() override { std::filesystem::remove(file_); }
  const std::string file_ = testing::TempDir() + "config_verb_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name() + ".toml";
};

TEST_F(ConfigVerb, PrintGivesOneJsonObject) {
  const auto outcome =
      run_heddle({"config", "print", file_, "--json", "--set", "train.microbatch=2"});
  ASSERT_EQ(outcome.status, 0);
  const auto json = parse_json(outcome.out, "output");
  EXPECT_EQ(json["values"]["train"]["microbatch"], 2);
  EXPECT_EQ(json["origins"]["train.microbatch"], "--set");
  EXPECT_EQ(json["origins"]["train.steps"], file_ + ":7");
  EXPECT_EQ(json["derived"]["total_steps"], 100);
  EXPECT_TRUE(json["values"]["model"]["seed"].is_null());
}

TEST_F(ConfigVerb, ErrorsExitWithTwo) {
  EXPECT_EQ(run_heddle({"config", "print", file_, "--set", "optim.lrr=1"}).status, 2);
  EXPECT_EQ(run_heddle({"config", "print", "no-such-file.toml"}).status, 2);
  EXPECT_EQ(run_heddle({"config", "explain", "no_such_key_at_all"}).status, 2);
  EXPECT_EQ(run_heddle({"config"}).status, 2);
}

TEST_F(ConfigVerb, ExplainAllCoversEveryKey) {
  const auto outcome = run_heddle({"config", "explain", "all", "--json"});
  ASSERT_EQ(outcome.status, 0);
  EXPECT_EQ(parse_json(outcome.out, "output")["keys"].size(), keys().size());
}

}  // namespace
}  // namespace heddle::config
