#include "optim/clip.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(Clip, LeavesGradientsBelowTheLimitAlone) {
  EXPECT_EQ(clip_scale(0.0, 1.0), 1.0);
  EXPECT_EQ(clip_scale(0.5, 1.0), 1.0);
}

TEST(Clip, ScalesLargerOnesToTheLimit) {
  EXPECT_NEAR(clip_scale(4.0, 1.0) * 4.0, 1.0, 1e-6);
  EXPECT_EQ(clip_scale(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_NEAR(clip_scale(100.0, 2.5), 0.025, 1e-9);
}

TEST(Clip, ALimitOfZeroIsNoLimit) { EXPECT_EQ(clip_scale(1e30, 0.0), 1.0); }

}  // namespace
}  // namespace heddle
