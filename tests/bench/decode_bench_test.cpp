#include "bench/decode_bench.h"

#include <gtest/gtest.h>

#include "comm/threads/thread_world.h"

namespace heddle {
namespace {

TEST(DecodeBench, AllMethodsGiveTheOutputOfTheTree) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [&](World& world) {
      Stream stream(1);
      // Shares of different sizes: a row that is missing or taken twice shows.
      const auto results = bench_decode(
          world, stream, {.context = 131, .heads = 4, .key_heads = 2, .head_dim = 16, .rounds = 1});
      ASSERT_EQ(results.size(), 3U);
      for (const DecodeBenchResult& result : results) {
        EXPECT_LT(result.difference, 1e-5) << name_of(result.method);
        EXPECT_GT(result.seconds, 0.0);
      }
      EXPECT_EQ(results[0].sent_bytes, (ranks - 1) * 4 * 4 * (16 + 1));
      EXPECT_EQ(results[2].sent_bytes, (ranks - 1) * 2 * 4 * 2 * 16 * ((131 + ranks - 1) / ranks));
    });
  }
}

}  // namespace
}  // namespace heddle
