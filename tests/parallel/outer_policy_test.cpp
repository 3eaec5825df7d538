#include "parallel/step/outer_policy.h"

#include <gtest/gtest.h>

#include "codec/registry.h"

namespace heddle {
namespace {

TEST(OuterPolicy, BeginsAndEndsWhereTheRuleSays) {
  for (const auto& [every, fragments, delay] :
       {std::tuple(1, 1, 0), {3, 1, 0}, {4, 2, 1}, {4, 4, 1}, {10, 3, 9}, {100, 7, 5}}) {
    const OuterPolicy policy{.every = every, .fragments = fragments, .delay = delay};
    for (int p = 0; p < fragments; ++p) {
      const std::int64_t offset = std::int64_t{p} * every / fragments;
      const auto sends = [&, every = every](std::int64_t t) {
        return t > offset && (t - offset) % every == 0;
      };
      for (std::int64_t t = 1; t <= 3 * every; ++t) {
        EXPECT_EQ(policy.begins(p, t), sends(t)) << p << " at " << t;
        EXPECT_EQ(policy.ends(p, t), sends(t - delay)) << p << " at " << t;
      }
    }
  }
  EXPECT_FALSE(OuterPolicy{}.begins(0, 5));
  EXPECT_FALSE(OuterPolicy{}.begins(5));
}

TEST(OuterPolicy, StridesBlocksAndGivesTheFirstFragmentAllElse) {
  const OuterPolicy policy{.every = 8, .fragments = 3};
  EXPECT_EQ(policy.fragment_of(-1), 0);
  EXPECT_EQ(policy.fragment_of(4), 1);
  RankUnits units;
  units.units = {{.block = -1}, {.block = 1}, {.block = 4}};
  units.buckets = {
      {.owner = 0, .parts = {10}}, {.owner = 1, .parts = {300, 7}}, {.owner = 2, .parts = {5}}};
  EXPECT_TRUE(policy.has(units, 0));
  EXPECT_TRUE(policy.has(units, 1));
  EXPECT_FALSE(policy.has(units, 2));
  EXPECT_EQ(policy.sent_bytes(units, 1), 4 * (300 + 7 + 5));
  OuterPolicy coded = policy;
  coded.codec = codec::make_codec("e3m0:256");
  EXPECT_EQ(coded.sent_bytes(units, 1),
            coded.encoded_bytes(300) + coded.encoded_bytes(7) + coded.encoded_bytes(5));
  EXPECT_LT(coded.sent_bytes(units, 1), policy.sent_bytes(units, 1) / 6);
}

}  // namespace
}  // namespace heddle
