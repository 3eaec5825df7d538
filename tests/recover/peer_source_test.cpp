#include "recover/peer_source.h"

#include <gtest/gtest.h>

#include <numeric>

#include "comm/threads/thread_world.h"
#include "tensor/device.h"
#include "tensor/transfer.h"

namespace heddle::recover {
namespace {

constexpr std::int64_t kRows = 6, kColumns = 4;

/// The element (row, column) of a matrix of a kind.
float value_at(std::string_view kind, std::int64_t row, std::int64_t column) {
  return static_cast<float>(100 * row + column) + (kind == kWeightsKind ? 0.0F : 0.5F);
}

/// A box of the matrix, with its values.
HeldBox box(Memory& memory, const std::string& kind, Shape begin, const Shape& extent) {
  HeldBox made{kind, "w", Shape{kRows, kColumns}, begin,
               memory.alloc(extent, DType::f32, MemoryTag::data)};
  const auto values = made.data.host<float>();
  for (std::int64_t i = 0; i < extent.count(); ++i) {
    values[static_cast<std::size_t>(i)] =
        value_at(kind, begin[0] + i / extent[1], begin[1] + i % extent[1]);
  }
  return made;
}

/// The same without values.
HeldBox wish(Memory& memory, const std::string& kind, const Shape& begin, const Shape& extent) {
  return {kind, "w", Shape{kRows, kColumns}, begin,
          memory.alloc(extent, DType::f32, MemoryTag::data)};
}

void expect_values(const PeerSource& source, Memory& memory, const HeldBox& wanted) {
  const Shape extent = wanted.data.shape();
  Shape end = wanted.begin;
  for (int dim = 0; dim < 2; ++dim) end.set(dim, end[dim] + extent[dim]);
  const Tensor out = memory.alloc(extent, DType::f32, MemoryTag::data);
  source.read(wanted.kind, "w", wanted.begin.sizes(), end.sizes(), out);
  for (std::int64_t i = 0; i < extent.count(); ++i) {
    EXPECT_EQ(
        out.host<float>()[static_cast<std::size_t>(i)],
        value_at(wanted.kind, wanted.begin[0] + i / extent[1], wanted.begin[1] + i % extent[1]));
  }
}

TEST(PeerSource, GivesBoxesThatLieAcrossThoseOfOthers) {
  run_ranks(4, [](World& world) {
    Memory memory;
    Stream stream(1);
    // Ranks 0 to 2 have two rows each; rank 3 has nothing and wants columns, others rows of peers.
    const int rank = world.rank();
    std::vector<HeldBox> own, wanted;
    for (const char* kind : {kWeightsKind, "exp_avg"}) {
      if (rank < 3) own.push_back(box(memory, kind, {2 * rank, 0}, {2, kColumns}));
      if (rank == 3) {
        wanted.push_back(wish(memory, kind, {0, 1}, {kRows, 2}));
      } else {
        wanted.push_back(wish(memory, kind, {1, 0}, {4, 3}));
      }
    }
    const PeerSource source(world, own, wanted, stream);
    EXPECT_TRUE(source.missing().empty());
    EXPECT_EQ(source.names(kWeightsKind), std::vector<std::string>{"w"});
    EXPECT_EQ(source.shape("exp_avg", "w"), (Shape{kRows, kColumns}));
    for (const HeldBox& each : wanted) expect_values(source, memory, each);
    EXPECT_EQ(source.received_bytes(),
              (rank == 3 ? 2 * kRows * 2 : 2 * (12 - (rank == 1 ? 6 : 3))) * 4);
  });
}

TEST(PeerSource, ReadsWhatARankHasItselfWithoutAMessage) {
  run_ranks(2, [](World& world) {
    Memory memory;
    Stream stream(1);
    const std::vector<HeldBox> own = {box(memory, kWeightsKind, {0, 0}, {kRows, kColumns})};
    const std::vector<HeldBox> wanted = {wish(memory, kWeightsKind, {1, 1}, {3, 2})};
    const PeerSource source(world, own, wanted, stream);
    EXPECT_EQ(source.received_bytes(), 0);
    expect_values(source, memory, wanted.front());
  });
}

TEST(PeerSource, NamesOnAllRanksWhatNobodyHas) {
  run_ranks(3, [](World& world) {
    Memory memory;
    Stream stream(1);
    std::vector<HeldBox> own, wanted;
    if (world.rank() == 0) own.push_back(box(memory, "exp_avg", {0, 0}, {5, kColumns}));
    if (world.rank() == 2) wanted.push_back(wish(memory, "exp_avg", {4, 0}, {2, kColumns}));
    const PeerSource source(world, own, wanted, stream);
    EXPECT_EQ(source.missing(), std::vector<std::string>{"exp_avg.w"});
  });
}

/// Of what each rank has of its own, a lost rank's is nowhere.
TEST(PeerSource, ReadsZerosOfWhatNobodyHasWhereThatMayBe) {
  run_ranks(2, [](World& world) {
    Memory memory;
    Stream stream(1);
    std::vector<HeldBox> own, wanted;
    if (world.rank() == 0) own.push_back(box(memory, "residual.0", {0, 0}, {5, kColumns}));
    if (world.rank() == 1) {
      wanted.push_back(wish(memory, "residual.0", {3, 0}, {3, kColumns}));
      wanted.push_back(wish(memory, "residual.1", {0, 0}, {kRows, kColumns}));
    }
    const PeerSource source(world, own, wanted, stream, PeerSource::Missing::is_zero);
    EXPECT_EQ(source.missing(), (std::vector<std::string>{"residual.0.w", "residual.1.w"}));
    if (world.rank() == 0) return;
    EXPECT_FALSE(source.shape("residual.1", "w"));
    expect_values(source, memory, wish(memory, "residual.0", {3, 0}, {2, kColumns}));
    const Tensor last = memory.alloc({1, kColumns}, DType::f32, MemoryTag::data);
    std::ranges::fill(last.host<float>(), 1.0F);
    source.read("residual.0", "w", Shape{5, 0}.sizes(), Shape{6, kColumns}.sizes(), last);
    for (const float value : last.host<float>()) EXPECT_EQ(value, 0.0F);
  });
}

/// Each rank has a part in a GPU's memory and wants what another has, there and on the host.
TEST(PeerSource, GivesBoxesOfGpus) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Device gpu{Device::Kind::cuda, 0};
  run_ranks(2, [&](World& world) {
    Memory host, memory(gpu);
    Stream stream(1, gpu);
    const Shape extent{kRows / 2, kColumns}, begin{kRows / 2 * world.rank(), 0};
    HeldBox own = box(host, kWeightsKind, begin, extent);
    own.data = to_device(own.data, memory, MemoryTag::data, stream);
    const std::vector<HeldBox> had = {own};
    const std::vector<HeldBox> wanted = {wish(memory, kWeightsKind, {0, 1}, {kRows, 2})};
    const PeerSource source(world, had, wanted, stream);
    expect_values(source, host, wanted[0]);
    const Tensor out = memory.alloc({kRows, 2}, DType::f32, MemoryTag::data);
    source.read(kWeightsKind, "w", Shape{0, 1}.sizes(), Shape{kRows, 3}.sizes(), out);
    const Tensor found = to_host(out, stream);
    for (std::int64_t i = 0; i < found.count(); ++i) {
      EXPECT_EQ(found.host<float>()[static_cast<std::size_t>(i)],
                value_at(kWeightsKind, i / 2, 1 + i % 2));
    }
  });
}

}  // namespace
}  // namespace heddle::recover
