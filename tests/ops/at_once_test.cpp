#include "ops/at_once.h"

#include "base/error.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

TEST(AtOnce, SumsAreMadeInTheOrderGiven) {
  Stream stream(1);
  const auto filled = [&](double value) {
    const Tensor t = empty({3}, DType::f32);
    fill(t, value, stream);
    return t;
  };
  const Tensor first = filled(1.0), second = filled(1.0);
  // 2^24 + 1 is not a float32: 1 is lost where it comes behind the large one.
  accumulate_all(std::vector<Summed>{{{filled(0x1p24), filled(-0x1p24)}, first},
                                     {{filled(-1.0), filled(0x1p24)}, second}},
                 stream);
  for (const double value : values(first)) EXPECT_EQ(value, 0.0);
  for (const double value : values(second)) EXPECT_EQ(value, 0x1p24);
}

TEST(AtOnce, CopiesAndMergesAreThoseOfSingleCalls) {
  Stream stream(1);
  const Shape rows{1, 5, 2, 8}, statistics{1, 2, 5};
  std::vector<PartialRows> parts;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    parts.push_back({random_tensor(rows, DType::f32, seed), empty(statistics, DType::f32)});
    copy(random_tensor(statistics, DType::f32, seed + 10), parts.back().lse_BHS, stream);
  }
  const Tensor out = empty(rows, DType::f32), lse = empty(statistics, DType::f32);
  const Tensor want = empty(rows, DType::f32), want_lse = empty(statistics, DType::f32);
  copy_all(std::vector<Copied>{{parts[0].rows_BSHK, out}, {parts[0].lse_BHS, lse}}, stream);
  copy(out, want, stream);
  copy(lse, want_lse, stream);
  EXPECT_EQ(values(out), values(parts[0].rows_BSHK));
  const std::span others = std::span(parts).subspan(1);
  attention_merge_all(others, out, lse, stream);
  for (const auto& [part, part_lse] : others) {
    attention_merge(part, part_lse, want, want_lse, stream);
  }
  EXPECT_EQ(values(out), values(want));
  EXPECT_EQ(values(lse), values(want_lse));
}

TEST(AtOnce, ShapesMustFit) {
  Stream stream(1);
  const Tensor a = empty({3}, DType::f32), b = empty({4}, DType::f32);
  EXPECT_THROW(copy_all(std::vector<Copied>{{a, b}}, stream), Error);
  EXPECT_THROW(accumulate_all(std::vector<Summed>{{{a, b}, a}}, stream), Error);
}

}  // namespace
}  // namespace heddle::ops
