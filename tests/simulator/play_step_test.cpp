#include "simulator/play_step.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

using Kind = StepProgram::Instruction::Kind;

/// A transfer that takes `seconds` of link 0 when it is alone there.
StepProgram::Path path(double seconds, double latency = 0.0, int link = 0) {
  return {.latency_seconds = latency,
          .pieces = {{.bytes = seconds, .latency_seconds = latency, .links = {{link}}}}};
}

StepProgram::Instruction compute(double seconds) { return {Kind::compute, 0, seconds}; }
StepProgram::Instruction work(double seconds) { return {Kind::work, 0, seconds}; }
StepProgram::Instruction issue(std::uint32_t transfer) { return {Kind::issue, transfer, 0.0}; }
StepProgram::Instruction wait(std::uint32_t transfer) { return {Kind::wait, transfer, 0.0}; }
StepProgram::Instruction action() { return {}; }

StepProgram two_ranks(std::vector<StepProgram::Path> paths,
                      std::vector<StepProgram::Transfer> transfers) {
  return {.capacities = {1.0, 1.0},
          .paths = std::move(paths),
          .transfers = std::move(transfers),
          .channels = {},
          .by_rank = {}};
}

TEST(PlayStep, LetsTransfersOnOneLinkTakeTwiceAsLongAndOnTwoNot) {
  for (const int other_link : {0, 1}) {
    StepProgram program =
        two_ranks({path(3.0), path(3.0, 0.0, other_link)},
                  {{.path = 0, .traffic = Traffic::pp}, {.path = 1, .traffic = Traffic::dp}});
    program.by_rank = {{action(), issue(0), wait(0)}, {action(), issue(1), wait(1)}};
    EXPECT_DOUBLE_EQ(play_step(program).seconds, other_link == 0 ? 6.0 : 3.0);
  }
}

TEST(PlayStep, SharesALinkOnlyWhileBothAreUnderWay) {
  // The second begins when the first has two thirds left: both go at half speed for four seconds.
  StepProgram program = two_ranks({path(3.0)}, {{.path = 0}, {.path = 0}});
  program.by_rank = {{action(), issue(0), wait(0)}, {action(), compute(1.0), issue(1), wait(1)}};
  const PlayedStep played = play_step(program);
  EXPECT_DOUBLE_EQ(played.transfers[0].end, 5.0);
  EXPECT_DOUBLE_EQ(played.transfers[1].end, 6.0);
}

TEST(PlayStep, DoesOneTransferOfAChannelAfterTheOther) {
  StepProgram program =
      two_ranks({path(2.0, 0.5), path(2.0, 0.5, 1)},
                {{.path = 0, .channel = 0, .needed = 2}, {.path = 1, .channel = 0, .needed = 2}});
  program.channels = {{.ranks = {0, 1}}};
  program.by_rank = {{action(), issue(0), issue(1), wait(1)},
                     {action(), compute(1.0), issue(0), issue(1), wait(0), wait(1)}};
  const PlayedStep played = play_step(program);
  EXPECT_DOUBLE_EQ(played.transfers[0].begin, 1.0);
  EXPECT_DOUBLE_EQ(played.transfers[1].begin, 3.5);
  EXPECT_DOUBLE_EQ(played.seconds, 6.0);
}

/// Two pairs of transfers on one channel, of which the second of each needs what the first gives.
StepProgram two_chains(int at_once) {
  const StepProgram::Transfer first{.path = 0, .channel = 0, .traffic = Traffic::dp};
  StepProgram::Transfer second = first;
  second.follows = true;
  StepProgram program = two_ranks({path(1.0, 2.0)}, {first, second, first, second});
  program.channels = {{.ranks = {0}, .at_once = at_once, .contention = 0.5}};
  program.by_rank = {{action(), issue(0), issue(1), issue(2), issue(3), compute(20.0), wait(3)}};
  return program;
}

TEST(PlayStep, HasAsManyTransfersOfAChannelUnderWayAsItTakes) {
  EXPECT_DOUBLE_EQ(play_step(two_chains(1)).transfers[3].end, 12.0);
  const PlayedStep played = play_step(two_chains(2));
  // Latencies go together, the link is shared: both firsts end at 4, both seconds at 8.
  for (const int id : {0, 2}) {
    EXPECT_DOUBLE_EQ(played.transfers[static_cast<std::size_t>(id)].begin, 0.0);
    EXPECT_DOUBLE_EQ(played.transfers[static_cast<std::size_t>(id)].end, 4.0);
    EXPECT_DOUBLE_EQ(played.transfers[static_cast<std::size_t>(id) + 1].begin, 4.0);
    EXPECT_DOUBLE_EQ(played.transfers[static_cast<std::size_t>(id) + 1].end, 8.0);
  }
}

TEST(PlayStep, CountsTransfersThatAreUnderWayTogetherOnceAsContention) {
  for (const auto& [at_once, seconds] : {std::pair(1, 12.0), std::pair(2, 8.0)}) {
    StepProgram program = two_chains(at_once);
    program.by_rank[0].push_back(compute(1.0));
    EXPECT_DOUBLE_EQ(play_step(program).seconds, 21.0 + 0.5 * seconds);
  }
}

TEST(PlayStep, AFollowerWaitsUntilItIsIssued) {
  StepProgram program = two_chains(1);
  program.by_rank = {{action(), issue(0), wait(0), compute(1.0), issue(1), issue(2), issue(3)}};
  const PlayedStep played = play_step(program);
  EXPECT_DOUBLE_EQ(played.transfers[1].begin, 4.0);
  EXPECT_DOUBLE_EQ(played.transfers[2].begin, 7.0);
  EXPECT_TRUE(played.stuck.empty());
}

TEST(PlayStep, SaysWhatARankWaitedFor) {
  // Rank 1 sends after 3 seconds, the message takes 2, rank 0 has computed for 1 until then.
  StepProgram program = two_ranks({path(2.0)}, {{.path = 0, .traffic = Traffic::pp}});
  program.by_rank = {{action(), compute(1.0), action(), wait(0), action(), work(0.5)},
                     {action(), compute(3.0), issue(0)}};
  const PlayedStep::Rank rank = play_step(program).ranks[0];
  EXPECT_DOUBLE_EQ(rank.busy, 1.0);
  EXPECT_DOUBLE_EQ(rank.bubble, 2.0);
  EXPECT_DOUBLE_EQ(rank.exposed[0], 2.0);
  EXPECT_DOUBLE_EQ(rank.work, 0.5);
  EXPECT_DOUBLE_EQ(rank.end, 5.5);
  EXPECT_EQ(rank.action_begins, (std::vector<double>{0.0, 1.0, 5.0}));
}

TEST(PlayStep, AddsAShareOfHiddenTransfersToTheComputation) {
  StepProgram program =
      two_ranks({path(4.0)}, {{.path = 0, .channel = 0, .needed = 1, .traffic = Traffic::dp}});
  program.channels = {{.ranks = {0}, .contention = 0.1}};
  program.by_rank = {{action(), compute(1.0), issue(0), compute(5.0), wait(0), compute(2.0)}};
  const PlayedStep played = play_step(program);
  EXPECT_DOUBLE_EQ(played.seconds, 8.0 + 0.1 * 4.0);
  EXPECT_DOUBLE_EQ(played.ranks[0].exposed[1], 0.0);
  EXPECT_DOUBLE_EQ(played.ranks[0].transferring[1], 4.0);
}

TEST(PlayStep, NamesRanksThatWaitForEver) {
  StepProgram program = two_ranks({path(1.0)}, {{.path = 0}, {.path = 0}});
  program.by_rank = {{action(), action(), wait(0), issue(1)}, {action(), wait(1), issue(0)}};
  const PlayedStep played = play_step(program);
  ASSERT_EQ(played.stuck.size(), 2u);
  EXPECT_EQ(played.stuck[0].rank, 0);
  EXPECT_EQ(played.stuck[0].action, 1u);
  EXPECT_EQ(played.stuck[0].transfer, 0u);
  EXPECT_EQ(played.stuck[1].transfer, 1u);
}

}  // namespace
}  // namespace heddle
