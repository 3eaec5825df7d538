#include "engine/block_meter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "comm/threads/thread_world.h"
#include "engine/shared_blocks.h"

namespace heddle {
namespace {

/// Of a device that has come to no point until it is said to have done its work.
class LateClock final : public StreamClock {
 public:
  struct Device {
    double given = 0.0;     // seconds of work so far
    double per_mark = 0.0;  // what more there is of it behind each point
    bool is_done = false;
  };
  explicit LateClock(Device& device) : device_(device) {}

  std::size_t mark() override {
    points_.push_back(device_.given);
    device_.given += device_.per_mark;
    return points_.size() - 1;
  }
  double seconds(std::size_t from, std::size_t to) const override {
    EXPECT_TRUE(device_.is_done) << "asked before the device is known to have come there";
    return points_.at(to) - points_.at(from);
  }
  void forget() override { points_.clear(); }
  bool is_behind() const override { return true; }

 private:
  Device& device_;
  std::vector<double> points_;
};

class BlockMeterOfADevice : public ::testing::Test {
 protected:
  void work(double seconds) { device_.given += seconds; }

  LateClock::Device device_;
  BlockMeter meter_{std::make_unique<LateClock>(device_)};
};

TEST_F(BlockMeterOfADevice, TakesWaitsInPassesOff) {
  meter_.begin_step();
  EXPECT_EQ(meter_.seconds(), 0.0);
  for (int microbatch = 0; microbatch < 4; ++microbatch) {
    work(1000);  // between passes
    meter_.begin_wait();
    work(500);
    meter_.end_wait();
    meter_.begin_pass();
    work(2);
    meter_.begin_wait();
    work(30);
    meter_.begin_wait();  // a wait within a wait
    work(70);
    meter_.end_wait();
    work(5);
    meter_.end_wait();
    work(1);
    meter_.end_pass(true);
    meter_.begin_pass();
    work(6);
    meter_.end_pass(false);
  }
  device_.is_done = true;
  EXPECT_EQ(meter_.seconds(), 9.0);
}

TEST_F(BlockMeterOfADevice, ForgetsAStepThatWasInterrupted) {
  meter_.begin_step();
  meter_.begin_pass();
  work(2);
  meter_.begin_wait();
  meter_.begin_wait();
  meter_.begin_step();
  meter_.begin_pass();
  work(3);
  meter_.begin_wait();
  work(10);
  meter_.end_wait();
  meter_.end_pass(true);
  device_.is_done = true;
  EXPECT_EQ(meter_.seconds(), 3.0);
}

using Before = std::function<void(int rank, SharedBlocks& blocks, int step)>;

/// What rank 0 is told in each of some steps.
std::vector<std::vector<double>> told_in(int steps, const Before& before) {
  std::vector<std::vector<double>> told;
  run_ranks(2, [&](World& world) {
    SharedBlocks blocks(world, {});
    for (int step = 1; step <= steps; ++step) {
      before(world.rank(), blocks, step);
      const std::vector<double> seconds = blocks.block_seconds();
      if (world.rank() == 0) told.push_back(seconds);
    }
  });
  return told;
}

TEST(BlockSeconds, ARankThatComesLateToExchangesIsSlowAndTheOneThatWaitsIsNot) {
  const auto told = told_in(2, [](int rank, SharedBlocks& blocks, int step) {
    if (step == 1) blocks.step().time_blocks(make_stream_clock(blocks.stream()));
    if (step == 2 && rank == 1) blocks.be_late(std::chrono::milliseconds(50));
  });
  ASSERT_EQ(told[1].size(), 2u);
  EXPECT_GT(told[0][0], 0.0);
  EXPECT_GT(told[0][1], 0.0);
  EXPECT_GE(told[1][1], 0.1);  // at least two exchanges
  EXPECT_LT(told[1][0], 0.5 * told[1][1]);
}

TEST(BlockSeconds, OfADeviceAreToldOneStepLater) {
  LateClock::Device devices[2];
  const auto told = told_in(4, [&](int rank, SharedBlocks& blocks, int step) {
    LateClock::Device& device = devices[rank];
    device = {.per_mark = (rank + 1) * std::pow(2.0, step)};
    if (step > 1) return;
    blocks.step().time_blocks(std::make_unique<LateClock>(device));
    blocks.step().before_update([&device] { device.is_done = true; });
  });
  EXPECT_EQ(told[0], (std::vector{0.0, 0.0}));
  const double first = told[1][0];
  EXPECT_GT(first, 0.0);
  EXPECT_EQ(told[1], (std::vector{first, 2 * first}));
  EXPECT_EQ(told[2], (std::vector{2 * first, 4 * first}));
  EXPECT_EQ(told[3], (std::vector{4 * first, 8 * first}));
}

TEST(BlockSeconds, OfAStreamThatComputesNothingAreNotTaken) {
  const ModelSpec spec = reference_spec("llama");
  Memory memory(Memory::Mode::dry);
  Stream stream = Stream::dry();
  Model model(spec, {.positions = 32}, ParamStore::Purpose::training, memory);
  const auto optimizer = make_optimizer(AdamWConfig(), model.store());
  TrainStep step(model, *optimizer, stream, memory);
  LateClock::Device device{.per_mark = 1.0};
  step.time_blocks(std::make_unique<LateClock>(device));
  Memory host;
  const Tensor ids = random_ids(1, 8, spec.vocab, 1, host);
  step.run(std::vector<MicroBatch>(1, plain_batch(ids, ids, 0, host)), {.step = 1}, 1.0);
  EXPECT_EQ(device.given, 0.0);
}

}  // namespace
}  // namespace heddle
