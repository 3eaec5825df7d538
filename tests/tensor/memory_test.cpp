#include "tensor/memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "tensor/tensor.h"

namespace heddle {
namespace {

std::size_t at(const BytesByTag& bytes, MemoryTag tag) {
  return bytes[static_cast<std::size_t>(tag)];
}

TEST(Memory, CountsByTagAndRemembersThePeak) {
  Memory memory;
  Tensor kept = memory.alloc({16}, DType::f32, MemoryTag::parameters);
  {
    Tensor gone = memory.alloc({1024}, DType::f32, MemoryTag::activations);
    EXPECT_EQ(at(memory.stats().live, MemoryTag::activations), 4096U);
  }
  const auto stats = memory.stats();
  EXPECT_EQ(at(stats.live, MemoryTag::activations), 0U);
  EXPECT_EQ(stats.peak, 4096U + 64U);
  EXPECT_EQ(at(stats.at_peak, MemoryTag::parameters), 64U);
  memory.reset_peak();
  EXPECT_EQ(memory.stats().peak, 64U);
}

TEST(Memory, ReusesBlocksOfTheSameSizeAndTrims) {
  Memory memory;
  for (int i = 0; i < 10; ++i) memory.alloc({1 << 20}, DType::f32, MemoryTag::workspace);
  EXPECT_EQ(memory.stats().reserved, std::size_t{4} << 20);
  memory.trim();
  EXPECT_EQ(memory.stats().reserved, 0U);
}

TEST(Memory, KeepsFewBlocksForSizesThatVary) {
  Memory memory;
  constexpr std::int64_t kRow = 1 << 16;
  const auto reserved_after = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      const std::int64_t rows = 1000 + step * 379 % 1009;
      const Tensor tensor = memory.alloc({rows, kRow / 4}, DType::f32, MemoryTag::activations);
      EXPECT_EQ(at(memory.stats().live, MemoryTag::activations),
                Memory::rounded_bytes(static_cast<std::size_t>(rows * kRow)));
    }
    return memory.stats().reserved;
  };
  EXPECT_LT(reserved_after(20), std::size_t{3 * 2009 * kRow});
  EXPECT_LT(reserved_after(1009), std::size_t{2 * 2009 * kRow});
}

TEST(Memory, KeepsTheBlocksOfManySizesThatComeAgain) {
  Memory memory;
  const auto step = [&](std::int64_t first) {
    std::vector<Tensor> held;
    std::size_t bytes = 0;
    for (std::int64_t i = 0; i < 40; ++i) {
      held.push_back(memory.alloc({first - i, 1 << 14}, DType::f32, MemoryTag::activations));
      bytes += held.back().size_bytes();
    }
    return bytes;
  };
  const std::size_t forward = step(2000), backward = step(1950);
  for (int again = 0; again < 5; ++again) {
    step(2000);
    step(1950);
  }
  EXPECT_EQ(memory.stats().reserved, forward + backward);
}

TEST(Memory, TensorsMayOutliveIt) {
  Tensor survivor;
  {
    Memory memory;
    survivor = memory.zeros({8}, DType::f32, MemoryTag::workspace);
  }
  EXPECT_EQ(survivor.host<float>()[7], 0.0F);
}

TEST(Memory, OfAGpuIsPlannedWithoutOne) {
  const Device gpu{Device::Kind::cuda, 0};
  Memory memory(Memory::Mode::dry, gpu);
  const Tensor small = memory.zeros({1}, DType::f32, MemoryTag::parameters);
  const Tensor large = memory.alloc({1 << 20}, DType::f32, MemoryTag::activations);
  EXPECT_EQ(small.device(), gpu);
  EXPECT_EQ(memory.stats().peak, 256U + (std::size_t{4} << 20));
  // Small blocks are cut from a chunk of 8 MiB.
  EXPECT_EQ(memory.stats().reserved, std::size_t{12} << 20);
  EXPECT_THROW(small.host<float>(), Error);
}

}  // namespace
}  // namespace heddle
