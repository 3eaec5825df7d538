#include "recover/choose_sources.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace heddle::recover {
namespace {

using Kind = PieceSource::Kind;

std::vector<bool> lost(int ranks, const std::vector<int>& which) {
  std::vector<bool> is_lost(static_cast<std::size_t>(ranks));
  for (const int rank : which) is_lost[static_cast<std::size_t>(rank)] = true;
  return is_lost;
}

/// pp 4, each rank's state kept by the next one too where `copies`.
std::vector<StatePiece> pipeline(int stages, bool copies) {
  std::vector<StatePiece> pieces;
  for (int stage = 0; stage < stages; ++stage) {
    pieces.push_back({.stage = stage, .holders = {stage}});
    if (copies) pieces.back().copies = {(stage + 1) % stages};
  }
  return pieces;
}

Losses losses(int ranks, const std::vector<int>& which, CheckFree checkfree = CheckFree::off) {
  return {.step = 120,
          .is_lost = lost(ranks, which),
          .stages = 4,
          .checkfree = checkfree,
          .checkpoint = 100};
}

TEST(ChooseSources, AReplicaIsTakenFirst) {
  const std::vector<StatePiece> pieces = {{.stage = 0, .holders = {0, 1}, .copies = {3}},
                                          {.stage = 1, .holders = {2, 3}}};
  const Restoration made = choose_sources(
      pieces, {.step = 7, .is_lost = lost(4, {0}), .stages = 2, .checkfree = CheckFree::plus});
  ASSERT_EQ(made.sources.size(), 1U);
  EXPECT_EQ(made.sources[0].kind, Kind::replica);
  EXPECT_EQ(made.sources[0].rank, 1);
  EXPECT_TRUE(made.is_exact);
  EXPECT_EQ(made.line,
            "rank 0 is lost: stage 0 from its replica on rank 1; exact, going on behind step 7");
}

TEST(ChooseSources, ExpertsThatRanksDivideAreNamedApart) {
  const std::vector<StatePiece> pieces = {
      {.stage = 0, .holders = {0, 1, 2, 3}},
      {.stage = 0, .part = 0, .is_of_experts = true, .holders = {0, 2}},
      {.stage = 0, .part = 1, .is_of_experts = true, .holders = {1, 3}}};
  EXPECT_EQ(choose_sources(pieces, {.step = 7, .is_lost = lost(4, {1})}).line,
            "rank 1 is lost: stage 0 from its replica on rank 0, part 1 of the experts of stage 0 "
            "from its replica on rank 3; exact, going on behind step 7");
}

TEST(ChooseSources, WhatEachRankHasOfItsOwnIsSaidToBeGone) {
  Losses own = losses(4, {2}, CheckFree::inner);
  own.own_things = "residuals of gradients";
  const Restoration copied = choose_sources(pipeline(4, true), own);
  EXPECT_FALSE(copied.is_exact);
  EXPECT_EQ(copied.line,
            "rank 2 is lost: stage 2 from the copy on rank 3; not exact: residuals of gradients "
            "that were there are gone, going on behind step 120");
  EXPECT_EQ(choose_sources(pipeline(4, false), own).line,
            "rank 2 is lost: stage 2 as the mean of stages 1 and 3, which count alike (CheckFree); "
            "not exact: moments begin at zero and learning rates are 1.1 times the schedule's "
            "there, residuals of gradients that were there are gone, going on behind step 120");
  own.is_lost = lost(4, {1, 2});
  EXPECT_TRUE(choose_sources(pipeline(4, false), own).is_exact) << "of a checkpoint";
}

TEST(ChooseSources, ThenACopyThenTheNeighboursThenTheCheckpoint) {
  EXPECT_EQ(choose_sources(pipeline(4, true), losses(4, {2}, CheckFree::inner)).line,
            "rank 2 is lost: stage 2 from the copy on rank 3; exact, going on behind step 120");
  const Restoration guessed =
      choose_sources(pipeline(4, true), losses(4, {1, 2}, CheckFree::inner));
  EXPECT_EQ(guessed.line,
            "ranks 1, 2 are lost: stage 1 as the mean of stages 0 and 2, which count alike "
            "(CheckFree), stage 2 from the copy on rank 3; not exact: moments begin at zero and "
            "learning rates are 1.1 times the schedule's there, going on behind step 120");
  EXPECT_FALSE(guessed.is_exact);
  EXPECT_EQ(choose_sources(pipeline(4, false), losses(4, {0}, CheckFree::plus)).line,
            "rank 0 is lost: stage 0 as stage 1 is (CheckFree+); not exact: moments begin at zero "
            "and learning rates are 1.1 times the schedule's there, going on behind step 120");
  const Restoration back = choose_sources(pipeline(4, false), losses(4, {1, 2}, CheckFree::inner));
  EXPECT_EQ(back.line,
            "ranks 1, 2 are lost: stage 1 has no replica and no copy left, and stage 2 beside it "
            "is lost too; all go back from step 120 to the checkpoint of step 100");
  EXPECT_EQ(back.step, 100);
  EXPECT_EQ(back.sources.size(), 4U) << "everybody, since all pieces have to be of one step";
}

TEST(ChooseSources, ACheckpointOfThisStepIsTakenBeforeNeighbours) {
  Losses saved = losses(4, {2}, CheckFree::inner);
  saved.checkpoint = saved.step;
  const Restoration made = choose_sources(pipeline(4, false), saved);
  EXPECT_EQ(
      made.line,
      "rank 2 is lost: stage 2 has no replica and no copy left, and neighbours are not exact; "
      "all take the checkpoint of step 120, which is this one");
  EXPECT_TRUE(made.is_exact);
  EXPECT_TRUE(made.is_from_checkpoint());
  EXPECT_FALSE(choose_sources(pipeline(4, true), saved).is_from_checkpoint()) << "of a copy";
}

TEST(ChooseSources, FirstAndLastStageAreNotGuessedWithoutTheirCopies) {
  for (const int end : {0, 3}) {
    const Restoration made = choose_sources(pipeline(4, false), losses(4, {end}, CheckFree::inner));
    EXPECT_EQ(made.sources[0].kind, Kind::checkpoint);
  }
}

TEST(ChooseSources, NeighboursAreWeightedByTheNormsThatAreKnown) {
  Losses with_norms = losses(4, {2}, CheckFree::inner);
  with_norms.norms = {9.0, 0.5, 7.0, 2.0};
  const Restoration made = choose_sources(pipeline(4, false), with_norms);
  EXPECT_EQ(made.sources[0].weight_before, 0.5F);
  EXPECT_EQ(made.sources[0].weight_after, 2.0F);
  EXPECT_NE(made.line.find("weighted 0.5 to 2 by the norms"), std::string::npos) << made.line;
  with_norms.norms[3] = std::nan("");  // of a step that was skipped
  EXPECT_EQ(choose_sources(pipeline(4, false), with_norms).sources[0].weight_before, 0.0F);
}

/// Where the first rank has embedding and head alone, the stages behind it are those with pairs.
TEST(ChooseSources, StagesWithoutBlocksAreNotGuessed) {
  Losses apart = losses(4, {0}, CheckFree::inner);
  apart.blocks = {{0, 0, 1, 2, 3}};
  EXPECT_EQ(choose_sources(pipeline(4, false), apart).sources[0].kind, Kind::checkpoint);
  apart.is_lost = lost(4, {2});
  EXPECT_EQ(choose_sources(pipeline(4, false), apart).sources[0].kind, Kind::neighbours);
  apart.is_lost = lost(4, {1});
  EXPECT_EQ(choose_sources(pipeline(4, false), apart).sources[0].kind, Kind::checkpoint);
}

/// Six stages of two blocks, of which the third is left out: its ranks are five.
struct LeftOut {
  std::vector<StatePiece> pieces;
  Losses losses;

  explicit LeftOut(const std::vector<int>& lost_ranks) {
    for (const int stage : {0, 1, 3, 4, 5}) {
      pieces.push_back({.stage = stage, .holders = {stage < 2 ? stage : stage - 1}});
    }
    pieces.push_back({.stage = 2});
    losses = {.step = 120,
              .is_lost = lost(5, lost_ranks),
              .stages = 6,
              .checkfree = CheckFree::inner,
              .blocks = {{0, 2, 4, 6, 8, 10, 12}},
              .left_out = {{.begin = 4, .end = 6, .before = 2, .after = 6}},
              .checkpoint = 100};
  }
};

TEST(ChooseSources, AStageThatIsLeftOutIsMadeWhenThereIsARankForIt) {
  LeftOut all({});
  EXPECT_EQ(stages_nobody_has(all.pieces, all.losses), (std::vector<int>{2}));
  all.losses.left_out.front().weight_before = 0.5F;
  all.losses.left_out.front().weight_after = 2.0F;
  EXPECT_EQ(
      choose_sources(all.pieces, all.losses).line,
      "ranks have come: blocks 4 to 5, left out until now, as the mean of blocks 2 to 3 and "
      "blocks 6 to 7, weighted 0.5 to 2 by the norms of their gradients (CheckFree); not exact: "
      "moments begin at zero and learning rates are 1.1 times the schedule's there, going on "
      "behind step 120");
  all.losses.leaves_out = {2};
  EXPECT_EQ(choose_sources(all.pieces, all.losses).line,
            "blocks 4 to 5 stay left out until a rank comes; not exact, going on behind step 120");
}

TEST(ChooseSources, AStageIsLeftOutUnlessItsNeighbourIs) {
  LeftOut fourth({3});
  EXPECT_EQ(stages_nobody_has(fourth.pieces, fourth.losses), (std::vector<int>{2, 4}));
  fourth.losses.leaves_out = {2, 4};
  const Restoration made = choose_sources(fourth.pieces, fourth.losses);
  EXPECT_EQ(made.line,
            "rank 3 is lost: stage 4 (blocks 8 to 9) is left out until a rank takes its place, and "
            "is then made of stages 3 and 5, blocks 4 to 5 stay left out until a rank comes; "
            "not exact, going on behind step 120");
  ASSERT_EQ(made.sources.size(), 1U);
  EXPECT_EQ(made.sources[0].kind, Kind::neighbours);
  for (const int beside : {1, 2}) {
    LeftOut next({beside});
    EXPECT_EQ(stages_nobody_has(next.pieces, next.losses), std::vector<int>());
    EXPECT_EQ(choose_sources(next.pieces, next.losses).sources[0].kind, Kind::checkpoint);
  }
}

TEST(ChooseSources, PartsAreChosenOneByOne) {
  // dp 2 with ZeRO: each has a shard of its own, and keeps the other's.
  const std::vector<StatePiece> pieces = {{.stage = 0, .part = 0, .holders = {0}, .copies = {1}},
                                          {.stage = 0, .part = 1, .holders = {1}, .copies = {0}}};
  EXPECT_EQ(choose_sources(pieces, {.step = 3, .is_lost = lost(2, {1})}).line,
            "rank 1 is lost: part 1 of stage 0 from the copy on rank 0; exact, going on behind "
            "step 3");
}

TEST(ChooseSources, WithoutAnythingItSaysWhatWouldHaveHelped) {
  Losses none = losses(4, {1});
  none.checkpoint.reset();
  try {
    choose_sources(pipeline(4, false), none);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    EXPECT_EQ(error.message(),
              "rank 1 is lost: stage 1 has no replica and no copy left, and stages are not made of "
              "their neighbours; there is no checkpoint");
  }
}

TEST(ChooseSources, ASpareTakesNothingWithIt) {
  EXPECT_EQ(choose_sources(pipeline(4, false), losses(5, {4})).line,
            "rank 4 is lost: nothing was there only, going on behind step 120");
}

/// Two sites of two stages and, where there are `replicas`, two of each in a site.
std::vector<StatePiece> of_sites(int replicas) {
  std::vector<StatePiece> pieces;
  for (int place = 0; place < 4; ++place) {
    pieces.push_back({.stage = place % 2, .site = place / 2});
    for (int i = 0; i < replicas; ++i) pieces.back().holders.push_back(place * replicas + i);
  }
  return pieces;
}

TEST(ChooseSources, ReplicasInTheSiteComeBeforeOtherSites) {
  const Losses one{
      .step = 9, .is_lost = lost(8, {5}), .stages = 2, .sites = {0, 3}, .sites_now = {0, 3}};
  EXPECT_EQ(whole_sites(of_sites(2), one), (std::vector<int>{0, 3}));
  const Restoration made = choose_sources(of_sites(2), one);
  EXPECT_TRUE(made.is_exact);
  EXPECT_EQ(made.line,
            "rank 5 is lost: stage 0 of site 3 from its replica on rank 4; exact, going on behind "
            "step 9");
}

TEST(ChooseSources, ASiteThatLostAStageGoesOnAsAnotherOneIs) {
  const Losses one{.step = 9,
                   .is_lost = lost(4, {1}),
                   .stages = 2,
                   .sites = {0, 1},
                   .sites_now = {0, 1},
                   .checkpoint = 5};
  EXPECT_EQ(whole_sites(of_sites(1), one), (std::vector<int>{1}));
  const Restoration made = choose_sources(of_sites(1), one);
  ASSERT_EQ(made.sources.size(), 1U) << "all of it, not the stage alone";
  EXPECT_EQ(made.sources[0].kind, Kind::site);
  EXPECT_EQ(made.sources[0].site, 0);
  EXPECT_EQ(made.sources[0].taken, 1);
  EXPECT_FALSE(made.is_exact);
  EXPECT_EQ(made.line,
            "rank 1 is lost: site 0 with the weights and moments of site 1; not exact: what site 0 "
            "alone had is gone, going on behind step 9");
}

TEST(ChooseSources, WhereNoSiteIsWholeAllGoBack) {
  const Losses both{.step = 9,
                    .is_lost = lost(4, {1, 2}),
                    .stages = 2,
                    .sites = {0, 1},
                    .sites_now = {0},
                    .checkpoint = 5};
  const Restoration made = choose_sources(of_sites(1), both);
  EXPECT_TRUE(made.is_from_checkpoint());
  EXPECT_EQ(made.line,
            "ranks 1, 2 are lost: stage 1 of site 0 has no replica and no copy left, and no site "
            "has all of its state; all go back from step 9 to the checkpoint of step 5");
}

/// As where a rank was told to leave, and all have saved this step.
TEST(ChooseSources, ACheckpointOfThisStepIsNearerThanAnotherSite) {
  const Losses left{.step = 9,
                    .is_lost = lost(4, {3}),
                    .stages = 2,
                    .sites = {0, 1},
                    .sites_now = {0, 1},
                    .checkpoint = 9};
  EXPECT_EQ(choose_sources(of_sites(1), left).line,
            "rank 3 is lost: stage 1 of site 1 has no replica and no copy left, and another site "
            "is not exact; all take the checkpoint of step 9, which is this one");
  Losses without = left;
  without.sites_now = {0};
  EXPECT_FALSE(choose_sources(of_sites(1), without).is_from_checkpoint());
}

TEST(ChooseSources, SitesGoAndComeBack) {
  Losses gone{
      .step = 9, .is_lost = lost(4, {2, 3}), .stages = 2, .sites = {0, 1}, .sites_now = {0}};
  EXPECT_EQ(choose_sources(of_sites(1), gone).line,
            "ranks 2, 3 are lost: site 1 waits for ranks; not exact: what site 1 alone had is "
            "gone, going on behind step 9");
  const Losses back{.step = 12, .is_lost = lost(2, {}), .stages = 2, .sites_now = {0, 1}};
  std::vector<StatePiece> pieces = of_sites(1);
  pieces.resize(2);
  EXPECT_EQ(choose_sources(pieces, back).line,
            "ranks have come: site 1 with the weights and moments of site 0; not exact, going on "
            "behind step 12");
}

TEST(ChooseSources, ASiteTakesThatOfEntryKModN) {
  EXPECT_EQ(site_taken(2, {0, 2}), 2);
  EXPECT_EQ(site_taken(1, {0, 2}), 2);
  EXPECT_EQ(site_taken(3, {0, 2, 4}), 0);
  EXPECT_EQ(site_taken(1, {}), 1);
}

}  // namespace
}  // namespace heddle::recover
