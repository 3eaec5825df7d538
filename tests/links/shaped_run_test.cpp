#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <regex>
#include <set>
#include <thread>

#include "cli/run_program.h"
#include "links/network.h"

namespace heddle::links {
namespace {

Outcome shaped_run(const std::vector<std::string>& arguments, RunOptions options = {}) {
  options.program = SHAPED_RUN_PROGRAM;
  return run_heddle(arguments, options);
}

Outcome shell(const std::string& script, RunOptions options = {}) {
  options.program = "/bin/sh";
  return run_heddle({"-c", script}, options);
}

/// Network namespaces that processes are in or hold open, as "net:[4026531840]".
std::set<std::string> namespaces_in_use() {
  std::set<std::string> found;
  std::error_code gone;  // processes end while we look
  const auto look_at = [&](const std::filesystem::path& link) {
    found.insert(std::filesystem::read_symlink(link, gone).string());
  };
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    look_at(process.path() / "ns/net");
    auto files = std::filesystem::directory_iterator(process.path() / "fd", gone);
    for (; files != std::filesystem::directory_iterator(); files.increment(gone)) {
      look_at(files->path());
      if (gone) break;
    }
  }
  return found;
}

/// Whether the namespaces that ranks wrote to their output are given back, soon if not at once.
bool are_gone(const std::string& output) {
  static const std::regex name(R"(net:\[\d+\])");
  std::set<std::string> names(std::sregex_token_iterator(output.begin(), output.end(), name), {});
  EXPECT_EQ(names.size(), 2u) << output;
  for (int tries = 0; tries < 100; ++tries) {
    const auto in_use = namespaces_in_use();
    if (std::none_of(names.begin(), names.end(),
                     [&](const auto& one) { return in_use.count(one) != 0; })) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

/// What a rank does to be killed: its own child shall end as well.
const std::string kWait = "readlink /proc/self/ns/net; echo started >&2; sleep 1000; true";

class ShapedRun : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = Network::missing()) GTEST_SKIP() << *missing;
  }
};

TEST(ShapedRunArguments, AreRefusedByName) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "nothing to run"},
      {{"two", "--", "true"}, "RANKS 'two'"},
      {{"2"}, "no command"},
      {{"2", "--mtu", "big", "--", "true"}, "--mtu 'big'"},
      {{"2", "true"}, "'--' goes before the command"}};
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = shaped_run(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_NE(outcome.err.find(expected), std::string::npos) << outcome.err;
  }
}

TEST(ShapedRunArguments, WithoutRightsItSaysSoAndAsksToBeSkipped) {
  if (::geteuid() != 0) GTEST_SKIP() << "root is needed to give rights up";
  const Outcome outcome = shell("exec setpriv --reuid=65534 --regid=65534 --clear-groups " +
                                std::string(SHAPED_RUN_PROGRAM) + " 2 -- true");
  if (outcome.status == 127 || outcome.status == 126)
    GTEST_SKIP() << "no setpriv, or no way to the program";
  EXPECT_EQ(outcome.status, 77) << outcome.err;
  EXPECT_NE(outcome.err.find("need root"), std::string::npos) << outcome.err;
}

TEST_F(ShapedRun, RefusesALinkThatIsNone) {
  const Outcome outcome = shaped_run({"2", "--link", "0,5", "rate=1mbit", "--", "true"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("ranks are 0 to 1"), std::string::npos) << outcome.err;
}

TEST_F(ShapedRun, RunsTheCommandAsEveryRank) {
  const Outcome outcome = shaped_run({"3", "--link", "rate=10mbit", "--", "sh", "-c",
                                      "echo rank $RANK of $WORLD_SIZE, $LOCAL_RANK of "
                                      "$LOCAL_WORLD_SIZE, $MASTER_ADDR $MASTER_PORT"},
                                     {.environment = {{"RANK", "7"}}});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_NE(outcome.out.find("rank " + std::string(rank) + " of 3, 0 of 1, 10.78.0.1 29511\n"),
              std::string::npos)
        << outcome.out;
  }
}

TEST_F(ShapedRun, EndsWithTheStatusOfTheFirstRankThatFails) {
  const Outcome outcome = shaped_run({"3", "--", "sh", "-c", "exit $((RANK * 3))"});
  EXPECT_EQ(outcome.status, 3);
  EXPECT_NE(outcome.err.find("rank 1 ended with status 3"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("rank 2 ended with status 6"), std::string::npos) << outcome.err;
  EXPECT_EQ(shaped_run({"2", "--", "no-such-program"}).status, 127);
  EXPECT_EQ(shaped_run({"2", "--", "sh", "-c", "kill -9 $$"}).status, 128 + SIGKILL);
}

TEST_F(ShapedRun, TakesStatementsFromStandardInput) {
  // Nobody listens on port 1: the other rank says so at once, unless no packet gets there.
  const std::string knocks = std::string(SHAPED_RUN_PROGRAM) +
                             " 2 --control -- bash -c '[ $RANK = 0 ] || { sleep 0.5; timeout 1 bash"
                             " -c \"echo > /dev/tcp/$MASTER_ADDR/1\"; }'";
  EXPECT_EQ(shell("echo link rate=1mbit | " + knocks).status, 1);
  EXPECT_EQ(shell("echo cut 1 | " + knocks).status, 124);
  const Outcome refused = shell("echo snip 1 | " + knocks);
  EXPECT_NE(refused.err.find("'snip 1'"), std::string::npos) << refused.err;
}

TEST_F(ShapedRun, ASignalEndsTheRanksAndTakesTheNamespacesAway) {
  const Outcome outcome = shaped_run({"2", "--", "sh", "-c", kWait},
                                     {.signal = SIGTERM, .signal_at = "started\nstarted\n"});
  EXPECT_EQ(outcome.status, 128 + SIGTERM) << outcome.err;
  EXPECT_TRUE(are_gone(outcome.out));
}

TEST_F(ShapedRun, RanksThatIgnoreTheSignalAreKilled) {
  const Outcome outcome = shaped_run({"2", "--", "sh", "-c", "trap '' TERM; " + kWait},
                                     {.signal = SIGINT, .signal_at = "started\nstarted\n"});
  EXPECT_EQ(outcome.status, 128 + SIGINT) << outcome.err;
  EXPECT_TRUE(are_gone(outcome.out));
}

// The streams are open as long as any process lives: without a time-out, all have ended.
TEST_F(ShapedRun, NothingIsLeftWhenItsParentIsKilled) {
  const Outcome outcome =
      shell(std::string(SHAPED_RUN_PROGRAM) + " 2 -- sh -c '" + kWait + "'; true",
            {.signal = SIGKILL, .signal_at = "started\nstarted\n"});
  EXPECT_EQ(outcome.signal, SIGKILL);
  EXPECT_FALSE(outcome.has_timed_out);
  EXPECT_TRUE(are_gone(outcome.out));
}

TEST_F(ShapedRun, NothingIsLeftWhenItIsKilledItself) {
  const Outcome outcome = shaped_run(
      {"2", "--", "sh", "-c", "readlink /proc/self/ns/net; echo started >&2; exec sleep 1000"},
      {.signal = SIGKILL, .signal_at = "started\nstarted\n"});
  EXPECT_EQ(outcome.signal, SIGKILL);
  EXPECT_FALSE(outcome.has_timed_out);
  EXPECT_TRUE(are_gone(outcome.out));
}

}  // namespace
}  // namespace heddle::links
