#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "base/error.h"
#include "parallel/schedule/advance.h"
#include "parallel/schedule/checks.h"
#include "parallel/schedule/make_schedule.h"

namespace heddle {
namespace {

struct Golden {
  const char* name;
  PipeShape shape;
  const char* text;
};

const Golden kGolden[] = {
    {"gpipe",
     {2, 3, 1},
     "F0 F1 F2 BW0 BW1 BW2\n"
     "F0 F1 F2 BW0 BW1 BW2\n"},
    {"1f1b",
     {2, 3, 1},
     "F0 F1 BW0 F2 BW1 BW2\n"
     "F0 BW0 F1 BW1 F2 BW2\n"},
    {"interleaved",
     {2, 3, 2},
     "F0s0 F1s0 F2s0 F0s2 F1s2 F2s2 BW0s2 BW1s2 BW2s2 BW0s0 BW1s0 BW2s0\n"
     "F0s1 F1s1 F2s1 F0s3 BW0s3 F1s3 BW1s3 F2s3 BW2s3 BW0s1 BW1s1 BW2s1\n"},
    {"interleaved",
     {4, 8, 2},
     "F0s0 F1s0 F2s0 F3s0 F0s4 F1s4 F2s4 F3s4 F4s0 F5s0 F6s0 BW0s4 F7s0 BW1s4 F4s4 BW2s4 F5s4 "
     "BW3s4 F6s4 BW0s0 F7s4 BW1s0 BW2s0 BW3s0 BW4s4 BW5s4 BW6s4 BW7s4 BW4s0 BW5s0 BW6s0 BW7s0\n"
     "F0s1 F1s1 F2s1 F3s1 F0s5 F1s5 F2s5 F3s5 F4s1 BW0s5 F5s1 BW1s5 F6s1 BW2s5 F7s1 BW3s5 F4s5 "
     "BW0s1 F5s5 BW1s1 F6s5 BW2s1 F7s5 BW3s1 BW4s5 BW5s5 BW6s5 BW7s5 BW4s1 BW5s1 BW6s1 BW7s1\n"
     "F0s2 F1s2 F2s2 F3s2 F0s6 F1s6 F2s6 BW0s6 F3s6 BW1s6 F4s2 BW2s6 F5s2 BW3s6 F6s2 BW0s2 "
     "F7s2 BW1s2 F4s6 BW2s2 F5s6 BW3s2 F6s6 BW4s6 F7s6 BW5s6 BW6s6 BW7s6 BW4s2 BW5s2 BW6s2 "
     "BW7s2\n"
     "F0s3 F1s3 F2s3 F3s3 F0s7 BW0s7 F1s7 BW1s7 F2s7 BW2s7 F3s7 BW3s7 F4s3 BW0s3 F5s3 BW1s3 "
     "F6s3 BW2s3 F7s3 BW3s3 F4s7 BW4s7 F5s7 BW5s7 F6s7 BW6s7 F7s7 BW7s7 BW4s3 BW5s3 BW6s3 "
     "BW7s3\n"},
    {"zb-h1",
     {2, 3, 1},
     "F0 F1 B0 W0 F2 B1 W1 B2 W2\n"
     "F0 B0 F1 B1 W0 F2 B2 W1 W2\n"},
    {"zb-h1",
     {4, 8, 1},
     "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7\n"
     "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7\n"
     "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7\n"
     "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7\n"},
    {"zb-h2",
     {2, 3, 1},
     "F0 F1 F2 B0 W0 B1 W1 B2 W2\n"
     "F0 B0 F1 B1 F2 B2 W0 W1 W2\n"},
    {"zb-h2",
     {4, 8, 1},
     "F0 F1 F2 F3 F4 F5 F6 B0 W0 F7 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5 B6 W6 B7 W7\n"
     "F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 W0 F7 B3 W1 B4 W2 B5 W3 B6 W4 B7 W5 W6 W7\n"
     "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 W0 F7 B5 W1 B6 W2 B7 W3 W4 W5 W6 W7\n"
     "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 W0 F7 B7 W1 W2 W3 W4 W5 W6 W7\n"},
    {"zb-v",
     {2, 3, 1},
     "F0s0 F1s0 F2s0 F0s3 B0s3 W0s3 F1s3 B1s3 W1s3 B0s0 W0s0 F2s3 B2s3 W2s3 B1s0 W1s0 B2s0 "
     "W2s0\n"
     "F0s1 F0s2 F1s1 F1s2 B0s2 W0s2 F2s1 B0s1 W0s1 F2s2 B1s2 W1s2 B1s1 W1s1 B2s2 W2s2 B2s1 "
     "W2s1\n"},
    {"zb-v",
     {4, 8, 1},
     "F0s0 F1s0 F2s0 F3s0 F4s0 F5s0 F6s0 F0s7 B0s7 W0s7 F1s7 B1s7 W1s7 F2s7 B2s7 W2s7 F3s7 "
     "B3s7 W3s7 F7s0 B0s0 W0s0 F4s7 B4s7 W4s7 B1s0 W1s0 F5s7 B5s7 W5s7 B2s0 W2s0 F6s7 B6s7 "
     "W6s7 B3s0 W3s0 F7s7 B7s7 W7s7 B4s0 W4s0 B5s0 W5s0 B6s0 W6s0 B7s0 W7s0\n"
     "F0s1 F1s1 F2s1 F3s1 F4s1 F0s6 F5s1 F1s6 B0s6 W0s6 F2s6 B1s6 W1s6 F3s6 B2s6 W2s6 F6s1 "
     "B0s1 W0s1 F4s6 B3s6 W3s6 F7s1 B1s1 W1s1 F5s6 B4s6 W4s6 B2s1 W2s1 F6s6 B5s6 W5s6 B3s1 "
     "W3s1 F7s6 B6s6 W6s6 B4s1 B7s6 B5s1 W4s1 B6s1 W5s1 B7s1 W6s1 W7s6 W7s1\n"
     "F0s2 F1s2 F2s2 F0s5 F3s2 F1s5 F4s2 F2s5 B0s5 W0s5 F3s5 B1s5 W1s5 F5s2 B0s2 W0s2 F4s5 "
     "B2s5 W2s5 F6s2 B1s2 W1s2 F5s5 B3s5 W3s5 F7s2 B2s2 W2s2 F6s5 B4s5 W4s5 B3s2 W3s2 F7s5 "
     "B5s5 W5s5 B4s2 B6s5 B5s2 B7s5 B6s2 W4s2 B7s2 W5s2 W6s5 W7s5 W6s2 W7s2\n"
     "F0s3 F0s4 F1s3 F1s4 F2s3 F2s4 F3s3 F3s4 B0s4 W0s4 F4s3 B0s3 W0s3 F4s4 B1s4 W1s4 F5s3 "
     "B1s3 W1s3 F5s4 B2s4 W2s4 F6s3 B2s3 W2s3 F6s4 B3s4 W3s4 F7s3 B3s3 W3s3 F7s4 B4s4 W4s4 "
     "B4s3 B5s4 B5s3 B6s4 B6s3 B7s4 B7s3 W4s3 W5s4 W6s4 W7s4 W5s3 W6s3 W7s3\n"},
    {"v-min",
     {2, 3, 1},
     "F0s0 F0s3 B0s3 W0s3 F1s0 B0s0 W0s0 F1s3 B1s3 W1s3 F2s0 B1s0 W1s0 F2s3 B2s3 W2s3 B2s0 "
     "W2s0\n"
     "F0s1 F0s2 B0s2 B0s1 F1s1 F1s2 W0s2 W0s1 B1s2 B1s1 F2s1 F2s2 W1s2 W1s1 B2s2 B2s1 W2s2 "
     "W2s1\n"},
    {"v-min",
     {4, 8, 1},
     "F0s0 F1s0 F0s7 B0s7 W0s7 F2s0 F1s7 B1s7 B0s0 W1s7 W0s0 F3s0 F2s7 B2s7 B1s0 W2s7 W1s0 "
     "F4s0 F3s7 B3s7 B2s0 W3s7 W2s0 F5s0 F4s7 B4s7 B3s0 W4s7 W3s0 F6s0 F5s7 B5s7 B4s0 W5s7 "
     "W4s0 F7s0 F6s7 B6s7 B5s0 W6s7 W5s0 F7s7 B7s7 B6s0 W7s7 W6s0 B7s0 W7s0\n"
     "F0s1 F0s6 F1s1 B0s6 W0s6 F1s6 F2s1 B0s1 B1s6 W0s1 W1s6 F2s6 F3s1 B1s1 B2s6 W1s1 W2s6 "
     "F3s6 F4s1 B2s1 B3s6 W2s1 W3s6 F4s6 F5s1 B3s1 B4s6 W3s1 W4s6 F5s6 F6s1 B4s1 B5s6 W4s1 "
     "W5s6 F6s6 F7s1 B5s1 B6s6 W5s1 W6s6 F7s6 B6s1 B7s6 W6s1 W7s6 B7s1 W7s1\n"
     "F0s2 F0s5 F1s2 B0s5 F1s5 W0s5 B0s2 F2s2 W0s2 B1s5 F2s5 W1s5 B1s2 F3s2 W1s2 B2s5 F3s5 "
     "W2s5 B2s2 F4s2 W2s2 B3s5 F4s5 W3s5 B3s2 F5s2 W3s2 B4s5 F5s5 W4s5 B4s2 F6s2 W4s2 B5s5 "
     "F6s5 W5s5 B5s2 F7s2 W5s2 B6s5 F7s5 W6s5 B6s2 W6s2 B7s5 W7s5 B7s2 W7s2\n"
     "F0s3 F0s4 F1s3 F1s4 B0s4 B0s3 W0s4 W0s3 F2s3 F2s4 B1s4 B1s3 W1s4 W1s3 F3s3 F3s4 B2s4 "
     "B2s3 W2s4 W2s3 F4s3 F4s4 B3s4 B3s3 W3s4 W3s3 F5s3 F5s4 B4s4 B4s3 W4s4 W4s3 F6s3 F6s4 "
     "B5s4 B5s3 W5s4 W5s3 F7s3 F7s4 B6s4 B6s3 W6s4 W6s3 B7s4 B7s3 W7s4 W7s3\n"},
    {"v-half",
     {2, 3, 1},
     "F0s0 F1s0 F2s0 F0s3 B0s3 W0s3 F1s3 B1s3 B0s0 W1s3 W0s0 F2s3 B2s3 B1s0 W2s3 B2s0 W1s0 "
     "W2s0\n"
     "F0s1 F0s2 F1s1 F1s2 B0s2 B0s1 W0s2 F2s1 W0s1 F2s2 B1s2 B1s1 B2s2 B2s1 W1s2 W1s1 W2s2 "
     "W2s1\n"},
    {"v-half",
     {4, 8, 1},
     "F0s0 F1s0 F2s0 F3s0 F4s0 F0s7 B0s7 W0s7 F1s7 B1s7 W1s7 F2s7 B2s7 W2s7 B0s0 F5s0 W0s0 "
     "F3s7 B3s7 W3s7 B1s0 F6s0 W1s0 F4s7 B4s7 W4s7 B2s0 F7s0 W2s0 F5s7 B5s7 W5s7 B3s0 W3s0 "
     "F6s7 B6s7 W6s7 B4s0 W4s0 F7s7 B7s7 B5s0 W7s7 B6s0 W5s0 W6s0 B7s0 W7s0\n"
     "F0s1 F1s1 F2s1 F3s1 F0s6 F1s6 B0s6 W0s6 F2s6 B1s6 W1s6 F4s1 B0s1 B2s6 W0s1 F3s6 W2s6 "
     "F5s1 B1s1 B3s6 W1s1 F4s6 W3s6 F6s1 B2s1 B4s6 W2s1 F5s6 W4s6 F7s1 B3s1 B5s6 W3s1 F6s6 "
     "W5s6 B4s1 B6s6 W4s1 F7s6 W6s6 B5s1 B7s6 B6s1 W5s1 W7s6 W6s1 B7s1 W7s1\n"
     "F0s2 F1s2 F2s2 F0s5 F1s5 F2s5 B0s5 W0s5 F3s2 B1s5 B0s2 W1s5 W0s2 F3s5 F4s2 B2s5 B1s2 "
     "W2s5 W1s2 F4s5 F5s2 B3s5 B2s2 W3s5 W2s2 F5s5 F6s2 B4s5 B3s2 W4s5 W3s2 F6s5 F7s2 B5s5 "
     "B4s2 W5s5 W4s2 F7s5 B6s5 B5s2 W6s5 B6s2 B7s5 W5s2 W6s2 B7s2 W7s5 W7s2\n"
     "F0s3 F0s4 F1s3 F1s4 F2s3 F2s4 B0s4 B0s3 W0s4 F3s3 W0s3 F3s4 B1s4 B1s3 W1s4 F4s3 W1s3 "
     "F4s4 B2s4 B2s3 W2s4 F5s3 W2s3 F5s4 B3s4 B3s3 W3s4 F6s3 W3s3 F6s4 B4s4 B4s3 W4s4 F7s3 "
     "W4s3 F7s4 B5s4 B5s3 B6s4 B6s3 W5s4 W5s3 B7s4 B7s3 W6s4 W6s3 W7s4 W7s3\n"},
};

TEST(Generators, GiveTheOrdersWrittenDownHere) {
  for (const auto& [name, shape, text] : kGolden) {
    EXPECT_EQ(to_text(make_schedule(pipeline_named(name), shape)), text) << name;
  }
}

/// Every schedule with the chunks it may have.
std::vector<std::pair<std::string_view, int>> schedules_and_chunks() {
  std::vector<std::pair<std::string_view, int>> all;
  for (const std::string_view name : schedule_names()) all.emplace_back(name, 1);
  for (const int chunks : {2, 3, 5}) all.emplace_back("interleaved", chunks);
  return all;
}

void expect_valid(std::string_view name, const PipeShape& shape) {
  for (const Diagnostic& wrong : validate(lower(make_schedule(pipeline_named(name), shape)))) {
    ADD_FAILURE() << name << " " << shape.ranks << " x " << shape.microbatches << " x "
                  << shape.chunks << ", rank " << wrong.rank << ": " << wrong.message;
  }
}

TEST(Generators, AreValidForAnyRanksAndMicroBatches) {
  for (const auto& [name, chunks] : schedules_and_chunks()) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int mb = 1; mb <= 20; ++mb) expect_valid(name, {ranks, mb, chunks});
    }
    for (const auto& [ranks, mb] : {std::pair{13, 7}, {16, 64}, {32, 31}, {3, 100}, {33, 70}}) {
      expect_valid(name, {ranks, mb, chunks});
    }
  }
}

TEST(Generators, HoldAsManyMicroBatchesAsTheirPapersSay) {
  const auto peak_of_rank_0 = [](std::string_view name, const PipeShape& shape) {
    return peak_in_flight(make_schedule(pipeline_named(name), shape)).front();
  };
  EXPECT_EQ(peak_of_rank_0("gpipe", {4, 8}), 8.0);
  EXPECT_EQ(peak_of_rank_0("1f1b", {4, 8}), 4.0);
  EXPECT_EQ(peak_of_rank_0("interleaved", {4, 8, 2}), 5.5);
  EXPECT_EQ(peak_of_rank_0("interleaved", {8, 32, 4}), 9.75);
  for (const auto& [ranks, mb] : {std::pair{4, 16}, {8, 64}, {16, 64}}) {
    EXPECT_EQ(peak_of_rank_0("zb-h1", {ranks, mb}), ranks);
    EXPECT_EQ(peak_of_rank_0("zb-h2", {ranks, mb}), 2 * ranks - 1);
    EXPECT_EQ(peak_of_rank_0("zb-v", {ranks, mb}), ranks);
  }
}

TEST(Generators, OfTheVShapeSaveMemoryOnEveryRank) {
  const auto largest = [](std::string_view name, const PipeShape& shape) {
    return std::ranges::max(peak_in_flight(make_schedule(pipeline_named(name), shape)));
  };
  EXPECT_EQ(largest("v-min", {4, 16}), 2.0);
  EXPECT_EQ(largest("v-min", {8, 64}), 4.0);
  EXPECT_EQ(largest("v-min", {16, 64}), 6.0);
  EXPECT_EQ(largest("v-half", {4, 16}), 3.0);
  EXPECT_EQ(largest("v-half", {8, 64}), 5.0);
  EXPECT_EQ(largest("v-half", {16, 64}), 9.0);
}

TEST(MessagesUnderWay, AreFewUnlessRanksDoNotDivideInterleavedMicroBatches) {
  const auto most = [](std::string_view name, const PipeShape& shape) {
    return messages_under_way(lower(make_schedule(pipeline_named(name), shape)));
  };
  for (const std::string_view name : schedule_names()) {
    EXPECT_EQ(most(name, {1, 4}), 0) << name;
    // Rank 0 hears of all micro-batches twice, of the head and of the first stage.
    const int few = name == "routes" ? 5 : 3;
    for (const int ranks : {2, 3, 4, 8, 16}) {
      EXPECT_LE(most(name, {ranks, 4 * ranks}), few) << name << " on " << ranks;
    }
  }
  EXPECT_LE(most("interleaved", {8, 32, 4}), 3);
  // The second half of a group of 15 waits for the first to come round.
  EXPECT_GE(most("interleaved", {8, 15, 2}), 8);
}

/// Whether the ranks come to their end when a send waits until fewer than `room` messages are on
/// their way to the same rank.
bool runs_with_room(const Schedule& lowered, int room) {
  std::map<std::pair<int, int>, int> under_way;
  std::set<std::tuple<Act, int, int>> sent;
  std::vector<std::size_t> next;
  return advance_all(lowered.by_rank, next, [&](const Action& action, int rank) {
    if (is_send(action.act)) {
      if (under_way[{rank, action.peer}] >= room) return false;
      ++under_way[{rank, action.peer}];
      sent.insert({action.act, action.stage, action.microbatch});
    } else if (is_receive(action.act)) {
      const Act send = action.act == Act::recv_act ? Act::send_act : Act::send_grad;
      if (!sent.contains({send, other_stage(lowered, action), action.microbatch})) return false;
      --under_way[{action.peer, rank}];
    }
    return true;
  });
}

TEST(MessagesUnderWay, AreRoomEnough) {
  for (const auto& [name, chunks] : schedules_and_chunks()) {
    for (int ranks = 2; ranks <= 8; ++ranks) {
      for (const int mb : {1, 3, 4, 7, 11, 15, 16}) {
        const Schedule lowered = lower(make_schedule(pipeline_named(name), {ranks, mb, chunks}));
        EXPECT_TRUE(runs_with_room(lowered, messages_under_way(lowered)))
            << name << " " << ranks << " x " << mb << " x " << chunks;
      }
    }
  }
  EXPECT_FALSE(runs_with_room(lower(make_schedule(Pipeline::interleaved, {4, 11, 2})), 2));
}

TEST(Generators, PlaceStagesInALoopInAVOrRound) {
  EXPECT_EQ(make_schedule(Pipeline::one_f_one_b, {3, 1}).rank_of_stage, (std::vector{0, 1, 2}));
  EXPECT_EQ(make_schedule(Pipeline::interleaved, {3, 1, 2}).rank_of_stage,
            (std::vector{0, 1, 2, 0, 1, 2}));
  for (const auto name : {"zb-v", "v-min", "v-half"}) {
    EXPECT_EQ(make_schedule(pipeline_named(name), {3, 1}).rank_of_stage,
              (std::vector{0, 1, 2, 2, 1, 0}));
    EXPECT_EQ(make_schedule(pipeline_named(name), {3, 1, 2}).rank_of_stage,
              (std::vector{0, 1, 2, 2, 1, 0}));
  }
  EXPECT_EQ(make_schedule(Pipeline::routes, {3, 1}).rank_of_stage, (std::vector{0, 1, 2, 0}));
}

TEST(Generators, InterleavingOneChunkIsOneFOneB) {
  EXPECT_EQ(to_text(make_schedule(Pipeline::interleaved, {4, 6, 1})),
            to_text(make_schedule(Pipeline::one_f_one_b, {4, 6})));
}

/// The error of make_schedule: its message, a bar, its hint.
std::string error_of(std::string_view name, const PipeShape& shape) {
  try {
    make_schedule(pipeline_named(name), shape);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.message() + " | " + error.hint();
  }
  return "no error";
}

TEST(MakeSchedule, SaysWhatToChangeWhereAScheduleCannotDoIt) {
  EXPECT_EQ(error_of("1f1b", {4, 8, 2}),
            "schedule 1f1b has one chunk per rank, not 2 | leave chunks = 1, or use the "
            "interleaved schedule");
  EXPECT_EQ(error_of("v-half", {4, 8, 3}),
            "schedule v-half has two chunks per rank, not 3 | leave chunks = 2, or use the "
            "interleaved schedule");
  EXPECT_EQ(error_of("zigzag", {4, 8}),
            "there is no schedule \"zigzag\" | use one of gpipe, 1f1b, interleaved, zb-h1, zb-h2, "
            "zb-v, v-min, v-half, routes");
  EXPECT_EQ(error_of("gpipe", {0, 8}),
            "a pipeline of 0 stages is not possible | give 1 or more stages");
  EXPECT_EQ(error_of("gpipe", {1, -1}),
            "a pipeline of -1 micro-batches is not possible | give 1 or more micro-batches");
  EXPECT_EQ(error_of("interleaved", {2, 2, 0}),
            "a pipeline of 0 chunks is not possible | give 1 or more chunks");
}

}  // namespace
}  // namespace heddle
