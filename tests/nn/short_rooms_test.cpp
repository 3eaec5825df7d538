#include "nn/experts/short_rooms.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

constexpr std::int64_t kTokens = 4096;

struct RoomsCase {
  std::int64_t slots, width, inside;
};

/// Takes what each place of a layer holds at once, forward and backward.
MemoryStats stats_of(const RoomsCase& of) {
  SCOPED_TRACE(testing::Message() << of.slots << " of " << of.inside << " on " << of.width);
  const auto& [K, D, F] = of;
  const std::int64_t R = kTokens * K;
  const ShortRooms rooms(kTokens, K, D, F);
  Memory memory(Memory::Mode::dry);
  Stream stream = Stream::dry();
  const MicroBatch batch;
  Ctx ctx{.stream = stream, .memory = memory, .batch = batch};
  const DType dtype = DType::bf16;
  {
    const Tensor insides = rooms.insides(R, dtype, ctx);
    EXPECT_EQ(insides.shape(), (Shape{R, F}));
    EXPECT_EQ(rooms.rows(rooms.beside_all().rows, D, dtype, ctx).size(1), D);
    EXPECT_EQ(rooms.rows(R, rooms.beside_all().columns, dtype, ctx).size(0), R);
  }
  {
    const Tensor rows = rooms.rows(rooms.beside_own().rows, D, dtype, ctx);
    const Tensor insides = rooms.insides(rooms.beside_own().rows, dtype, ctx);
    EXPECT_EQ(insides.size(0), rows.size(0));
  }
  EXPECT_EQ(rooms.rows(R, rooms.beside_own().columns, dtype, ctx).size(0), R);
  return memory.stats();
}

TEST(ShortRooms, HoldWhatIsThereAtOnceInTwoBlocks) {
  for (const RoomsCase& of : {RoomsCase{1, 2048, 8192},
                              {2, 2048, 4096},
                              {4, 2048, 2048},
                              {8, 2048, 1024},
                              {3, 2048, 2730},
                              {5, 2048, 1640},
                              {6, 2048, 1408},
                              {8, 7168, 2048},
                              {8, 2048, 768},
                              {16, 1024, 128},
                              {32, 2880, 96},
                              {2, 4096, 14336}}) {
    const MemoryStats stats = stats_of(of);
    const std::int64_t rows = std::min<std::int64_t>(of.slots, 2) * of.width,
                       both = 2 * kTokens * (of.slots * of.inside + rows);
    EXPECT_EQ(stats.reserved, stats.peak);
    // Parts of a row may be a little larger than they must.
    EXPECT_LE(stats.peak, static_cast<std::size_t>(both + both / 16));
  }
}

TEST(ShortRooms, HoldRowsThatAreTooShortToCut) {
  for (const RoomsCase& of : {RoomsCase{8, 96, 24}, {6, 65, 7}, {4, 16, 2}, {3, 1, 1}}) {
    stats_of(of);
  }
}

TEST(ShortRooms, HoldAllOfTwoExpertsATokenAndOfFewTokens) {
  EXPECT_FALSE(ShortRooms(kTokens, 1, 2048, 8192).are_needed());
  EXPECT_FALSE(ShortRooms(kTokens, 2, 2048, 1024).are_needed());
  EXPECT_FALSE(ShortRooms(512, 8, 2048, 1024).are_needed());
  EXPECT_FALSE(ShortRooms(0, 8, 2048, 1024).are_needed());
  EXPECT_TRUE(ShortRooms(kTokens, 3, 2048, 1024).are_needed());
}

/// OLMoE's: a stretch has the rows of two experts a token, or of four where only its own insides
/// are there.
TEST(ShortRooms, CutNoMoreThanTheyMust) {
  const ShortRooms rooms(kTokens, 8, 2048, 1024);
  EXPECT_EQ(rooms.beside_all().rows, 2 * kTokens);
  EXPECT_EQ(rooms.beside_all().columns, 512);
  EXPECT_EQ(rooms.beside_own().rows, 4 * kTokens);
  EXPECT_EQ(rooms.beside_own().columns, 1024);
}

/// What a layer behind keeps of its insides may lie there later; it has to be as much as there is
/// more than rows of two experts a token.
TEST(ShortRooms, CutNothingWhereALayerBehindKeepsAsMuch) {
  const ShortRooms rooms(kTokens, 8, 2048, 1024, true), wide(kTokens, 8, 7168, 2048, true);
  EXPECT_EQ(rooms.beside_all().rows, 8 * kTokens);
  EXPECT_EQ(rooms.beside_own().rows, 8 * kTokens);
  EXPECT_EQ(rooms.beside_all().columns, 2048);
  EXPECT_TRUE(rooms.are_needed());
  EXPECT_EQ(wide.beside_all().rows, ShortRooms(kTokens, 8, 7168, 2048).beside_all().rows);
}

}  // namespace
}  // namespace heddle
