#include "codec/top_k.h"

#include <algorithm>
#include <numeric>

#include "codec/codec_testing.h"

namespace heddle::codec {
namespace {

/// The kept indices of one chunk, slowly.
std::vector<std::size_t> largest(const Floats& x, std::size_t kept) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return std::abs(x[i]); });
  order.resize(kept);
  std::ranges::sort(order);
  return order;
}

TEST(TopK, KeepsTheLargestAndTheFirstOfEquals) {
  for (const std::size_t n : {1, 2, 31, 32, 63, 64}) {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      Floats x = gaussian(n, seed);
      if (seed % 2 == 1) {
        for (float& value : x) value = std::round(value);  // many equals, many zeros
      }
      const TopK codec(10, 64);
      const auto kept = largest(x, static_cast<std::size_t>(codec.kept_of(std::int64_t(n))));
      const Floats y = round_trip(codec, x);
      for (std::size_t i = 0; i < n; ++i) {
        if (!std::ranges::binary_search(kept, i)) {
          ASSERT_EQ(y[i], 0.0F) << n << " " << seed << " " << i;
        } else if (y[i] != 0.0F) {
          ASSERT_EQ(std::signbit(y[i]), std::signbit(x[i]));
        }
      }
      ASSERT_GE(kept.size(), 1U);
    }
  }
}

TEST(TopK, StandsForKeptValuesByTwoMagnitudes) {
  Floats x(4096, 0.01F);
  for (std::size_t i = 0; i < 64; ++i) {
    x[i * 50 + 7] = (i % 4 == 0 ? 8.0F : 2.0F) * (i % 3 == 0 ? -1.0F : 1.0F);
  }
  const Floats y = round_trip(TopK(64, 4096), x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i], std::abs(x[i]) > 1 ? x[i] : 0.0F) << i;
  }
}

TEST(TopK, LosesHardlyMoreThanTheBestTwoMagnitudesWould) {
  const Floats x = gaussian(4096, 41);
  const Floats y = round_trip(TopK(64, 4096), x);
  Floats magnitudes;
  for (const std::size_t i : largest(x, 64)) magnitudes.push_back(std::abs(x[i]));
  std::ranges::sort(magnitudes);
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t cut = 1; cut < 64; ++cut) {
    const auto spread = [](auto begin, auto end) {
      const double mean = std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
      double sum = 0;
      for (auto at = begin; at != end; ++at) sum += std::pow(static_cast<double>(*at) - mean, 2);
      return sum;
    };
    const auto middle = magnitudes.begin() + static_cast<std::ptrdiff_t>(cut);
    best = std::min(best, spread(magnitudes.begin(), middle) + spread(middle, magnitudes.end()));
  }
  double lost = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (y[i] != 0.0F) lost += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
  }
  EXPECT_LE(lost, 1.1 * best);
}

TEST(TopK, TakesDamagedBytesForSomething) {
  const TopK codec(10, 64);
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    for (const std::size_t n : {1, 40, 64, 100}) {
      Bytes bytes(codec.encoded_bytes(static_cast<std::int64_t>(n)));
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::uint8_t>(random_u64(seed, i));
      }
      EXPECT_EQ(decode(codec, bytes, n).size(), n);
    }
  }
}

}  // namespace
}  // namespace heddle::codec
