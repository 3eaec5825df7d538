#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/schedule/make_schedule.h"

namespace heddle {
namespace {

struct Golden {
  PipeShape shape;
  const char* text;
};

const Golden kOneFOneB[] = {
    {{1, 1}, "F0 BW0\n"},
    {{1, 2}, "F0 BW0 F1 BW1\n"},
    {{1, 4}, "F0 BW0 F1 BW1 F2 BW2 F3 BW3\n"},
    {{1, 8}, "F0 BW0 F1 BW1 F2 BW2 F3 BW3 F4 BW4 F5 BW5 F6 BW6 F7 BW7\n"},
    {{2, 1}, "F0 BW0\nF0 BW0\n"},
    {{2, 2}, "F0 F1 BW0 BW1\nF0 BW0 F1 BW1\n"},
    {{2, 4}, "F0 F1 BW0 F2 BW1 F3 BW2 BW3\nF0 BW0 F1 BW1 F2 BW2 F3 BW3\n"},
    {{2, 8},
     "F0 F1 BW0 F2 BW1 F3 BW2 F4 BW3 F5 BW4 F6 BW5 F7 BW6 BW7\n"
     "F0 BW0 F1 BW1 F2 BW2 F3 BW3 F4 BW4 F5 BW5 F6 BW6 F7 BW7\n"},
    {{4, 1}, "F0 BW0\nF0 BW0\nF0 BW0\nF0 BW0\n"},
    {{4, 2}, "F0 F1 BW0 BW1\nF0 F1 BW0 BW1\nF0 F1 BW0 BW1\nF0 BW0 F1 BW1\n"},
    {{4, 4},
     "F0 F1 F2 F3 BW0 BW1 BW2 BW3\nF0 F1 F2 BW0 F3 BW1 BW2 BW3\n"
     "F0 F1 BW0 F2 BW1 F3 BW2 BW3\nF0 BW0 F1 BW1 F2 BW2 F3 BW3\n"},
    {{4, 8},
     "F0 F1 F2 F3 BW0 F4 BW1 F5 BW2 F6 BW3 F7 BW4 BW5 BW6 BW7\n"
     "F0 F1 F2 BW0 F3 BW1 F4 BW2 F5 BW3 F6 BW4 F7 BW5 BW6 BW7\n"
     "F0 F1 BW0 F2 BW1 F3 BW2 F4 BW3 F5 BW4 F6 BW5 F7 BW6 BW7\n"
     "F0 BW0 F1 BW1 F2 BW2 F3 BW3 F4 BW4 F5 BW5 F6 BW6 F7 BW7\n"},
};

TEST(OneFOneB, IsThePublishedOrder) {
  for (const auto& [shape, text] : kOneFOneB) {
    EXPECT_EQ(to_text(make_schedule(Pipeline::one_f_one_b, shape)), text)
        << shape.ranks << " x " << shape.microbatches;
  }
}

TEST(OneFOneB, HoldsAtMostRanksMinusRankMicroBatches) {
  for (const auto& [shape, text] : kOneFOneB) {
    const auto peaks = peak_in_flight(make_schedule(Pipeline::one_f_one_b, shape));
    for (int rank = 0; rank < shape.ranks; ++rank) {
      EXPECT_EQ(peaks[static_cast<std::size_t>(rank)],
                std::min(shape.microbatches, shape.ranks - rank));
    }
  }
}

TEST(PeakInFlight, CountsAMicroBatchUntilItsWeightGradients) {
  Schedule schedule{.microbatches = 2, .rank_of_stage = {0}, .by_rank = {{}}};
  schedule.by_rank[0] = {{Act::f, 0, 0}, {Act::b, 0, 0}, {Act::f, 0, 1},
                         {Act::b, 0, 1}, {Act::w, 0, 0}, {Act::w, 0, 1}};
  EXPECT_EQ(peak_in_flight(schedule), std::vector<double>{2});
}

TEST(Lower, PutsMessagesAtStageBoundariesAndTheStepAtTheEnd) {
  EXPECT_EQ(to_text(lower(make_schedule(Pipeline::one_f_one_b, {2, 2}))),
            "F0 sa0 F1 sa1 rg0 BW0 rg1 BW1 reduce step\n"
            "ra0 F0 BW0 sg0 ra1 F1 BW1 sg1 reduce step\n");
  EXPECT_EQ(to_text(lower(make_schedule(Pipeline::one_f_one_b, {1, 2}))),
            "F0 BW0 F1 BW1 reduce step\n");
}

TEST(Lower, NamesTheNeighbourAsPeer) {
  const Schedule lowered = lower(make_schedule(Pipeline::one_f_one_b, {4, 2}));
  for (const Action& action : lowered.by_rank[2]) {
    if (action.act == Act::recv_act || action.act == Act::send_grad) {
      EXPECT_EQ(action.peer, 1);
    }
    if (action.act == Act::send_act || action.act == Act::recv_grad) {
      EXPECT_EQ(action.peer, 3);
    }
  }
}

TEST(Lower, HandsOverInPlaceBetweenStagesOfOneRank) {
  EXPECT_EQ(to_text(lower(make_schedule(Pipeline::v_min, {2, 1}))),
            "F0s0 sa0s0 ra0s3 F0s3 B0s3 sg0s3 W0s3 rg0s0 B0s0 W0s0 reduce step\n"
            "ra0s1 F0s1 F0s2 sa0s2 rg0s2 B0s2 B0s1 sg0s1 W0s2 W0s1 reduce step\n");
}

TEST(ToText, NamesStagesWhereARankHasSeveral) {
  Schedule schedule{.microbatches = 1, .rank_of_stage = {0, 0}, .by_rank = {{}}};
  schedule.by_rank[0] = {{Act::f, 0, 0}, {Act::f, 1, 0}, {Act::b, 1, 0}, {Act::w, 1, 0}};
  EXPECT_EQ(to_text(schedule), "F0s0 F0s1 B0s1 W0s1\n");
}

TEST(Validate, AcceptsWhatIsGenerated) {
  for (const auto& [shape, text] : kOneFOneB) {
    EXPECT_TRUE(validate(lower(make_schedule(Pipeline::one_f_one_b, shape))).empty());
  }
}

/// A valid schedule of two ranks and two micro-batches, to be broken.
class BrokenSchedule : public testing::Test {
 protected:
  std::vector<Action>& rank(int index) {
    return schedule_.by_rank[static_cast<std::size_t>(index)];
  }
  auto find(int index, Act act, int microbatch) {
    return std::ranges::find_if(rank(index), [=](const Action& action) {
      return action.act == act && action.microbatch == microbatch;
    });
  }
  void drop(int index, Act act, int microbatch) { rank(index).erase(find(index, act, microbatch)); }
  void swap(int index, Act a, Act b, int microbatch) {
    std::iter_swap(find(index, a, microbatch), find(index, b, microbatch));
  }
  /// Some diagnostic of the rank has this in its message.
  void expect_found(int index, const std::string& message) {
    const auto found = validate(schedule_);
    EXPECT_TRUE(std::ranges::any_of(found,
                                    [&](const Diagnostic& diagnostic) {
                                      return diagnostic.rank == index &&
                                             diagnostic.message.find(message) != std::string::npos;
                                    }))
        << message << " is not found";
  }

  Schedule schedule_ = lower(make_schedule(Pipeline::one_f_one_b, {2, 2}));
};

TEST_F(BrokenSchedule, BackwardBeforeItsForwardIsFound) {
  swap(1, Act::f, Act::bw, 0);
  expect_found(1, "BW0 on stage 1 is out of order");
}

TEST_F(BrokenSchedule, MissingWeightGradientsAreFound) {
  find(0, Act::bw, 1)->act = Act::b;
  expect_found(0, "micro-batch 1 on stage 0 is not finished");
}

TEST_F(BrokenSchedule, AForwardThatIsDoneTwiceIsFound) {
  rank(0).insert(rank(0).begin(), {Act::f, 0, 0});
  expect_found(0, "F0 on stage 0 is out of order");
}

TEST_F(BrokenSchedule, ADroppedSendIsFoundWhereItIsWaitedFor) {
  drop(0, Act::send_act, 1);
  expect_found(1, "waits for ever for the activation of micro-batch 1 on stage 1 from rank 0");
}

TEST_F(BrokenSchedule, ADroppedReceiveIsFoundWhereItIsSent) {
  drop(0, Act::recv_grad, 1);
  expect_found(1, "what it sends of micro-batch 1 to rank 0 is never received");
}

TEST_F(BrokenSchedule, ADeadlockIsFoundOnEveryRankThatWaits) {
  // Rank 0 waits for the gradient of a micro-batch whose activation it has not sent.
  const Action receive = *find(0, Act::recv_grad, 0);
  drop(0, Act::recv_grad, 0);
  rank(0).insert(rank(0).begin(), receive);
  expect_found(0, "waits for ever for the gradient of micro-batch 0");
  expect_found(1, "waits for ever for the activation of micro-batch 0");
}

TEST_F(BrokenSchedule, ComputingBeforeTheInputArrivesIsFound) {
  swap(1, Act::recv_act, Act::f, 0);
  expect_found(1, "F0 on stage 1 is out of order");
}

TEST_F(BrokenSchedule, BackwardBeforeItsGradientArrivesIsFound) {
  swap(0, Act::recv_grad, Act::bw, 1);
  expect_found(0, "BW1 on stage 0 is out of order");
}

TEST_F(BrokenSchedule, SendingWhatIsNotYetComputedIsFound) {
  swap(0, Act::f, Act::send_act, 0);
  expect_found(0, "sa0 on stage 0 is out of order");
}

TEST_F(BrokenSchedule, AMessageDroppedOnBothSidesIsFound) {
  drop(0, Act::send_act, 0);
  drop(1, Act::recv_act, 0);
  expect_found(1, "F0 on stage 1 is out of order");
}

TEST_F(BrokenSchedule, MicroBatchesThatDoNotAscendAreFound) {
  std::iter_swap(find(0, Act::bw, 0), find(0, Act::bw, 1));
  std::iter_swap(find(0, Act::recv_grad, 0), find(0, Act::recv_grad, 1));
  expect_found(0, "BW0 on stage 0 comes behind micro-batch 1: they must ascend");
  expect_found(0, "rg1 on stage 0 would receive micro-batch 0");
}

TEST_F(BrokenSchedule, AnActionOnARankWithoutItsStageIsFound) {
  find(0, Act::f, 1)->stage = 1;
  expect_found(0, "F1 is of stage 1, which this rank does not have");
  find(0, Act::f, 1)->stage = 7;
  expect_found(0, "F1 is of stage 7, which this rank does not have");
}

TEST_F(BrokenSchedule, AMicroBatchBeyondTheStepIsFound) {
  find(0, Act::f, 1)->microbatch = 2;
  expect_found(0, "F2 is of a micro-batch that the step does not have");
}

TEST_F(BrokenSchedule, AMessageForTheWrongRankIsFound) {
  find(0, Act::send_act, 0)->peer = 0;
  expect_found(0, "sa0 on stage 0 names rank 0, which does not have the neighbouring stage");
}

TEST(Validate, FindsAHandOverThatComesTooEarly) {
  Schedule schedule{.microbatches = 1, .rank_of_stage = {0, 0}, .by_rank = {{}}};
  schedule.by_rank[0] = {{Act::f, 1, 0},  {Act::f, 0, 0},      {Act::bw, 1, 0},
                         {Act::bw, 0, 0}, {Act::reduce_grads}, {Act::step}};
  ASSERT_EQ(validate(schedule).size(), 1U);
  EXPECT_EQ(validate(schedule)[0].message, "F0 on stage 1 is out of order");
}

TEST_F(BrokenSchedule, AMissingStepIsFound) {
  rank(1).pop_back();
  expect_found(1, "does not end with the reduction of gradients and the step");
}

TEST_F(BrokenSchedule, WorkBehindTheStepIsFound) {
  const Action late = *find(1, Act::bw, 1);
  drop(1, Act::bw, 1);
  rank(1).push_back(late);
  expect_found(1, "does not end with the reduction of gradients and the step");
}

}  // namespace
}  // namespace heddle
