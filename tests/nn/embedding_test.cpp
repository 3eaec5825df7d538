#include "nn/embedding.h"

#include <algorithm>

#include "nn/layer_testing.h"

namespace heddle {
namespace {

constexpr std::int64_t kVocab = 11, kWidth = 4, kTokens = kSequences * kSeqLen;
constexpr double kBefore = 0.25;  // what a head that shares the table has added

/// The gradient of `held` rows from `first` on, of a table of which others may have the rest.
std::vector<double> gradient(std::int64_t first, std::int64_t held,
                             std::optional<std::int64_t> padding) {
  Memory memory;
  Stream stream{1};
  const MicroBatch batch =
      micro_batch({.name = "embedding", .make = {}, .vocab = kVocab}, 3, memory);
  Ctx ctx{.stream = stream, .memory = memory, .batch = batch};
  auto table = parameter("t", {held, kWidth});
  table->value = uniform(table->shape, 1.0, 7, memory);
  table->grad = memory.zeros(table->shape, DType::f64, MemoryTag::gradients);
  table->clear_stale_grad(stream);
  std::ranges::fill(table->grad.host<double>(), kBefore);
  Embedding embedding(table, {.first = first, .are_all = held == kVocab}, {}, padding);
  Saved saved;
  embedding.forward({}, saved, ctx);
  embedding.backward_input(uniform({kTokens, kWidth}, 1.0, 5, memory), saved, ctx);
  embedding.backward_weight(saved, ctx);
  return values_of(table->grad);
}

std::vector<double> row_of(const std::vector<double>& table, std::int64_t row) {
  return {table.begin() + row * kWidth, table.begin() + (row + 1) * kWidth};
}

TEST(Embedding, ItsPaddingHasNoGradientOfItsOwn) {
  const std::vector<double> untouched(kWidth, kBefore), plain = gradient(0, kVocab, {});
  int learning = 0;
  for (std::int64_t padding = 0; padding < kVocab; ++padding) {
    if (row_of(plain, padding) != untouched) ++learning;
    std::vector<double> expected = plain;
    std::copy_n(untouched.begin(), kWidth, expected.begin() + padding * kWidth);
    EXPECT_EQ(gradient(0, kVocab, padding), expected) << padding;
  }
  EXPECT_GT(learning, 3) << "of the batch's tokens";
}

TEST(Embedding, ItsPaddingIsWithTheHolderOfItsRow) {
  constexpr std::int64_t kFirst = 4, kHeld = 5;
  const std::vector<double> whole = gradient(0, kVocab, 6), part = gradient(kFirst, kHeld, 6);
  for (std::int64_t row = 0; row < kHeld; ++row) {
    EXPECT_EQ(row_of(part, row), row_of(whole, kFirst + row)) << row;
  }
  for (const std::int64_t elsewhere : {0, 3, 9, 10}) {
    EXPECT_EQ(gradient(kFirst, kHeld, elsewhere), gradient(kFirst, kHeld, {})) << elsewhere;
  }
}

}  // namespace
}  // namespace heddle
