#include "comm/self/self_communicator.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace heddle {
namespace {

class SelfGroup : public testing::Test {
 protected:
  Tensor floats(const Shape& shape, float first) {
    const Tensor tensor = memory_.alloc(shape, DType::f32, MemoryTag::communication);
    for (float& value : tensor.host<float>()) value = first++;
    return tensor;
  }
  static std::vector<float> values(const Tensor& tensor) {
    return {tensor.host<float>().begin(), tensor.host<float>().end()};
  }
  const CommCounts::Entry& count(CommOp op) const {
    return comm_.counts().by_op[static_cast<std::size_t>(op)];
  }

  Memory memory_;
  Stream stream_{1};
  SelfCommunicator comm_;
};

TEST_F(SelfGroup, HasOneRank) {
  EXPECT_EQ(comm_.rank(), 0);
  EXPECT_EQ(comm_.size(), 1);
  EXPECT_EQ(comm_.split(3, 7)->size(), 1);
}

TEST_F(SelfGroup, CollectivesAreTheIdentity) {
  const Tensor data = floats({4, 2}, 1), other = floats({8}, 100);
  const auto want = values(data);
  comm_.all_reduce(data, ReduceOp::sum, stream_).wait(stream_);
  comm_.all_reduce(data, ReduceOp::max, stream_).wait(stream_);
  EXPECT_EQ(values(data), want);
  comm_.all_gather(data, other, stream_).wait(stream_);
  EXPECT_EQ(values(other), want);
  const Tensor shard = floats({8}, 50);
  comm_.reduce_scatter(data, shard, ReduceOp::sum, stream_).wait(stream_);
  EXPECT_EQ(values(shard), want);
  const Tensor received = floats({4, 2}, 7);
  const std::int64_t rows[] = {4};
  comm_.all_to_all(data, received, rows, rows, stream_).wait(stream_);
  EXPECT_EQ(values(received), want);
}

TEST_F(SelfGroup, WorksInPlace) {
  const Tensor data = floats({6}, 1);
  const auto want = values(data);
  comm_.all_gather(data, data, stream_).wait(stream_);
  comm_.reduce_scatter(data, data, ReduceOp::sum, stream_).wait(stream_);
  EXPECT_EQ(values(data), want);
}

TEST_F(SelfGroup, CountsCallsAndPayload) {
  const Tensor data = floats({4, 2}, 1);
  comm_.all_reduce(data, ReduceOp::sum, stream_).wait(stream_);
  comm_.all_reduce(data, ReduceOp::sum, stream_).wait(stream_);
  comm_.barrier();
  EXPECT_EQ(count(CommOp::all_reduce).calls, 2);
  EXPECT_EQ(count(CommOp::all_reduce).payload_bytes, 2 * 32);
  EXPECT_EQ(count(CommOp::barrier).calls, 1);
  EXPECT_EQ(count(CommOp::all_gather).calls, 0);
}

TEST_F(SelfGroup, RefusesSizesThatDoNotFitAndDoesNotCountThem) {
  const Tensor eight = floats({8}, 1), seven = floats({7}, 1);
  EXPECT_THROW(static_cast<void>(comm_.all_gather(eight, seven, stream_)), Error);
  EXPECT_THROW(static_cast<void>(comm_.reduce_scatter(seven, eight, ReduceOp::sum, stream_)),
               Error);
  const Tensor wide = memory_.alloc({8}, DType::f64, MemoryTag::communication);
  EXPECT_THROW(static_cast<void>(comm_.all_gather(eight, wide, stream_)), Error);
  for (const auto& entry : comm_.counts().by_op) EXPECT_EQ(entry.calls, 0);
}

TEST_F(SelfGroup, RefusesAnExchangeOfRowsThatDoesNotAddUp) {
  const Tensor four = floats({4, 2}, 1), three = floats({3, 2}, 1);
  const std::int64_t four_rows[] = {4}, three_rows[] = {3}, split_rows[] = {3, 1};
  const auto exchange = [&](const Tensor& send, const Tensor& recv,
                            std::span<const std::int64_t> send_rows,
                            std::span<const std::int64_t> recv_rows) {
    static_cast<void>(comm_.all_to_all(send, recv, send_rows, recv_rows, stream_));
  };
  EXPECT_THROW(exchange(four, four, three_rows, four_rows), Error);
  EXPECT_THROW(exchange(four, three, four_rows, three_rows), Error) << "would write past the end";
  EXPECT_THROW(exchange(four, four, split_rows, split_rows), Error) << "rows for two ranks";
  EXPECT_THROW(exchange(four, floats({4, 1}, 1), four_rows, four_rows), Error) << "narrower rows";
  EXPECT_EQ(count(CommOp::all_to_all).calls, 0);
}

TEST_F(SelfGroup, HasNoPeer) {
  const Tensor data = floats({1}, 1);
  for (const int peer : {-1, 0, 1}) {
    EXPECT_THROW(static_cast<void>(comm_.send(data, peer, stream_)), Error);
    EXPECT_THROW(static_cast<void>(comm_.recv(data, peer, stream_)), Error);
  }
}

TEST(CommOps, HaveNames) {
  EXPECT_EQ(name_of(CommOp::all_reduce), "all_reduce");
  EXPECT_EQ(name_of(CommOp::barrier), "barrier");
}

}  // namespace
}  // namespace heddle
