#include "mesh/mesh.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(Mesh, OfOneProcessHasSizeOneOnEveryAxis) {
  const Mesh mesh;
  EXPECT_EQ(mesh.ranks(), 1);
  for (const Axis axis : {Axis::pp, Axis::dp, Axis::cp, Axis::tp, Axis::ep}) {
    EXPECT_EQ(mesh.size(axis), 1);
    EXPECT_EQ(mesh.coord(axis), 0);
  }
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

}  // namespace
}  // namespace heddle
