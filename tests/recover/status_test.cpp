#include "recover/membership/status.h"

#include <gtest/gtest.h>

#include "recover/membership/causes.h"
#include "recover/membership/note_wire.h"
#include "recover/membership/reports.h"
#include "recover/simulated_network.h"

namespace heddle::recover {
namespace {

Status a_status() {
  return {.run = 7,
          .from = 42,
          .sequence = 3,
          .epoch = 5,
          .is_stepping = true,
          .end = Status::End::here,
          .cause = "the process of rank 2 is gone",
          .report = to_text(RankReport{.rank = 1})};
}

TEST(Status, WhatIsSealedIsOpened) {
  Status status = a_status();
  EXPECT_EQ(*open_status(seal(status, right_token()), right_token()), status);
  status.end = Status::End::everywhere;
  status.is_stepping = false;
  EXPECT_EQ(*open_status(seal(status, right_token()), right_token()), status);
  EXPECT_EQ(*open_status(seal(Status{}, right_token()), right_token()), Status{});
}

TEST(Status, EveryFlippedBitAndOtherLengthAndTokenIsRefused) {
  const auto message = seal(a_status(), right_token());
  for (std::size_t bit = 0; bit < 8 * message.size(); ++bit) {
    auto damaged = message;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(open_status(damaged, right_token())) << bit;
  }
  for (std::size_t size = 0; size < message.size(); ++size) {
    EXPECT_FALSE(open_status(std::span(message).first(size), right_token())) << size;
  }
  EXPECT_FALSE(open_status(message, wrong_token()));
}

TEST(Status, IsNeverTakenForANote) {
  EXPECT_FALSE(open(seal(a_status(), right_token()), right_token()));
  const Note note{.kind = Note::Kind::heartbeat, .run = 1, .from = {.id = 7}, .sequence = 1};
  EXPECT_FALSE(open_status(seal(note, right_token()), right_token()));
}

TEST(Status, ACauseThatIsTooLongIsCut) {
  Status status = a_status();
  status.cause.assign(100'000, 'x');
  const auto opened = open_status(seal(status, right_token()), right_token());
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->cause, std::string(4096, 'x'));
  EXPECT_EQ(opened->report, status.report);
}

RankReport report_of(int rank, double waits, std::int64_t begun) {
  RankReport report{.rank = rank};
  report.begun[{.group = 1}] = begun;
  if (waits > 0) {
    report.open.push_back({.op = CommOp::all_reduce,
                           .sequence = begun,
                           .group = 1,
                           .ranks = {0, 1, 2},
                           .text = "all_reduce #9 of dp (F of block 7)",
                           .holds_rank = true,
                           .seconds = waits});
  }
  return report;
}

TEST(Reports, NameWhoMakesNoCallAndWhoIsSilent) {
  Reports reports(3, milliseconds(0));
  const auto tell = [&](int rank, std::uint64_t sequence, double waits, std::int64_t begun,
                        Duration now) {
    const RankReport report = report_of(rank, waits, begun);
    reports.receive(static_cast<std::size_t>(rank),
                    {.sequence = sequence, .is_stepping = true, .report = to_text(report)}, report,
                    now);
  };
  tell(1, 1, 0.0, 8, milliseconds(900));
  tell(2, 1, 2.0, 9, milliseconds(1000));
  const RankReport own = report_of(0, 2.1, 9);
  EXPECT_TRUE(reports.all_are_stepping(0));
  const auto verdict = reports.verdict(own, milliseconds(1500), milliseconds(1000));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->lost, std::vector<int>{1});
  EXPECT_NE(verdict->text.find("rank 1 has not entered all_reduce #9 of dp (F of block 7)"),
            std::string::npos)
      << verdict->text;
  EXPECT_FALSE(reports.verdict(own, milliseconds(3000), milliseconds(1000)));

  tell(2, 1, 0.0, 10, milliseconds(5000));  // an old one again
  EXPECT_EQ(reports.silence(2, milliseconds(5000)), milliseconds(4000));
  EXPECT_NE(reports.text_of_gone(2, own, milliseconds(1000)).find("the process of rank 2 is gone"),
            std::string::npos);
}

TEST(AtWorkWith, IsTheCallThatWaitsForTheRankOrElseTheLastOne) {
  RankReport own{.rank = 2};
  EXPECT_EQ(at_work_with(own, 1), "");
  own.last_call = "send #3 of pp to rank 3 (F of block 1, micro-batch 2)";
  EXPECT_EQ(at_work_with(own, 1), "rank 2 has just ended " + own.last_call);
  own.open.push_back({.op = CommOp::recv, .peer = 3, .text = "recv #9 of pp from rank 3"});
  EXPECT_EQ(at_work_with(own, 1), "rank 2 has just ended " + own.last_call);
  own.open.push_back({.op = CommOp::recv, .peer = 1, .text = "recv #4 of pp from rank 1"});
  EXPECT_EQ(at_work_with(own, 1), "rank 2 is in recv #4 of pp from rank 1");
  own.open.push_back({.op = CommOp::all_reduce,
                      .ranks = {1, 2},
                      .text = "all_reduce #5 of dp",
                      .holds_rank = true});
  EXPECT_EQ(at_work_with(own, 1), "rank 2 is in all_reduce #5 of dp");
}

TEST(Causes, KeepWhatIsKnownBestAndFirst) {
  Causes causes;
  EXPECT_EQ(causes.of(3).text, "");
  causes.set(3, "somebody is lost", Causes::Source::guess);
  causes.ended(3, milliseconds(10));
  causes.set(3, "rank 2 is gone", Causes::Source::own, milliseconds(7));
  causes.set(3, "rank 1 says otherwise", Causes::Source::others);
  causes.set(3, "another loss", Causes::Source::own, milliseconds(9));
  causes.decided(3, milliseconds(30));
  EXPECT_EQ(causes.of(3).text, "rank 2 is gone");
  EXPECT_EQ(causes.of(3).detect, milliseconds(7));
  EXPECT_EQ(causes.of(3).ended_at, milliseconds(10));
  EXPECT_EQ(causes.of(3).decided_at, milliseconds(30));
  causes.decided(4, milliseconds(50));  // nobody has said that it ended
  EXPECT_EQ(causes.of(4).ended_at, milliseconds(50));
}

}  // namespace
}  // namespace heddle::recover
