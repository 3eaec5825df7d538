#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "parallel/schedule/generators/generators.h"

namespace heddle {
namespace {

TEST(VocabularyOffsets, AreThePublishedOnes) {
  const auto text = [](int ranks) {
    std::string out;
    for (const auto& [warm_up, passes_come_first] :
         generators::vocabulary_offsets(ranks, 1.0, 2.0)) {
      out += std::to_string(warm_up) + (passes_come_first ? "p " : "f ");
    }
    return out;
  };
  EXPECT_EQ(text(1), "0p ");
  EXPECT_EQ(text(4), "3f 2p 1p 0p ");
  EXPECT_EQ(text(8), "5p 5f 4p 3p 3f 2p 1p 0p ");
}

TEST(SplitVocabulary, IsWovenInAsWrittenDownHere) {
  EXPECT_EQ(to_text(make_schedule(Pipeline::one_f_one_b, {2, 3, 1, 2})),
            "E0 E1 F0 E2 F1 S0 F2 T0 S1 BW0 T1 S2 BW1 G0 T2 BW2 G1 G2\n"
            "E0 E1 E2 F0 S0 F1 BW0 T0 S1 F2 BW1 T1 S2 BW2 G0 T2 G1 G2\n");
  EXPECT_EQ(to_text(make_schedule(Pipeline::one_f_one_b, {2, 3, 1, 1})),
            "E0 E1 F0 E2 F1 S0 F2 T0 S1 T1 S2 BW0 T2 BW1 BW2 G0 G1 G2\n"
            "E0 E1 E2 F0 S0 F1 T0 S1 F2 BW0 T1 S2 BW1 T2 BW2 G0 G1 G2\n");
  EXPECT_EQ(
      to_text(make_schedule(Pipeline::v_half, {2, 2, 1, 2})),
      "E0 E1 F0s0 F0s3 S0 F1s0 F1s3 T0 S1 B0s3 W0s3 T1 B0s0 B1s3 W0s0 W1s3 B1s0 W1s0 G0 G1\n"
      "E0 E1 F0s1 F0s2 S0 F1s1 F1s2 T0 S1 B0s2 W0s2 T1 B0s1 W0s1 B1s2 W1s2 B1s1 W1s1 G0 G1\n");
}

TEST(SplitVocabulary, BeginsCollectivesBehindWhatTheyNeedAndEndsThemBeforeWhatNeedsThem) {
  EXPECT_EQ(
      to_text(lower(make_schedule(Pipeline::one_f_one_b, {2, 2, 1, 1}))),
      "E0 ce>0 E1 ce>1 ce<0 F0 sa0 ce<1 F1 sa1 c0>0 c0<0 S0 c1>0 c1<0 T0 c2>0 c0>1 c0<1 S1 c1>1 "
      "c2<0 c1<1 T1 c2>1 rg0 BW0 cg>0 rg1 BW1 cg>1 cg<0 G0 cg<1 G1 c2<1 reduce step\n"
      "E0 ce>0 E1 ce>1 ra0 F0 c0>0 c0<0 S0 c1>0 ra1 F1 c0>1 c1<0 T0 c2>0 c0<1 S1 c1>1 c2<0 BW0 "
      "sg0 c1<1 T1 c2>1 c2<1 BW1 sg1 cg>0 cg<0 G0 cg>1 cg<1 G1 ce<0 ce<1 reduce step\n");
}

TEST(SplitVocabulary, OfOneRankKeepsItsPasses) {
  EXPECT_EQ(to_text(lower(make_schedule(Pipeline::one_f_one_b, {1, 1, 1, 2}))),
            "E0 ce>0 ce<0 F0 c0>0 c0<0 S0 c1>0 c1<0 BW0 cg>0 T0 cg<0 G0 reduce step\n");
}

TEST(SplitVocabulary, IsValidForAnyRanksAndMicroBatches) {
  const auto expect_valid = [](std::string_view name, const PipeShape& shape) {
    for (const Diagnostic& wrong : validate(lower(make_schedule(pipeline_named(name), shape)))) {
      ADD_FAILURE() << name << " " << shape.ranks << " x " << shape.microbatches << ", algorithm "
                    << shape.vocabulary << ", rank " << wrong.rank << ": " << wrong.message;
    }
  };
  for (const auto name : {"1f1b", "v-half"}) {
    for (const int algorithm : {1, 2}) {
      for (int ranks = 1; ranks <= 8; ++ranks) {
        for (int mb = 1; mb <= 20; ++mb) expect_valid(name, {ranks, mb, 1, algorithm});
      }
      for (const auto& [ranks, mb] : {std::pair{13, 7}, {16, 64}, {3, 100}}) {
        expect_valid(name, {ranks, mb, 1, algorithm});
      }
    }
  }
}

TEST(SplitVocabulary, LooksUpAheadAndAddsGradientsLater) {
  // Few micro-batches wait in the input layer: a rank's part of it takes no memory to speak of.
  for (const auto name : {"1f1b", "v-half"}) {
    const Schedule schedule = make_schedule(pipeline_named(name), {8, 64, 1, 2});
    int looked_up = 0, used = 0, most = 0;
    for (const Action& action : schedule.by_rank[0]) {
      if (action.act == Act::embed_f) ++looked_up;
      if (action.act == Act::f && action.stage == 0) ++used;
      most = std::max(most, looked_up - used);
    }
    EXPECT_LE(most, 2) << name;
  }
}

TEST(SplitVocabulary, IsRefusedWhereAScheduleHasNone) {
  const auto hint_of = [](std::string_view name, int algorithm) -> std::string {
    try {
      make_schedule(pipeline_named(name), {4, 8, 1, algorithm});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      return error.message() + " | " + error.hint();
    }
    return "no error";
  };
  EXPECT_EQ(hint_of("zb-v", 2),
            "schedule zb-v does not split the vocabulary over the pipeline | use 1f1b or v-half, "
            "or leave the vocabulary whole or split over tp");
  EXPECT_EQ(hint_of("1f1b", 3),
            "there is no vocabulary algorithm 3 | use 1 or 2, or 0 for a vocabulary that is not "
            "split over the pipeline");
}

/// A valid schedule with a split vocabulary, to be broken.
class BrokenVocabulary : public testing::Test {
 protected:
  std::vector<Action>& rank(int index) {
    return schedule_.by_rank[static_cast<std::size_t>(index)];
  }
  auto find(int index, const std::string& text) {
    return std::ranges::find_if(rank(index),
                                [&](const Action& action) { return to_text(action) == text; });
  }
  void swap(int index, const std::string& a, const std::string& b) {
    std::iter_swap(find(index, a), find(index, b));
  }
  void drop(int index, const std::string& text) { rank(index).erase(find(index, text)); }
  void expect_found(int index, const std::string& message) {
    std::string all;
    bool is_found = false;
    for (const Diagnostic& wrong : validate(schedule_)) {
      is_found = is_found || (wrong.rank == index && wrong.message == message);
      all += std::to_string(wrong.rank) + ": " + wrong.message + "\n";
    }
    EXPECT_TRUE(is_found) << message << " is not among\n" << all;
  }

  Schedule schedule_ = lower(make_schedule(Pipeline::one_f_one_b, {2, 2, 1, 2}));
};

TEST_F(BrokenVocabulary, IsValidAtFirst) { EXPECT_TRUE(validate(schedule_).empty()); }

TEST_F(BrokenVocabulary, LogitsBeforeTheOutputArrivesAreFound) {
  swap(0, "c0<1", "S1");
  expect_found(0, "S1 on stage 1 is out of order");
}

TEST_F(BrokenVocabulary, GradientsBeforeTheSoftmaxAreFound) {
  swap(0, "c1<1", "T1");
  expect_found(0, "T1 on stage 1 is out of order");
}

TEST_F(BrokenVocabulary, BackwardBeforeTheSoftmaxIsFound) {
  swap(1, "c1<0", "BW0");
  expect_found(1, "BW0 on stage 1 is out of order");
}

TEST_F(BrokenVocabulary, ForwardBeforeTheLookUpIsFound) {
  swap(0, "ce<0", "F0");
  expect_found(0, "F0 on stage 0 is out of order");
}

TEST_F(BrokenVocabulary, ARankThatStaysAwayFromACollectiveIsFound) {
  drop(0, "c1>1");
  expect_found(1, "waits for ever for the other ranks in c1<1");
}

TEST_F(BrokenVocabulary, AMissingPassIsFound) {
  drop(1, "T1");
  expect_found(1, "the vocabulary passes of micro-batch 1 are not finished");
}

TEST_F(BrokenVocabulary, ACollectiveThatIsNotWaitedForIsFound) {
  drop(1, "ce<1");
  expect_found(1, "ce<1 is missing");
}

TEST_F(BrokenVocabulary, PassesOfAWholeVocabularyAreFound) {
  schedule_.vocabulary = 0;
  expect_found(0, "S0 has no place where the vocabulary is whole");
}

}  // namespace
}  // namespace heddle
