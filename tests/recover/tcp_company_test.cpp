// Processes that compute together over TCP, and lose each other.

#include "recover/membership/tcp_company.h"

#include <gtest/gtest.h>

#include "comm/world_failure.h"
#include "recover/company_processes.h"

namespace heddle::recover {
namespace {

using Settings = CompanyProcesses::Settings;
using Seconds = CompanyProcesses::Seconds;
using Clock = CompanyProcesses::Clock;

constexpr int kLeft = static_cast<int>(ErrorCode::stopped);
constexpr int kPeer = static_cast<int>(ErrorCode::peer);

std::vector<int> without(int ranks, const std::set<int>& lost) {
  std::vector<int> rest;
  for (int rank = 0; rank < ranks; ++rank) {
    if (lost.count(rank) == 0) rest.push_back(rank);
  }
  return rest;
}

/// Those who go on end well, together, and nothing contradicts anything.
void expect_good_end(CompanyProcesses& processes, const std::vector<int>& left) {
  processes.stop();
  for (const int process : left) {
    EXPECT_EQ(processes.status(process), 0) << process << "\n" << processes.text(process);
  }
  EXPECT_EQ(processes.faults(), std::vector<std::string>());
}

bool has_begun(const CompanyProcesses& processes, int ranks, std::int64_t epoch = 0) {
  std::vector<int> all = without(ranks, {});
  return processes.go_on(all, epoch, ranks);
}

/// The longest time until one of those who are left noticed something after this.
double noticed_after(const CompanyProcesses& processes, const std::vector<int>& left,
                     Clock::time_point fault) {
  Seconds longest{0};
  for (const int process : left) {
    longest = std::max<Seconds>(longest, processes.noticed(process) - fault);
  }
  return longest.count();
}

TEST(TcpCompany, ThoseWhoStartTogetherEndTogether) {
  CompanyProcesses processes(Settings{});
  ASSERT_TRUE(has_begun(processes, 4));
  expect_good_end(processes, {0, 1, 2, 3});
  for (int process = 0; process < 4; ++process) EXPECT_EQ(processes.epoch(process), 0);
}

TEST(TcpCompany, OneThatIsKilledIsDoneWithoutWithinTwoSeconds) {
  for (const int lost : {2, 0, 3}) {
    CompanyProcesses processes(Settings{});
    ASSERT_TRUE(has_begun(processes, 4));
    const auto fault = Clock::now();
    processes.send_signal(lost, SIGKILL);
    const auto left = without(4, {lost});
    ASSERT_TRUE(processes.go_on(left, 1, 3)) << processes.text(left[0]);
    EXPECT_LT(noticed_after(processes, left, fault), 2.0);
    EXPECT_EQ(processes.epoch(left[0]), 1);
    const std::string cause = processes.cause(left[0]);
    EXPECT_NE(cause.find(fmt::format("the process of rank {} is gone", lost)), std::string::npos)
        << cause;
    EXPECT_NE(cause.find("of world"), std::string::npos) << "names a call: " << cause;
    expect_good_end(processes, left);
    EXPECT_EQ(processes.status(lost), 128 + SIGKILL);
  }
}

TEST(TcpCompany, OneThatIsFrozenIsDoneWithoutAndKnowsItWhenItWakes) {
  CompanyProcesses processes(Settings{});
  ASSERT_TRUE(has_begun(processes, 4));
  const auto fault = Clock::now();
  processes.send_signal(1, SIGSTOP);
  ASSERT_TRUE(processes.go_on({0, 2, 3}, 1, 3)) << processes.text(0);
  EXPECT_LT(noticed_after(processes, {0, 2, 3}, fault), 2.0);
  EXPECT_NE(processes.cause(0).find("rank 1 has given no sign of life"), std::string::npos)
      << processes.cause(0);
  processes.send_signal(1, SIGCONT);
  EXPECT_EQ(processes.status(1), kPeer);
  EXPECT_NE(processes.text(1).find("3 members go on without this rank in epoch"), std::string::npos)
      << processes.text(1);
  expect_good_end(processes, {0, 2, 3});
}

TEST(TcpCompany, OneThatHangsButBeatsIsFoundByItsCalls) {
  for (const int lost : {0, 2}) {
    CompanyProcesses processes(Settings{});
    ASSERT_TRUE(has_begun(processes, 4));
    const auto fault = Clock::now();
    processes.hang(lost);
    const auto left = without(4, {lost});
    ASSERT_TRUE(processes.go_on(left, 1, 3)) << processes.text(left[0]);
    EXPECT_LT(noticed_after(processes, left, fault), 3.0);  // of steps so short 1.2 s are waited
    EXPECT_NE(processes.cause(left[0]).find(fmt::format("rank {} has not entered", lost)),
              std::string::npos)
        << processes.cause(left[0]);
    expect_good_end(processes, left);
  }
}

/// It agrees to that, though it is the first, without which the other could not go on.
TEST(TcpCompany, OfTwoTheOneThatHangsLeaves) {
  CompanyProcesses processes({.ranks = 2});
  ASSERT_TRUE(has_begun(processes, 2));
  processes.hang(0);
  ASSERT_TRUE(processes.go_on({1}, 1, 1)) << processes.text(0) << processes.text(1);
  processes.hang(0, false);
  EXPECT_EQ(processes.status(0), kPeer);
  EXPECT_NE(processes.text(0).find("rank 0 has not entered"), std::string::npos)
      << processes.text(0);
  expect_good_end(processes, {1});
}

/// One that others have waited for a good while is not given up for the loss of another.
TEST(TcpCompany, OneThatIsLateIsNotLostWithOneThatIsKilled) {
  const Seconds step{0.7};  // a call is missed after three of them, 2.1 s
  CompanyProcesses processes(Settings{.step = step});
  ASSERT_TRUE(has_begun(processes, 4));
  const auto steps = [&] { return processes.step(0); };
  ASSERT_TRUE(CompanyProcesses::wait([&] { return steps() >= 4; }));
  processes.hang(2);  // from its next step on, in which the others wait for it one step later
  std::this_thread::sleep_for(2 * step + Seconds(1.75));
  processes.send_signal(3, SIGKILL);
  processes.hang(2, false);
  ASSERT_TRUE(processes.go_on({0, 1, 2}, 1, 3))
      << processes.text(0) << processes.text(1) << processes.text(2);
  expect_good_end(processes, {0, 1, 2});
}

TEST(TcpCompany, ALinkThatSwallowsEverythingCostsOneMember) {
  CompanyProcesses processes(Settings{.has_relay = true});
  ASSERT_TRUE(has_begun(processes, 4, 1));
  const auto fault = Clock::now();
  processes.hold_both(1, 3);
  ASSERT_TRUE(processes.go_on({0, 1, 2}, 2, 3)) << processes.text(0);
  EXPECT_LT(noticed_after(processes, {0, 1, 2}, fault), 2.5);
  EXPECT_EQ(processes.status(3), kPeer) << processes.text(3);
  expect_good_end(processes, {0, 1, 2});
}

TEST(TcpCompany, AFlippedBitEndsAConnectionAndNothingWrongIsComputed) {
  for (const auto& [from, to] : {std::pair(0, 2), std::pair(3, 1)}) {
    CompanyProcesses processes(Settings{.has_relay = true});
    ASSERT_TRUE(has_begun(processes, 4, 1));
    const auto fault = Clock::now();
    processes.flip(from, to);
    const int lost = std::max(from, to);
    const auto left = without(4, {lost});
    ASSERT_TRUE(processes.go_on(left, 2, 3)) << processes.text(0);
    EXPECT_LT(noticed_after(processes, left, fault), 2.0);
    EXPECT_NE(processes.cause(0).find(fmt::format("what came from rank {} was damaged", from)),
              std::string::npos)
        << processes.cause(0);
    EXPECT_EQ(processes.status(lost), kPeer) << processes.text(lost);
    expect_good_end(processes, left);
  }
}

TEST(TcpCompany, OfASplitNetworkOneHalfGoesOn) {
  struct Split {
    std::set<int> half;
    std::vector<int> goes_on;
    std::unique_ptr<CompanyProcesses> processes = {};
  };
  std::vector<Split> splits;
  splits.push_back({{0, 1}, {0, 1}});
  splits.push_back({{1, 2}, {0, 3}});
  splits.push_back({{0}, {1, 2, 3}});
  for (Split& split : splits) {  // all at once: who does not go on takes its time to end
    split.processes = std::make_unique<CompanyProcesses>(Settings{.has_relay = true});
    ASSERT_TRUE(has_begun(*split.processes, 4, 1));
    split.processes->split(split.half);
  }
  for (const Split& split : splits) {
    CompanyProcesses& processes = *split.processes;
    ASSERT_TRUE(processes.go_on(split.goes_on, 2, static_cast<int>(split.goes_on.size())))
        << processes.text(split.goes_on[0]);
    for (const int other : without(4, {split.goes_on.begin(), split.goes_on.end()})) {
      EXPECT_EQ(processes.status(other), kPeer);
      EXPECT_NE(processes.text(other).find("are needed to go on"), std::string::npos)
          << processes.text(other);
    }
    expect_good_end(processes, split.goes_on);
  }
}

TEST(TcpCompany, ALinkThatComesAndGoesLeavesOneHistory) {
  CompanyProcesses processes(Settings{.has_relay = true});
  ASSERT_TRUE(has_begun(processes, 4, 1));
  for (int i = 0; i < 6; ++i) {
    processes.hold_both(0, 2, i % 2 == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(i % 2 == 0 ? 900 + 300 * i : 300));
  }
  processes.hold_both(0, 2, false);
  // At 900 ms nobody is silent for long enough; later the link costs one member, and no more.
  ASSERT_TRUE(processes.go_on({0, 1, 3}, 2, 3)) << processes.text(0);
  EXPECT_EQ(processes.status(2), kPeer) << processes.text(2);
  expect_good_end(processes, {0, 1, 3});
}

TEST(TcpCompany, AllButOneKilledEndsTheLastAndSaysWhy) {
  CompanyProcesses processes(Settings{});
  ASSERT_TRUE(has_begun(processes, 4));
  for (const int lost : {0, 1, 2}) processes.send_signal(lost, SIGKILL);
  EXPECT_EQ(processes.status(3), kPeer);
  EXPECT_NE(processes.text(3).find("1 of 4 members of epoch 0 answer after 6 s, 3, or 2 with the "
                                   "first of them are needed to go on"),
            std::string::npos)
      << processes.text(3);
}

TEST(TcpCompany, OneAfterAnotherKilledLeavesTheLastToGoOn) {
  CompanyProcesses processes(Settings{});
  ASSERT_TRUE(has_begun(processes, 4));
  processes.send_signal(2, SIGKILL);
  ASSERT_TRUE(processes.go_on({0, 1, 3}, 1, 3));
  processes.send_signal(0, SIGKILL);
  ASSERT_TRUE(processes.go_on({1, 3}, 2, 2));
  processes.send_signal(3, SIGKILL);
  ASSERT_TRUE(processes.go_on({1}, 3, 1));
  expect_good_end(processes, {1});
}

TEST(TcpCompany, AKillDuringRecoveryIsRecoveredFromToo) {
  CompanyProcesses processes({.ranks = 5});
  ASSERT_TRUE(has_begun(processes, 5));
  processes.send_signal(4, SIGKILL);
  ASSERT_TRUE(
      CompanyProcesses::wait([&] { return processes.noticed(1).time_since_epoch().count() > 0; }));
  processes.send_signal(0, SIGKILL);  // who proposes
  ASSERT_TRUE(processes.go_on({1, 2, 3}, 1, 3)) << processes.text(1);
  expect_good_end(processes, {1, 2, 3});
}

TEST(TcpCompany, OneKilledWhileAWorldIsMadeOverThatOfHostsIsDoneWithout) {
  // As NCCL does: one rank waits for the other and is told, one fails before anybody knows why.
  const auto make = [](int number, std::shared_ptr<CommBackend> host) {
    if (host->size() != 3) return host;
    if (number == 2) raise(SIGKILL);
    if (number == 1) fail(ErrorCode::peer, "a connection to rank 2 was closed");
    while (true) {
      host->failure()->check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  CompanyProcesses processes(Settings{.over = make});
  ASSERT_TRUE(has_begun(processes, 4));
  processes.send_signal(3, SIGKILL);
  ASSERT_TRUE(processes.go_on({0, 1}, 2, 2)) << processes.text(0) << processes.text(1);
  EXPECT_NE(processes.cause(0).find("rank 2 is gone"), std::string::npos) << processes.cause(0);
  expect_good_end(processes, {0, 1});
}

TEST(TcpCompany, AWorldThatCannotBeMadeOverThatOfHostsEndsTheRun) {
  const auto make = [](int, std::shared_ptr<CommBackend>) -> std::shared_ptr<CommBackend> {
    fail(ErrorCode::resources, "there is no NCCL");
  };
  CompanyProcesses processes(Settings{.ranks = 2, .over = make});
  for (const int process : {0, 1}) {
    EXPECT_EQ(processes.status(process), static_cast<int>(ErrorCode::resources))
        << processes.text(process);
  }
}

TEST(TcpCompany, NewcomersAreLetInAndWhoeverIsToldToLeavesGoes) {
  CompanyProcesses processes({.ranks = 2});
  ASSERT_TRUE(has_begun(processes, 2));
  const int third = processes.join();
  ASSERT_TRUE(processes.go_on({0, 1, third}, 1, 3)) << processes.text(third);
  EXPECT_EQ(processes.cause(0), "1 newcomer is let in");
  processes.tell_to_leave(0);
  EXPECT_EQ(processes.status(0), kLeft) << processes.text(0);
  ASSERT_TRUE(processes.go_on({1, third}, 2, 2));
  EXPECT_EQ(processes.cause(1), "rank 0 was told to leave");
  processes.send_signal(1, SIGKILL);  // the last who started: a newcomer cannot go on without it
  EXPECT_EQ(processes.status(third), kPeer) << processes.text(third);
  EXPECT_EQ(processes.faults(), std::vector<std::string>());
}

TEST(TcpCompany, OneThatWasKilledIsReplacedByANewcomer) {
  CompanyProcesses processes(Settings{});
  ASSERT_TRUE(has_begun(processes, 4));
  processes.send_signal(1, SIGKILL);
  const int newcomer = processes.join();
  ASSERT_TRUE(processes.go_on({0, 2, 3, newcomer}, 1, 4)) << processes.text(0);
  expect_good_end(processes, {0, 2, 3, newcomer});
}

TEST(TcpCompany, NeedsAToken) { EXPECT_THROW(make_tcp_company({}), Error); }

TEST(TcpCompany, ReadsMembersFiles) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "members";
  const auto read = [&](const std::string& text) {
    std::ofstream(file) << text;
    return read_members(file);
  };
  const auto members = read("# epoch 3\n127.0.0.1:4711\n\n10.0.0.7:80\n");
  ASSERT_EQ(members.size(), 2U);
  EXPECT_EQ(members[0].text(), "127.0.0.1:4711");
  EXPECT_EQ(members[1].text(), "10.0.0.7:80");
  for (const char* wrong : {"", "# nobody\n", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0",
                            "127.0.0.1:70000", "somewhere:80", "127.0.0.1:80x"}) {
    EXPECT_THROW(read(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace heddle::recover
