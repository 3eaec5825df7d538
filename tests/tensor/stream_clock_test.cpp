#include "tensor/stream_clock.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "tensor/memory.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

TEST(StreamClock, OfAHostSaysWhatItWasToldWhenPointsWereNoted) {
  double now = 5.0;
  const auto clock = make_host_clock([&] { return now; });
  EXPECT_FALSE(clock->is_behind());
  const std::size_t first = clock->mark();
  now = 7.5;
  const std::size_t second = clock->mark();
  now = 100.0;
  EXPECT_EQ(clock->seconds(first, second), 2.5);
  clock->forget();
  EXPECT_EQ(clock->mark(), first);
}

TEST(StreamClock, OfAStreamThatWorksInlineIsTheTimeOfDay) {
  Stream stream(1);
  const auto clock = make_stream_clock(stream);
  EXPECT_FALSE(clock->is_behind());
  const Stopwatch watch;
  const std::size_t first = clock->mark(), second = clock->mark();
  EXPECT_GE(clock->seconds(first, second), 0.0);
  EXPECT_LE(clock->seconds(first, second), watch.seconds());
}

/// More work takes longer, also when points are noted anew; the host waits for nothing before it
/// asks.
TEST(StreamClock, OfAGpuIsTheTimeOfItsWork) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const Device gpu{Device::Kind::cuda, 0};
  Memory memory(gpu);
  Stream stream(1, gpu);
  const Tensor from = memory.zeros({1 << 28}, DType::u8, MemoryTag::data);
  const Tensor to = memory.zeros(from.shape(), DType::u8, MemoryTag::data);
  const auto clock = make_stream_clock(stream);
  EXPECT_TRUE(clock->is_behind());
  for (int round = 0; round < 3; ++round) {
    clock->forget();
    const std::size_t begin = clock->mark();
    transfer(from, to, stream);
    const std::size_t middle = clock->mark();
    for (int i = 0; i < 8; ++i) transfer(from, to, stream);
    const std::size_t end = clock->mark();
    EXPECT_EQ(end, 2u);
    stream.synchronize();
    if (round == 0) continue;
    EXPECT_GT(clock->seconds(begin, middle), 1e-5);  // at 2 * 2^28 bytes
    EXPECT_GT(clock->seconds(middle, end), 4 * clock->seconds(begin, middle));
    EXPECT_LT(clock->seconds(middle, end), 16 * clock->seconds(begin, middle));
  }
}

}  // namespace
}  // namespace heddle
