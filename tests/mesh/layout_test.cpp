#include "mesh/layout.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(Layout, GradientsLieAsTheTableSays) {
  EXPECT_EQ(dual(invariant()), invariant());
  EXPECT_EQ(dual(replicate()), partial());
  EXPECT_EQ(dual(partial()), replicate());
  EXPECT_EQ(dual(shard(0)), shard(0));
  EXPECT_EQ(dual(shard(3)), shard(3));
}

TEST(Layout, TheDualOfTheDualIsTheLayout) {
  const Placement placements[] = {invariant(), replicate(), partial(), shard(0), shard(1)};
  for (const Placement& on_dp : placements) {
    for (const Placement& on_tp : placements) {
      const Layout layout = Layout{}.with(Axis::dp, on_dp).with(Axis::tp, on_tp);
      EXPECT_EQ(dual(dual(layout)), layout) << to_text(layout);
      EXPECT_EQ(dual(layout).on(Axis::dp), dual(on_dp));
    }
  }
}

TEST(Layout, WithChangesOneAxisOfACopy) {
  const Layout plain;
  const Layout changed = plain.with(Axis::tp, shard(1));
  EXPECT_EQ(plain, Layout{});
  EXPECT_EQ(changed.on(Axis::tp), shard(1));
  EXPECT_EQ(changed.on(Axis::dp), invariant());
  EXPECT_NE(shard(0), shard(1));
}

TEST(Layout, IsWrittenAxisByAxis) {
  EXPECT_EQ(to_text(Layout{}), "I");
  EXPECT_EQ(to_text(Layout{}.with(Axis::tp, shard(0)).with(Axis::dp, replicate())), "dp=R tp=S(0)");
  EXPECT_EQ(
      to_text(
          Layout{}.with(Axis::pp, partial()).with(Axis::cp, shard(1)).with(Axis::ep, replicate())),
      "pp=P cp=S(1) ep=R");
}

}  // namespace
}  // namespace heddle
