#include "mesh/mesh.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "comm/threads/thread_world.h"

namespace heddle {
namespace {

constexpr Axis kEveryAxis[] = {Axis::site, Axis::pp, Axis::dp, Axis::cp, Axis::tp};

MeshShape shape_of(int pp, int dp, int tp, int cp = 1) {
  return MeshShape{}.with(Axis::pp, pp).with(Axis::dp, dp).with(Axis::cp, cp).with(Axis::tp, tp);
}

/// The ranks of a group as its members see them: everybody says who he is.
std::vector<int> members(Communicator& group, int rank) {
  Memory memory;
  Stream stream(1);
  const Tensor mine = memory.alloc({1}, DType::i32, MemoryTag::communication);
  const Tensor all = memory.alloc({group.size()}, DType::i32, MemoryTag::communication);
  mine.host<std::int32_t>()[0] = rank;
  group.all_gather(mine, all, stream).wait(stream);
  return {all.host<std::int32_t>().begin(), all.host<std::int32_t>().end()};
}

TEST(Mesh, OfOneProcessHasSizeOneOnEveryAxis) {
  const Mesh mesh;
  EXPECT_EQ(mesh.ranks(), 1);
  for (const Axis axis : kEveryAxis) {
    EXPECT_EQ(mesh.size(axis), 1);
    EXPECT_EQ(mesh.coord(axis), 0);
  }
  EXPECT_EQ(mesh.comm(Axis::copy).size(), 1);
  EXPECT_EQ(mesh.ends().size(), 1);
  EXPECT_TRUE(mesh.is_end());
}

TEST(Mesh, HasACommunicatorOfItsOwnForEveryAxis) {
  const Mesh mesh;
  mesh.comm(Axis::tp).barrier();
  const auto barriers = [&](Axis axis) {
    return mesh.comm(axis).counts().by_op[static_cast<std::size_t>(CommOp::barrier)].calls;
  };
  EXPECT_EQ(barriers(Axis::tp), 1);
  EXPECT_EQ(barriers(Axis::dp), 0);
}

TEST(MeshShape, CountsRanksWithTpFastestAndPpSlowest) {
  const MeshShape shape = shape_of(2, 3, 2, 2);
  EXPECT_EQ(shape.ranks(), 24);
  int rank = 0;
  for (int pp = 0; pp < 2; ++pp) {
    for (int dp = 0; dp < 3; ++dp) {
      for (int cp = 0; cp < 2; ++cp) {
        for (int tp = 0; tp < 2; ++tp, ++rank) {
          EXPECT_EQ(shape.coord(Axis::pp, rank), pp) << rank;
          EXPECT_EQ(shape.coord(Axis::dp, rank), dp) << rank;
          EXPECT_EQ(shape.coord(Axis::cp, rank), cp) << rank;
          EXPECT_EQ(shape.coord(Axis::tp, rank), tp) << rank;
          EXPECT_EQ(shape.coord(Axis::ep, rank), 0) << rank;
          EXPECT_EQ(shape.coord(Axis::edp, rank), rank % 12) << rank;
        }
      }
    }
  }
}

TEST(MeshShape, IsWrittenAsTheRunFileNamesIt) {
  EXPECT_EQ(MeshShape{}.text(), "dp=1 tp=1 pp=1");
  EXPECT_EQ(shape_of(4, 3, 2).text(), "dp=3 tp=2 pp=4");
}

TEST(Mesh, GroupsAreTheRanksThatDifferOnTheAxisOnly) {
  for (const MeshShape& shape : {shape_of(1, 2, 2), shape_of(2, 2, 2), shape_of(3, 1, 2),
                                 shape_of(2, 3, 1), shape_of(1, 2, 2, 2), shape_of(4, 1, 1)}) {
    run_ranks(shape.ranks(), [&](World& world) {
      const Mesh mesh(shape, world.all());
      EXPECT_EQ(mesh.rank(), world.rank());
      EXPECT_EQ(mesh.ranks(), shape.ranks());
      for (const Axis axis : kEveryAxis) {
        std::vector<int> want;
        for (int other = 0; other < shape.ranks(); ++other) {
          bool differs_elsewhere = false;
          for (const Axis any : kEveryAxis) {
            differs_elsewhere |= any != axis && shape.coord(any, other) != mesh.coord(any);
          }
          if (!differs_elsewhere) want.push_back(other);
        }
        EXPECT_EQ(members(mesh.comm(axis), world.rank()), want)
            << shape.text() << " " << name_of(axis);
        EXPECT_EQ(mesh.coord(axis), shape.coord(axis, world.rank()));
        EXPECT_EQ(mesh.size(axis), shape.size(axis));
      }
    });
  }
}

TEST(Mesh, CopiesAreNeighboursOnTp) {
  const MeshShape shape = shape_of(1, 2, 4).with(Axis::copy, 2);
  run_ranks(8, [&](World& world) {
    const Mesh mesh(shape, world.all());
    const int first = world.rank() / 2 * 2;
    EXPECT_EQ(members(mesh.comm(Axis::copy), world.rank()), (std::vector<int>{first, first + 1}));
    EXPECT_EQ(mesh.coord(Axis::copy), world.rank() - first);
    EXPECT_EQ(mesh.coord(Axis::kv), world.rank() % 4 / 2);
    EXPECT_EQ(mesh.ends().size(), 1);
  });
}

TEST(Mesh, HasAGroupOverAllRanksThatSeeOtherTokens) {
  const MeshShape shape = shape_of(1, 2, 2, 2);
  run_ranks(8, [&](World& world) {
    const Mesh mesh(shape, world.all());
    const int tp = world.rank() % 2;
    EXPECT_EQ(members(mesh.group(kTokenAxes), world.rank()),
              (std::vector<int>{tp, tp + 2, tp + 4, tp + 6}));
  });
  const Mesh without_cp = Mesh::recorded(shape_of(1, 3, 2), 0);
  EXPECT_EQ(&without_cp.group(kTokenAxes), &without_cp.comm(Axis::dp));
}

TEST(Mesh, OfExpertsIsAnotherViewOfTheSameRanks) {
  // Four ranks that see tokens, times two of tp: two of each expert's parts, two sets of experts.
  const MeshShape shape = shape_of(2, 4, 2).with(Axis::ep, 2).with(Axis::etp, 2);
  EXPECT_EQ(shape.ranks(), 16) << "experts add no ranks";
  EXPECT_EQ(shape.size(Axis::edp), 2);
  run_ranks(16, [&](World& world) {
    const Mesh mesh(shape, world.all());
    const int rank = world.rank(), pair = rank / 2 * 2;
    EXPECT_EQ(members(mesh.comm(Axis::etp), rank), (std::vector<int>{pair, pair + 1}));
    const int ep = rank / 4 * 4 + rank % 2;
    EXPECT_EQ(members(mesh.comm(Axis::ep), rank), (std::vector<int>{ep, ep + 2}));
    const int edp = rank / 8 * 8 + rank % 4;
    EXPECT_EQ(members(mesh.comm(Axis::edp), rank), (std::vector<int>{edp, edp + 4}));
  });
  MeshShape joined = shape;
  joined.joins_stages = true;
  run_ranks(16, [&](World& world) {
    const Mesh mesh(joined, world.all());
    const int rank = world.rank(), first = rank / 8 * 8 + rank % 4 / 2 * 2;
    EXPECT_EQ(members(mesh.group({Axis::edp, Axis::etp}), rank),
              (std::vector<int>{first, first + 1, first + 4, first + 5}));
  });
}

TEST(Mesh, RefusesAGroupThatMixesViews) {
  const Mesh mesh;
  EXPECT_THROW(mesh.group({Axis::tp, Axis::ep}), Error);
}

TEST(Mesh, SumsOverAxesTheFastestFirst) {
  const MeshShape shape = shape_of(2, 2, 2);
  run_ranks(8, [&](World& world) {
    const Mesh mesh(shape, world.all());
    Memory memory;
    Stream stream(1);
    const Tensor number = memory.alloc({1}, DType::f64, MemoryTag::communication);
    number.host<double>()[0] = world.rank();
    mesh.sum(number, {Axis::tp, Axis::pp}, stream);
    const double tp_and_dp = world.rank() / 2 % 2 * 2;
    EXPECT_EQ(number.host<double>()[0], 4 * tp_and_dp + (0 + 1 + 4 + 5));
    EXPECT_EQ(mesh.traffic().on(Axis::dp).by_op[static_cast<std::size_t>(CommOp::all_reduce)].calls,
              0);
  });
}

TEST(Mesh, EndsAreTheFirstAndTheLastStageOfOnePipeline) {
  MeshShape shape = shape_of(3, 2, 1);
  shape.ends = {0, 2};
  run_ranks(6, [&](World& world) {
    const Mesh mesh(shape, world.all());
    const int pp = mesh.coord(Axis::pp), dp = mesh.coord(Axis::dp);
    EXPECT_EQ(mesh.is_end(), pp != 1);
    const auto want = pp == 1 ? std::vector<int>{world.rank()} : std::vector<int>{dp, 4 + dp};
    EXPECT_EQ(members(mesh.ends(), world.rank()), want);
    if (pp != 1) {
      EXPECT_EQ(mesh.ends().rank(), pp == 0 ? 0 : 1) << "the first stage comes first";
    }
  });
}

TEST(Mesh, EndsOnOneRankNeedNoGroup) {
  MeshShape shape = shape_of(2, 1, 1);
  shape.ends = {0, 0};  // a V: the first rank has the first and the last stage
  run_ranks(2, [&](World& world) {
    const Mesh mesh(shape, world.all());
    EXPECT_EQ(mesh.ends().size(), 1);
    EXPECT_EQ(mesh.is_end(), world.rank() == 0);
  });
}

TEST(Mesh, RefusesAWorldOfAnotherSize) {
  run_ranks(2, [](World& world) { EXPECT_THROW(Mesh(shape_of(1, 3, 1), world.all()), Error); });
}

TEST(Mesh, RecordedSeesWhatTheRankSees) {
  MeshShape shape = shape_of(3, 2, 4).with(Axis::copy, 2);
  shape.ends = {0, 2};
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const Mesh mesh = Mesh::recorded(shape, rank);
    EXPECT_EQ(mesh.rank(), rank);
    EXPECT_EQ(mesh.ranks(), 24);
    for (const Axis axis : kEveryAxis) {
      EXPECT_EQ(mesh.size(axis), shape.size(axis));
      EXPECT_EQ(mesh.coord(axis), shape.coord(axis, rank));
    }
    EXPECT_EQ(mesh.comm(Axis::copy).size(), 2);
    EXPECT_EQ(mesh.comm(Axis::copy).rank(), rank % 2);
    const int pp = shape.coord(Axis::pp, rank);
    EXPECT_EQ(mesh.ends().size(), pp == 1 ? 1 : 2);
    EXPECT_EQ(mesh.ends().rank(), pp == 2 ? 1 : 0);
    EXPECT_EQ(mesh.is_end(), pp != 1);
  }
}

TEST(Mesh, RecordedCountsAndMovesNothing) {
  const Mesh mesh = Mesh::recorded(shape_of(1, 2, 3), 4);
  Memory memory;
  Stream stream(1);
  const Tensor data = memory.zeros({10}, DType::f32, MemoryTag::communication);
  data.host<float>()[0] = 7.0F;
  mesh.comm(Axis::tp).all_reduce(data, ReduceOp::sum, stream).wait(stream);
  EXPECT_EQ(data.host<float>()[0], 7.0F);
  const auto count = [&](Axis axis) {
    return mesh.comm(axis).counts().by_op[static_cast<std::size_t>(CommOp::all_reduce)];
  };
  EXPECT_EQ(count(Axis::tp).calls, 1);
  EXPECT_EQ(count(Axis::tp).payload_bytes, 40);
  EXPECT_EQ(count(Axis::dp).calls, 0);
}

}  // namespace
}  // namespace heddle
