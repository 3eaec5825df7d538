// What is told at once against single calls, bit by bit.

#include "ops/at_once.h"
#include "ops/attention.h"
#include "ops/cuda_testing.h"

namespace heddle::ops {
namespace {

class CudaAtOnce : public OnGpu {
 protected:
  /// Some rows and heads of [1, 300, 12, width], with other values for every seed.
  Tensor rows(std::int64_t first, std::int64_t count, std::int64_t width, std::uint64_t seed) {
    const Tensor all = up(random({1, 300, 12, width}, DType::f32, seed), DType::f32);
    return all.slice(1, first, first + count).slice(2, 3, 9);
  }
  Tensor like(const Tensor& t) {
    const Tensor made = device_empty(t.shape(), t.dtype());
    copy(t, made, gpu());
    return made;
  }
};

TEST_F(CudaAtOnce, CopiesAndSumsAreThoseOfSingleCalls) {
  for (const std::int64_t width : {128, 64, 20, 3}) {  // rows of 3 floats take single calls
    SCOPED_TRACE(width);
    std::vector<Copied> copies;
    std::vector<Summed> sums;
    std::vector<Tensor> want;
    for (std::uint64_t i = 0; i < 90; ++i) {  // more than a kernel takes at a time
      const std::int64_t count = static_cast<std::int64_t>(1 + i * 7 % 50);
      copies.push_back({rows(static_cast<std::int64_t>(i), count, width, i), {}});
      copies.back().to = device_unwritten(copies.back().from.shape(), DType::f32);
      Summed& sum = sums.emplace_back();
      for (std::uint64_t n = 0; n <= i % 8; ++n) {  // and more than it adds at a time
        sum.from.push_back(rows(static_cast<std::int64_t>(n), count, width, 100 + i + n));
      }
      sum.to = rows(7, count, width, 200 + i);
      want.push_back(like(sum.to));
      for (const Tensor& from : sum.from) accumulate(from, want.back(), gpu());
    }
    copy_all(copies, gpu());
    accumulate_all(sums, gpu());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      ASSERT_EQ(values(down(copies[i].from)), values(down(copies[i].to))) << i;
      ASSERT_EQ(values(down(like(sums[i].to))), values(down(want[i]))) << i;
    }
  }
}

TEST_F(CudaAtOnce, MergesAreThoseOfSingleCalls) {
  for (const std::int64_t width : {128, 64, 20}) {
    for (const std::uint64_t count : {1U, 2U, 3U, 7U}) {
      SCOPED_TRACE(fmt::format("K{}, {} parts", width, count));
      std::vector<PartialRows> parts;
      for (std::uint64_t n = 0; n <= count; ++n) {
        const Tensor lse = up(random({1, 12, 300}, DType::f32, 50 + n, 20.0), DType::f32);
        // Rows that see none of a part's keys.
        fill(lse.slice(2, 10, 20 + static_cast<std::int64_t>(n)),
             -std::numeric_limits<double>::infinity(), gpu());
        parts.push_back({rows(30, 101, width, n), lse.slice(1, 3, 9).slice(2, 0, 101)});
      }
      const Tensor out = like(parts[0].rows_BSHK), lse = like(parts[0].lse_BHS);
      const Tensor want = like(out), want_lse = like(lse);
      const std::span others = std::span(parts).subspan(1);
      for (const auto& [part, part_lse] : others) {
        attention_merge(part, part_lse, want, want_lse, gpu());
      }
      attention_merge_all(others, out, lse, gpu());
      EXPECT_EQ(values(down(out)), values(down(want)));
      EXPECT_EQ(values(down(lse)), values(down(want_lse)));
    }
  }
}

}  // namespace
}  // namespace heddle::ops
