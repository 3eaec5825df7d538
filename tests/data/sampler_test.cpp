#include "data/sampler.h"

#include <gtest/gtest.h>

#include <set>

#include "data/test_files.h"

namespace heddle {
namespace {

TEST(WindowSampler, VisitsEveryWindowOncePerEpochInsideTheRange) {
  for (const std::int64_t tokens : {std::int64_t{9}, std::int64_t{100}, std::int64_t{1003}}) {
    const TokenRange range{50, 50 + tokens};
    const WindowSampler sampler(range, 8, 3, "a");
    EXPECT_EQ(sampler.windows(), (tokens - 1) / 8);
    for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
      std::set<std::int64_t> begins;
      for (std::int64_t i = 0; i < sampler.windows(); ++i) {
        const std::int64_t begin = sampler.window_begin(epoch * sampler.windows() + i);
        EXPECT_GE(begin, range.begin);
        EXPECT_LE(begin + 9, range.end);
        begins.insert(begin);
      }
      ASSERT_EQ(static_cast<std::int64_t>(begins.size()), sampler.windows());
      EXPECT_EQ(*begins.rbegin() - *begins.begin(), 8 * (sampler.windows() - 1));
    }
  }
}

TEST(WindowSampler, OrderDependsOnSeedNameAndEpoch) {
  const TokenRange range{0, 8001};
  const WindowSampler a(range, 8, 1, "a"), again(range, 8, 1, "a"), seed(range, 8, 2, "a"),
      name(range, 8, 1, "b");
  int same_seed = 0, same_name = 0, same_epoch = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(a.window_begin(i), again.window_begin(i));
    same_seed += a.window_begin(i) == seed.window_begin(i) ? 1 : 0;
    same_name += a.window_begin(i) == name.window_begin(i) ? 1 : 0;
    same_epoch += a.window_begin(i) == a.window_begin(i + 1000) ? 1 : 0;
  }
  EXPECT_LT(same_seed + same_name + same_epoch, 30);
}

TEST(WindowSampler, ReachesFarSamplesAtOnce) {
  const WindowSampler sampler({0, 1001}, 10, 1, "a");
  EXPECT_EQ(sampler.epoch_of(std::int64_t{1} << 60), (std::int64_t{1} << 60) / 100);
  EXPECT_LE(sampler.window_begin(std::int64_t{1} << 60), 1001 - 11);
}

TEST(SplitTokens, CutsAtTheNearestDocument) {
  const TemporaryFolder folder;
  const TokenFile file = TokenFile::open(write_counting_file(folder / "a.tok", {40, 40, 8, 12}));
  EXPECT_EQ(split_tokens(file, 0.1).held_out, (TokenRange{88, 100}));
  EXPECT_EQ(split_tokens(file, 0.18).held_out, (TokenRange{80, 100}));
  EXPECT_EQ(split_tokens(file, 0.0).held_out, (TokenRange{100, 100}));
  EXPECT_EQ(split_tokens(file, 1.0).train, (TokenRange{0, 0}));
}

TEST(SplitTokens, CutsThroughADocumentWhenBoundariesAreFar) {
  const TemporaryFolder folder;
  const TokenFile one = TokenFile::open(write_counting_file(folder / "a.tok", {100}));
  EXPECT_EQ(split_tokens(one, 0.1).held_out, (TokenRange{90, 100}));
  const TokenFile two = TokenFile::open(write_counting_file(folder / "b.tok", {10, 90}));
  EXPECT_EQ(split_tokens(two, 0.1).held_out, (TokenRange{90, 100}));
}

}  // namespace
}  // namespace heddle
