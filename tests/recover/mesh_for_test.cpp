#include "recover/mesh_for.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace heddle::recover {
namespace {

using Members = std::vector<std::optional<FormerPlace>>;

const Refusal kAnything = [](const ParallelRequest&) { return std::string(); };

ParallelRequest request(int dp, int tp, int pp, int zero = 0) {
  ParallelRequest asked;
  asked.dp = dp;
  asked.tp = tp;
  asked.pp = pp;
  asked.zero = zero;
  return asked;
}

/// The ranks of the mesh of a request, all there.
Members all_of(const ParallelRequest& asked) {
  Members members;
  for (int rank = 0; rank < static_cast<int>(asked.ranks()); ++rank) {
    members.push_back(FormerPlace{.mesh = shape_of(asked), .rank = rank, .zero = asked.zero});
  }
  return members;
}

Members without(Members members, int rank) {
  members.erase(members.begin() + rank);
  return members;
}

TEST(MeshFor, KeepsEverybodyInPlaceWhereNobodyIsLost) {
  const ParallelRequest asked = request(2, 1, 2);
  const Arrangement made = mesh_for(asked, all_of(asked), 8, kAnything);
  EXPECT_EQ(made.by_place, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_TRUE(made.spares.empty());
  EXPECT_EQ(made.request.dp, 2);
}

TEST(MeshFor, StartsWithMembersInTheirOrder) {
  const Arrangement made = mesh_for(request(2, 1, 2), Members(5), 8, kAnything);
  EXPECT_EQ(made.by_place, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(made.spares, std::vector<int>{4});
}

TEST(MeshFor, GivesALostPlaceToTheNewcomer) {
  const ParallelRequest asked = request(2, 1, 2);
  for (int lost = 0; lost < 4; ++lost) {
    Members members = without(all_of(asked), lost);
    members.emplace_back();
    const Arrangement made = mesh_for(asked, members, 8, kAnything);
    for (int place = 0; place < 4; ++place) {
      const int member = made.by_place[static_cast<std::size_t>(place)];
      EXPECT_EQ(member, place == lost ? 3 : place < lost ? place : place - 1) << lost;
    }
  }
}

TEST(MeshFor, MakesOneReplicaOfThreeRanksAndLetsAReplicaStandIn) {
  const ParallelRequest asked = request(2, 1, 2);
  // Ranks of dp 2 x pp 2 are stage 0: 0 and 1, stage 1: 2 and 3.
  const Arrangement made = mesh_for(asked, without(all_of(asked), 0), 8, kAnything);
  EXPECT_EQ(made.request.dp, 1);
  EXPECT_EQ(made.request.pp, 2);
  EXPECT_EQ(made.by_place, (std::vector<int>{0, 1}));  // ranks 1 and 2 of before
  EXPECT_EQ(made.spares, std::vector<int>{2});
}

TEST(MeshFor, TakesNobodyForAReplicaWhereZeroDividesState) {
  const ParallelRequest asked = request(2, 1, 2, 1);
  Members members = without(all_of(asked), 1);
  members.emplace_back();
  // Rank 0 has another shard than rank 1 had: it stays, and the newcomer takes the place.
  EXPECT_EQ(mesh_for(asked, members, 8, kAnything).by_place, (std::vector<int>{0, 3, 1, 2}));
}

TEST(MeshFor, HasNoMoreReplicasThanMicroBatches) {
  const Arrangement made = mesh_for(request(2, 1, 1), Members(5), 3, kAnything);
  EXPECT_EQ(made.request.dp, 3);
  EXPECT_EQ(made.spares, (std::vector<int>{3, 4}));
}

TEST(MeshFor, CutsThePipelineAgainWhereNoReplicaIsWhole) {
  const ParallelRequest asked = request(1, 1, 4);
  const Arrangement made = mesh_for(asked, without(all_of(asked), 2), 8, kAnything);
  EXPECT_EQ(made.request.pp, 3);
  EXPECT_EQ(made.by_place, (std::vector<int>{0, 1, 2}));
  const Refusal even_only = [](const ParallelRequest& tried) {
    return tried.pp % 2 == 0 ? "" : fmt::format("not over {}", tried.pp);
  };
  const Arrangement even = mesh_for(asked, without(all_of(asked), 2), 8, even_only);
  EXPECT_EQ(even.request.pp, 2);
  EXPECT_EQ(even.spares, std::vector<int>{2});
}

TEST(MeshFor, KeepsRoutesOnlyWhereAShorterPipelineHasThem) {
  ParallelRequest asked = request(1, 1, 6);
  asked.schedule = Pipeline::routes;
  asked.routes = "swap";
  EXPECT_EQ(mesh_for(asked, Members(6), 8, kAnything).request.routes, "swap");
  EXPECT_EQ(mesh_for(asked, Members(5), 8, kAnything).request.routes, "swap");
  EXPECT_EQ(mesh_for(asked, Members(4), 8, kAnything).request.routes, "") << "three have no pairs";
  asked.routes = "0-1-2-3-4-5 0-2-1-3-4-5";
  EXPECT_EQ(mesh_for(asked, Members(5), 8, kAnything).request.routes, "");
  EXPECT_EQ(mesh_for(asked, Members(5), 8, kAnything).request.schedule, Pipeline::routes);
}

TEST(MeshFor, DividesExpertsOverTheLargestPartThatTheRanksAllow) {
  ParallelRequest asked = request(4, 1, 1);
  asked.ep = 4;
  asked.ep_rows = 2;
  const Refusal divides = [](const ParallelRequest& made) {
    return made.dp % (made.ep * made.etp) == 0 ? "" : std::string("ep does not divide the ranks");
  };
  const auto made = [&](int members) {
    return mesh_for(asked, Members(static_cast<std::size_t>(members)), 8, divides, Shares::even);
  };
  EXPECT_EQ(made(4).request.ep, 4);
  const Arrangement three = made(3);  // 8 micro-batches are even shares of 2 replicas, not of 3
  EXPECT_EQ(three.request.dp, 2);
  EXPECT_EQ(three.request.ep, 2);
  EXPECT_EQ(three.spares, std::vector<int>{2});
  EXPECT_EQ(made(1).request.ep, 1);
  EXPECT_EQ(made(1).request.ep_rows, 0) << "which is for divided experts";
}

/// With other experts nobody is a replica of everything: who stood there goes first.
TEST(MeshFor, TakesNobodyForAReplicaWhereExpertsAreDivided) {
  ParallelRequest asked = request(2, 1, 2);
  asked.ep = 2;
  const Arrangement made = mesh_for(asked, without(all_of(asked), 0), 8, kAnything);
  EXPECT_EQ(made.request.dp, 1);
  ASSERT_EQ(made.by_place.size(), 2u);
  EXPECT_EQ(made.by_place[1], 1) << "rank 2, which had the second stage and this place";
}

TEST(MeshFor, RefusesWhatCannotBeDividedOverSoFew) {
  const ParallelRequest asked = request(1, 2, 2);
  try {
    mesh_for(asked, Members(1), 8, kAnything);
    FAIL() << "one rank for tp 2";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_EQ(error.message(),
              "1 rank is left, and the model cannot be divided over so few: parallel.tp = 2 times "
              "parallel.cp = 1");
  }
  const Refusal never = [](const ParallelRequest&) { return std::string("it has one layer"); };
  try {
    mesh_for(asked, Members(3), 8, never);
    FAIL() << "a model that cannot be cut";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "3 ranks are left, and the model cannot be divided over so few: it has one layer");
  }
}

/// A pipeline of six ranks of which some are lost.
Members pipeline_without(const std::vector<int>& lost, const std::vector<LostBlocks>& left_out = {},
                         std::vector<int> begins = {0, 1, 2, 3, 4, 5, 6}) {
  Members members;
  const int ranks = static_cast<int>(begins.size()) - 1;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::ranges::find(lost, rank) != lost.end()) continue;
    members.push_back(FormerPlace{.mesh = shape_of(request(1, 1, ranks)),
                                  .rank = rank,
                                  .blocks = {begins},
                                  .left_out = left_out});
  }
  return members;
}

TEST(MeshFor, LeavesStagesOutThatNobodyHasAndThereIsNoRankFor) {
  const ParallelRequest asked = request(1, 1, 6);
  // The fourth member, who came late, is the last in seniority.
  Members members = pipeline_without({2, 4});
  std::rotate(members.begin() + 2, members.begin() + 3, members.end());
  const Former two{.stages = {.count = 6, .nobodys = {2, 4}}};
  const Arrangement made = mesh_for(asked, members, 8, kAnything, Shares::any, two);
  EXPECT_EQ(made.request.pp, 4);
  EXPECT_EQ(made.left_out, (std::vector<int>{2, 4}));
  EXPECT_TRUE(made.keeps_stages);
  EXPECT_EQ(made.by_place, (std::vector<int>{0, 1, 3, 2})) << "everybody keeps its stage";
  // Who comes takes the place of the first.
  members.emplace_back();
  const Arrangement five = mesh_for(asked, members, 8, kAnything, Shares::any, two);
  EXPECT_EQ(five.left_out, (std::vector<int>{4}));
  EXPECT_EQ(five.by_place, (std::vector<int>{0, 1, 4, 3, 2}));
  // Without leave to do so the pipeline is cut anew.
  EXPECT_FALSE(mesh_for(asked, members, 8, kAnything).keeps_stages);
}

TEST(MeshFor, TakesStagesBackThatWereLeftOut) {
  const ParallelRequest asked = request(1, 1, 6);
  const std::vector<LostBlocks> left_out = {{.begin = 2, .end = 3}};
  Members members = pipeline_without({}, left_out, {0, 1, 3, 4, 5, 6});
  const Former one{.stages = {.count = 6, .nobodys = {2}}};
  EXPECT_EQ(mesh_for(asked, members, 8, kAnything, Shares::any, one).left_out,
            (std::vector<int>{2}));
  members.emplace_back();
  const Arrangement whole = mesh_for(asked, members, 8, kAnything, Shares::any, one);
  EXPECT_EQ(whole.left_out, std::vector<int>());
  EXPECT_EQ(whole.by_place, (std::vector<int>{0, 1, 5, 2, 3, 4}));
}

/// Axis cp has two ranks for every stage, and only one is left of another.
TEST(MeshFor, CutsAnewWhereLivingStagesHaveNotAllTheirRanks) {
  ParallelRequest asked = request(1, 1, 4);
  asked.cp = 2;
  const Former one{.stages = {.count = 4, .nobodys = {2}}};
  const Arrangement made = mesh_for(asked, Members(5), 8, kAnything, Shares::any, one);
  EXPECT_EQ(made.request.pp, 2);
  EXPECT_EQ(made.left_out, (std::vector<int>{2})) << "its blocks are, wherever they lie";
  EXPECT_FALSE(made.keeps_stages);
}

ParallelRequest of_sites(int sites, int dp, int pp) {
  ParallelRequest asked = request(dp, 1, pp);
  asked.sites = sites;
  return asked;
}

/// All ranks of the mesh, but for those of sites that were lost before, with their numbers.
Members members_of(const ParallelRequest& asked, const std::vector<int>& sites) {
  Members members = all_of(asked);
  for (auto& member : members) member->sites = sites;
  return members;
}

TEST(MeshFor, KeepsSitesBeforeReplicas) {
  const ParallelRequest asked = of_sites(2, 2, 1);
  const Arrangement made = mesh_for(asked, without(members_of(asked, {0, 1}), 1), 8, kAnything,
                                    Shares::any, {.whole_sites = {0, 1}});
  EXPECT_EQ(made.request.sites, 2);
  EXPECT_EQ(made.request.dp, 1);
  EXPECT_EQ(made.sites, (std::vector<int>{0, 1}));
  EXPECT_EQ(made.by_place, (std::vector<int>{0, 1})) << "ranks 0 and 2 of before";
  EXPECT_EQ(made.spares, (std::vector<int>{2}));
}

TEST(MeshFor, LeavesOutTheSiteThatIsNotWhole) {
  const ParallelRequest asked = of_sites(3, 1, 2);
  for (const int lost : {0, 3, 4}) {
    std::vector<int> whole = {0, 1, 2};
    std::erase(whole, lost / 2);
    const Arrangement made = mesh_for(asked, without(members_of(asked, {0, 1, 2}), lost), 8,
                                      kAnything, Shares::any, {.whole_sites = whole});
    EXPECT_EQ(made.request.sites, 2);
    EXPECT_EQ(made.sites, whole);
    EXPECT_EQ(made.spares.size(), 1U);
    for (std::size_t place = 0; place < 4; ++place) {
      const int former = whole[place / 2] * 2 + static_cast<int>(place % 2);
      EXPECT_EQ(made.by_place[place], former > lost ? former - 1 : former) << lost;
    }
  }
}

/// Sites 0 and 2 go on, and two ranks come: they are site 1.
TEST(MeshFor, LetsASiteComeBackByItsNumber) {
  const ParallelRequest asked = of_sites(3, 1, 2);
  Members members = members_of(of_sites(2, 1, 2), {0, 2});
  members.resize(6);
  const Arrangement made =
      mesh_for(asked, members, 8, kAnything, Shares::any, {.whole_sites = {0, 2}});
  EXPECT_EQ(made.sites, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(made.by_place, (std::vector<int>{0, 1, 4, 5, 2, 3}));
}

TEST(MeshFor, CutsThePipelineOfASingleSiteLast) {
  const ParallelRequest asked = of_sites(2, 1, 2);
  const Arrangement made = mesh_for(asked, Members(1), 8, kAnything);
  EXPECT_EQ(made.request.sites, 1);
  EXPECT_EQ(made.request.pp, 1);
  EXPECT_EQ(made.sites, (std::vector<int>{0}));
}

}  // namespace
}  // namespace heddle::recover
