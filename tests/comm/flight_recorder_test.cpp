#include "comm/flight_recorder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file_system.h"
#include "base/json.h"
#include "comm/record/record_communicator.h"
#include "comm/threads/thread_world.h"

namespace heddle {
namespace {

class Recorded : public ::testing::Test {
 protected:
  Tensor tensor(const Shape& shape) {
    return memory_.zeros(shape, DType::f32, MemoryTag::communication);
  }
  Memory memory_;
  Stream stream_{1};
  RecordCommunicator comm_{1, 4};
};

TEST_F(Recorded, AGroupOfAnySizeAnswersAtOnce) {
  EXPECT_EQ(comm_.rank(), 1);
  EXPECT_EQ(comm_.size(), 4);
  comm_.all_gather(tensor({2}), tensor({8}), stream_).wait(stream_);
  comm_.send(tensor({2}), 2, stream_).wait(stream_);
  comm_.recv(tensor({2}), 0, stream_, 5).wait(stream_);
  comm_.barrier();
  const auto& counts = comm_.counts().by_op;
  EXPECT_EQ(counts[static_cast<std::size_t>(CommOp::all_gather)].payload_bytes, 32);
  EXPECT_EQ(counts[static_cast<std::size_t>(CommOp::send)].payload_bytes, 8);
  EXPECT_THROW(comm_.split(0, 0), Error);
  EXPECT_THROW(RecordCommunicator(4, 4), Error);
}

TEST_F(Recorded, CallsAreNumberedTaggedAndTimed) {
  comm_.set_name("dp");
  comm_.flight().set_tag(
      {.what = "F", .unit = std::make_shared<std::string>("block 7"), .microbatch = 3});
  comm_.all_reduce(tensor({2, 3}), ReduceOp::sum, stream_).wait(stream_);
  comm_.flight().set_tag({.what = "step"});
  comm_.recv(tensor({2}), 0, stream_, 5).wait(stream_);
  comm_.flight().set_tag({});
  comm_.barrier();
  const auto calls = comm_.flight().calls();
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[0].text(), "all_reduce #1 of dp (f32 [2, 3], F of block 7, micro-batch 3)");
  EXPECT_EQ(calls[1].text(), "recv #1 of dp from rank 0 with tag 5 (f32 [2], step)");
  EXPECT_EQ(calls[2].text(), "barrier #2 of dp");
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(calls[i].number, static_cast<std::int64_t>(i) + 1);
    EXPECT_EQ(calls[i].state, CommCall::State::done);
    EXPECT_LE(calls[i].queued, calls[i].started);
    EXPECT_LE(calls[i].started, calls[i].ended);
  }
}

TEST_F(Recorded, CallsInsideAttentionNameTheRound) {
  comm_.set_name("cp");
  comm_.flight().set_tag(
      {.what = "B", .unit = std::make_shared<std::string>("block 7"), .microbatch = 3});
  comm_.flight().set_attention_round(0);
  comm_.recv(tensor({2}), 0, stream_).wait(stream_);
  comm_.flight().set_attention_round(-1);
  comm_.barrier();
  const auto calls = comm_.flight().calls();
  EXPECT_EQ(calls[0].text(),
            "recv #1 of cp from rank 0 (f32 [2], B of block 7, micro-batch 3, round 0 of "
            "attention)");
  EXPECT_EQ(calls[1].text(), "barrier #1 of cp (B of block 7, micro-batch 3)");
}

TEST_F(Recorded, TheLastThousandCallsAreKept) {
  for (int i = 0; i < 1234; ++i) comm_.barrier();
  const auto calls = comm_.flight().calls();
  ASSERT_EQ(calls.size(), 1000U);
  EXPECT_EQ(calls.front().number, 235);
  EXPECT_EQ(calls.back().number, 1234);
}

TEST_F(Recorded, CallsAreWrittenAsJsonLines) {
  comm_.set_name("tp");
  comm_.all_reduce(tensor({2, 3}), ReduceOp::sum, stream_).wait(stream_);
  comm_.send(tensor({2}), 3, stream_).wait(stream_);
  const auto folder = std::filesystem::path(::testing::TempDir()) / "flight_test";
  comm_.flight().write(folder / "rank-1.jsonl");
  const std::string text = read_text_file(folder / "rank-1.jsonl");
  std::filesystem::remove_all(folder);
  const auto end = text.find('\n');
  const Json first = parse_json(text.substr(0, end), "first"),
             second = parse_json(text.substr(end + 1), "second");
  EXPECT_EQ(first["op"], "all_reduce");
  EXPECT_EQ(first["group"], "tp");
  EXPECT_EQ(first["rank"], 1);
  EXPECT_EQ(first["shape"], Json::parse("[2, 3]"));
  EXPECT_EQ(first["bytes"], 24);
  EXPECT_EQ(first["state"], "done");
  EXPECT_GT(first["ended"].get<double>(), 1.7e9);
  EXPECT_FALSE(first.contains("peer"));
  EXPECT_EQ(second["peer"], 3);
}

TEST_F(Recorded, AHookMayLeaveACallOut) {
  int asked = 0;
  comm_.flight().set_hook([&](const CommCall&) { return ++asked != 2; });
  for (int i = 0; i < 3; ++i) comm_.barrier();
  const auto calls = comm_.flight().calls();
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[1].sequence, 2) << "and its number goes to the next";
}

TEST(FlightOfThreads, FailedCallsAreMarked) {
  ThreadWorld threads(2);
  EXPECT_THROW(threads.run([](World& world) {
    if (world.rank() == 1) fail(ErrorCode::data, "stop");
    world.all().barrier();
  }),
               Error);
  const auto calls = threads.world(0).flight().calls();
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].state, CommCall::State::failed);
}

/// A device that does the calls of one group in order.
class OnDevice : public ::testing::Test {
 protected:
  std::int64_t hand_over() {
    const std::int64_t number = flight_.add(
        {.sequence = ++made_, .group_name = "dp", .group = group_, .op = CommOp::all_reduce});
    flight_.start(number);
    flight_.hand_over(number, {.has_begun = [this, n = made_] { return begun_ >= n; },
                               .has_ended = [this, n = made_] { return ended_ >= n; }});
    flight_.end(number, false);
    return number;
  }

  const std::shared_ptr<const Group> group_ =
      std::make_shared<Group>(Group{.ranks = {0, 1}, .id = 9});
  FlightRecorder flight_{0};
  std::int64_t made_ = 0, begun_ = 0, ended_ = 0;
};

TEST_F(OnDevice, ACallIsOpenFromWhenTheDeviceComesToItUntilItHasEndedIt) {
  flight_.wait(hand_over());
  EXPECT_TRUE(flight_.report().open.empty());
  EXPECT_TRUE(flight_.report().begun.empty());
  begun_ = 1;
  const RankReport in_call = rank_report_from(to_text(flight_.report()));
  ASSERT_EQ(in_call.open.size(), 1U);
  EXPECT_TRUE(in_call.open[0].is_on_device);
  EXPECT_TRUE(in_call.open[0].holds_rank);
  EXPECT_LT(in_call.open[0].seconds, 60);
  EXPECT_EQ(in_call.begun.at({.group = 9}), 1);
  ended_ = 1;
  const RankReport behind = flight_.report();
  EXPECT_TRUE(behind.open.empty());
  EXPECT_EQ(behind.last_call, "all_reduce #1 of dp (f32 [])");
  EXPECT_EQ(behind.begun.at({.group = 9}), 1);
}

TEST_F(OnDevice, TheHostMayBeAheadByMoreCallsThanAreKept) {
  begun_ = 1;
  for (std::size_t i = 0; i < 2 * FlightRecorder::kCalls; ++i) hand_over();
  const RankReport report = flight_.report();
  ASSERT_EQ(report.open.size(), 1U);
  EXPECT_EQ(report.open[0].sequence, 1);
  EXPECT_EQ(report.begun.at({.group = 9}), 1);
  begun_ = ended_ = made_;
  EXPECT_TRUE(flight_.report().open.empty());
  EXPECT_EQ(flight_.report().begun.at({.group = 9}), made_);
}

}  // namespace
}  // namespace heddle
