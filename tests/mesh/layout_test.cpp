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

TEST(Layout, TheDualOfTheDualIsThePlacement) {
  for (const Placement& one : {invariant(), replicate(), partial(), shard(0), shard(1)}) {
    EXPECT_EQ(dual(dual(one)), one);
  }
}

TEST(Layout, WithChangesOneAxisOfACopy) {
  const Layout plain;
  const Layout changed = plain.with(Axis::tp, shard(1));
  EXPECT_EQ(plain, Layout{});
  EXPECT_EQ(changed.on(Axis::tp), shard(1));
  EXPECT_EQ(changed.on(Axis::dp), Placement{}) << "nothing was said of it";
  EXPECT_NE(shard(0), shard(1));
}

TEST(Layout, IsWrittenAxisByAxis) {
  EXPECT_EQ(to_text(Layout{}), "I");
  EXPECT_EQ(to_text(Layout{}.with(Axis::tp, shard(0)).with(Axis::dp, replicate())), "dp=R tp=S(0)");
  EXPECT_EQ(to_text(Layout{}.with(Axis::pp, partial()).with(Axis::cp, shard(1))), "pp=P cp=S(1)");
  EXPECT_EQ(to_text(whole_on_stage(View::experts).with(Axis::ep, shard(0))),
            "site=own pp=alone edp=R ep=S(0)");
}

}  // namespace
}  // namespace heddle
