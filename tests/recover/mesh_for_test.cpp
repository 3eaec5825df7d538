#include "recover/mesh_for.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace heddle::recover
