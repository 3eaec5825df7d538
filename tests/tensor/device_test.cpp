#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "tensor/stream.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

TEST(Device, OneThatIsNotThereIsRefused) {
  const Device missing{Device::Kind::cuda, cuda_device_count()};
  try {
    const Stream stream(1, missing);
    FAIL() << "a stream on a device that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resources);
    EXPECT_NE(error.hint(), "");
  }
}

TEST(Transfer, WithinTheHostIsACopy) {
  Memory memory;
  Stream stream(1);
  const Tensor from = memory.alloc({3}, DType::i32, MemoryTag::data);
  const Tensor to = memory.alloc({3}, DType::i32, MemoryTag::data);
  std::iota(from.host<std::int32_t>().begin(), from.host<std::int32_t>().end(), 5);
  transfer(from, to, stream);
  EXPECT_EQ(to.host<std::int32_t>()[2], 7);
  EXPECT_EQ(to_host(to, stream).bytes(), to.bytes());
  EXPECT_EQ(to_device(to, memory, MemoryTag::data, stream).bytes(), to.bytes());
}

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(OnGpu, BytesTravelThereAndBack) {
  Memory host, device(kGpu);
  Stream stream(1, kGpu);
  const Tensor from = host.alloc({1 << 20}, DType::i32, MemoryTag::data);
  std::iota(from.host<std::int32_t>().begin(), from.host<std::int32_t>().end(), 0);
  const Tensor there = to_device(from, device, MemoryTag::data, stream);
  EXPECT_EQ(there.device(), kGpu);
  const Tensor zeros = device.zeros({4}, DType::i32, MemoryTag::data);
  transfer(zeros, there.slice(0, 8, 12), stream);
  const Tensor back = to_host(there, stream);
  EXPECT_EQ(back.host<std::int32_t>()[11], 0);
  EXPECT_EQ(back.host<std::int32_t>()[12], 12);
  EXPECT_EQ(back.host<std::int32_t>().back(), (1 << 20) - 1);
}

TEST_F(OnGpu, AStreamWaitsForAnothersEvent) {
  Memory host, device(kGpu);
  Stream first(1, kGpu), second(1, kGpu);
  const Tensor from = host.alloc({1 << 22}, DType::i32, MemoryTag::data);
  std::iota(from.host<std::int32_t>().begin(), from.host<std::int32_t>().end(), 0);
  const Tensor a = to_device(from, device, MemoryTag::data, first);
  second.wait(first.record());
  const Tensor b = device.alloc(a.shape(), DType::i32, MemoryTag::data);
  transfer(a, b, second);
  EXPECT_EQ(to_host(b, second).host<std::int32_t>().back(), (1 << 22) - 1);
  const Event end = first.record();
  end.wait_on_host();
  EXPECT_TRUE(end.is_reached());
}

}  // namespace
}  // namespace heddle
