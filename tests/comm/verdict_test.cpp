#include "comm/verdict.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

/// Four ranks that have all entered collective 5 of a group of all, and have ended it a second ago.
class Blame : public ::testing::Test {
 protected:
  Blame() {
    for (int rank = 0; rank < 4; ++rank) {
      ranks_.push_back({.rank = rank, .last_call = "all_reduce #5 of dp", .idle_seconds = 40});
      ranks_.back().begun[{.group = kAll}] = 5;
    }
  }
  RankReport& rank(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  void collective(int in, std::uint64_t group, std::vector<int> members, std::int64_t sequence,
                  const std::string& name, double seconds = 31) {
    rank(in).begun[{.group = group}] = sequence;
    rank(in).open.push_back({.op = CommOp::all_reduce,
                             .sequence = sequence,
                             .group = group,
                             .ranks = std::move(members),
                             .text = "all_reduce #" + std::to_string(sequence) + " of " + name,
                             .holds_rank = true,
                             .seconds = seconds});
  }
  void message(CommOp op, int in, int peer, double seconds) {
    rank(in).begun[{.group = kAll, .op = op, .peer = peer}] = 1;
    rank(in).open.push_back({.op = op,
                             .sequence = 1,
                             .group = kAll,
                             .ranks = {0, 1, 2, 3},
                             .peer = peer,
                             .text = std::string(name_of(op)) + " #1 of pp",
                             .holds_rank = true,
                             .seconds = seconds});
  }
  Verdict verdict() const { return judge(ranks_, 30).value_or(Verdict{-2, "none"}); }

  static constexpr std::uint64_t kAll = 1, kLow = 2, kHigh = 3;
  std::vector<RankReport> ranks_;
};

TEST_F(Blame, NobodyWhileCallsAreShort) {
  collective(0, kAll, {0, 1, 2, 3}, 6, "dp", 29);
  EXPECT_EQ(verdict().rank, -2);
}

TEST_F(Blame, TheOneThatDoesNotCome) {
  for (const int in : {0, 1, 3}) collective(in, kAll, {0, 1, 2, 3}, 6, "dp");
  EXPECT_EQ(verdict().rank, 2);
  EXPECT_EQ(verdict().text,
            "rank 2 has not entered all_reduce #6 of dp after 31.0 s; its last call was "
            "all_reduce #5 of dp, which ended 40.0 s ago");
}

TEST_F(Blame, SaysAtWhichSiteItIs) {
  for (const int in : {0, 1, 3}) collective(in, kAll, {0, 1, 2, 3}, 6, "site");
  rank(2).place = "site 1";
  ranks_[2] = rank_report_from(to_text(ranks_[2]));
  EXPECT_TRUE(verdict().text.starts_with("rank 2 (site 1) has not entered all_reduce #6 of site"))
      << verdict().text;
}

TEST_F(Blame, TheSilentOneAlthoughAllHaveEntered) {
  for (const int in : {0, 1, 2, 3}) collective(in, kAll, {0, 1, 2, 3}, 6, "dp");
  rank(2).silent_seconds = 29;  // the call began before the silence
  EXPECT_EQ(verdict().rank, 2);
  EXPECT_EQ(verdict().text,
            "rank 2 has given no sign of life for 29.0 s; it was in all_reduce #6 of dp");
}

TEST_F(Blame, TheOneWhoseHostDoesNotComeOutOfTheCall) {
  for (const int in : {0, 1, 2, 3}) collective(in, kAll, {0, 1, 2, 3}, 6, "dp");
  for (const int in : {0, 1, 3}) rank(in).open.back().is_on_device = true;
  EXPECT_EQ(verdict().rank, 2);
  EXPECT_EQ(verdict().text,
            "rank 2 has entered all_reduce #6 of dp, but not handed it to its device after 31.0 s, "
            "where the others wait; its last call was all_reduce #5 of dp, which ended 40.0 s ago");
}

TEST_F(Blame, NobodyWhenTheDevicesOfAllAreInTheCall) {
  for (const int in : {0, 1, 2, 3}) {
    collective(in, kAll, {0, 1, 2, 3}, 6, "dp");
    rank(in).open.back().is_on_device = true;
  }
  EXPECT_EQ(verdict().rank, -1);
}

TEST_F(Blame, CountsTheTimeSinceTheLastSignOfLife) {
  rank(1).idle_seconds = 0.04;
  rank(1).silent_seconds = 31;
  EXPECT_EQ(verdict().text,
            "rank 1 has given no sign of life for 31.0 s; its last call was all_reduce #5 of dp, "
            "which ended 31.0 s ago");
}

TEST_F(Blame, OfSeveralTheOneIdleForLongest) {
  for (const int in : {0, 1}) collective(in, kAll, {0, 1, 2, 3}, 6, "dp");
  rank(2).idle_seconds = 35;
  EXPECT_EQ(verdict().rank, 3);
  rank(2).idle_seconds = 45;
  EXPECT_EQ(verdict().rank, 2);
}

TEST_F(Blame, GoesAlongThoseWhoWait) {
  collective(0, kLow, {0, 1}, 1, "tp", 33);
  message(CommOp::recv, 1, 2, 20);
  collective(2, kHigh, {2, 3}, 1, "tp", 10);
  EXPECT_EQ(verdict().rank, 3);
  EXPECT_EQ(verdict().text,
            "rank 3 has not entered all_reduce #1 of tp after 10.0 s; its last call was "
            "all_reduce #5 of dp, which ended 40.0 s ago");
}

TEST_F(Blame, OneThatDoesNotSend) {
  message(CommOp::recv, 1, 0, 31);
  EXPECT_EQ(verdict().rank, 0);
  EXPECT_EQ(verdict().text.substr(0, 70),
            "rank 0 has not sent to rank 1, which waits in recv #1 of pp after 31.0");
}

TEST_F(Blame, OneThatHasEnded) {
  for (const int in : {0, 1, 3}) collective(in, kAll, {0, 1, 2, 3}, 6, "dp");
  rank(2).has_ended = true;
  EXPECT_EQ(verdict().text.substr(0, 60),
            "rank 2 has ended and has not entered all_reduce #6 of dp aft");
}

TEST_F(Blame, OneThatIsSilentOrGone) {
  rank(1).silent_seconds = 31;
  EXPECT_EQ(verdict().text,
            "rank 1 has given no sign of life for 31.0 s; its last call was all_reduce #5 of dp, "
            "which ended 71.0 s ago");
  collective(3, kAll, {0, 1, 2, 3}, 6, "dp", 0.1);
  rank(3).is_gone = true;
  EXPECT_EQ(verdict().text, "the process of rank 3 is gone; it was in all_reduce #6 of dp");
  rank(3).has_ended = true;
  EXPECT_EQ(verdict().rank, 1) << "a process that came to its end may go";
}

TEST_F(Blame, SaysWhoIsLost) {
  using Ranks = std::vector<int>;
  for (const int in : {0, 1, 3}) collective(in, kAll, {0, 1, 2, 3}, 6, "dp");
  EXPECT_EQ(verdict().lost, Ranks{2}) << "it is stuck";
  rank(2).has_ended = true;
  EXPECT_EQ(verdict().lost, Ranks()) << "it has left by itself";
  rank(2).has_ended = false;
  rank(1).is_gone = true;
  rank(3).silent_seconds = 31;
  EXPECT_EQ(verdict().lost, (Ranks{1, 3}));
  rank(1).is_gone = false;
  EXPECT_EQ(verdict().lost, Ranks{3});
}

TEST_F(Blame, NobodyIsLostWhereRanksDoNotAgree) {
  collective(0, kLow, {0, 1}, 6, "tp");
  collective(1, kHigh, {0, 1}, 6, "cp");
  EXPECT_EQ(verdict().lost, std::vector<int>());
}

TEST_F(Blame, OneThatIsGoneOrSilentWithTheCallInWhichAnotherWaitsForIt) {
  collective(3, kLow, {2, 3}, 4, "tp", 0);  // what rank 3 said a while ago
  message(CommOp::recv, 0, 2, 8);           // of somebody else
  message(CommOp::recv, 1, 3, 5);
  rank(3).is_gone = true;
  EXPECT_EQ(verdict().text, "the process of rank 3 is gone; rank 1 waits for it in recv #1 of pp");
  rank(3).is_gone = false;
  rank(3).silent_seconds = 31;
  EXPECT_EQ(verdict().text,
            "rank 3 has given no sign of life for 31.0 s; rank 1 waits for it in recv #1 of pp");
  // It had sent: rank 1 does not wait for it.
  rank(3).begun[{.group = kAll, .op = CommOp::send, .peer = 1}] = 1;
  EXPECT_EQ(verdict().text,
            "rank 3 has given no sign of life for 31.0 s; it was in all_reduce #4 of tp");
}

TEST_F(Blame, OneThatNeverSaidAnythingWithHowFarAnotherIs) {
  ranks_ = {{.rank = 0, .is_gone = true},
            {.rank = 1, .last_call = "recv #7 of cp from rank 2"},
            {.rank = 2},
            {.rank = 3}};
  EXPECT_EQ(verdict().text,
            "the process of rank 0 is gone; rank 1 has just ended recv #7 of cp from rank 2");
  message(CommOp::recv, 1, 2, 0);
  EXPECT_EQ(verdict().text, "the process of rank 0 is gone; rank 1 is in recv #1 of pp");
}

TEST_F(Blame, OneForWhichMostOthersWait) {
  for (const int in : {0, 1, 3}) collective(in, kAll, {0, 1, 2, 3}, 6, "dp");
  collective(2, kHigh, {2, 3}, 1, "tp");
  EXPECT_EQ(verdict().rank, 2);
  EXPECT_EQ(
      verdict().text.substr(0, 85),
      "rank 2 is out of step: it is in all_reduce #1 of tp, rank 0 waits in all_reduce #6 of");
}

TEST_F(Blame, TheFirstOutOfStep) {
  // Rank 3 left out the call that rank 2 waits in; all others wait for rank 2.
  for (const int in : {0, 1, 3}) collective(in, kAll, {0, 1, 2, 3}, 6, "dp");
  collective(2, kHigh, {2, 3}, 1, "tp");
  for (RankReport& r : ranks_) {
    r.made = 3;
    r.recent = {10, 20, 30};
  }
  rank(3).recent = {10, 30, 40};
  EXPECT_EQ(verdict().rank, 3);
}

TEST_F(Blame, NamesBothWhereTwoWaitForEachOther) {
  message(CommOp::recv, 1, 0, 31);
  message(CommOp::recv, 0, 1, 32);
  EXPECT_EQ(verdict().rank, -1);
  EXPECT_EQ(verdict().text,
            "ranks wait for each other: rank 0 is in recv #1 of pp, rank 1 is in recv #1 of pp");
}

TEST_F(Blame, ReportsTravelAsText) {
  message(CommOp::recv, 1, 0, 31);
  rank(1).made = 7;
  rank(1).recent = {~0ULL, 2};
  const RankReport copy = rank_report_from(to_text(rank(1)));
  EXPECT_EQ(to_text(copy), to_text(rank(1)));
  EXPECT_EQ(copy.recent, rank(1).recent);
  EXPECT_EQ(copy.open[0].text, "recv #1 of pp");
  EXPECT_EQ(copy.begun, rank(1).begun);
}

}  // namespace
}  // namespace heddle
