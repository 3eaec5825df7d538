#include "bench/comm_bench.h"

#include <gtest/gtest.h>

#include <atomic>

#include "comm/threads/thread_world.h"

namespace heddle {
namespace {

TEST(CommBench, TimesEveryCollectiveAndSizeInTurnsWithItsBound) {
  std::atomic<std::int64_t> bounds = 0;
  run_ranks(3, [&](World& world) {
    const auto bound = [&](CommOp, const Tensor& whole, const Tensor& shard) {
      EXPECT_EQ(whole.count(), 3 * shard.count());
      ++bounds;
    };
    const auto results =
        bench_comm(world, bound, {.smallest_bytes = 1024, .largest_bytes = 4096, .seconds = 0});
    ASSERT_EQ(results.size(), 6U);
    EXPECT_EQ(results[0].op, CommOp::all_reduce);
    EXPECT_EQ(results[1].bytes, 4092) << "three equal shards of f32";
    EXPECT_EQ(results[5].op, CommOp::reduce_scatter);
    for (const auto& result : results) {
      EXPECT_GT(result.seconds, 0);
      EXPECT_GE(result.fraction, 0);
    }
    const auto calls = world.all().counts().by_op[static_cast<std::size_t>(CommOp::all_gather)];
    EXPECT_GE(calls.calls, 2 * 9);
  });
  EXPECT_GE(bounds, 3 * 6 * 9);
}

TEST(CommBench, CopiesAsManyBytesAsTheWholeTensor) {
  Memory memory;
  const auto bound = copy_bound(memory);
  const Tensor whole = memory.zeros({100}, DType::f32, MemoryTag::communication);
  const auto before = total(memory.stats().live);
  bound(CommOp::all_reduce, whole, whole);
  EXPECT_EQ(total(memory.stats().live), 2 * before);
}

}  // namespace
}  // namespace heddle
