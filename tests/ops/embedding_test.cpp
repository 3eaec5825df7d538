#include "ops/embedding.h"

#include "base/error.h"
#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

constexpr std::int64_t kVocabulary = 13;

Tensor some_ids(std::int64_t count) {
  std::vector<std::int32_t> list;
  for (std::int64_t i = 0; i < count; ++i) {
    list.push_back(static_cast<std::int32_t>(random_u64(5, static_cast<std::uint64_t>(i)) %
                                             static_cast<std::uint64_t>(kVocabulary)));
  }
  return ids(list);
}

TEST(Embedding, GathersAndAddsRows) {
  for (const DType dtype : kFloats) {
    for (const auto [tokens, width] : kSizes) {
      const Padded table(random_tensor({kVocabulary, width}, dtype, 1));
      const Tensor at = some_ids(tokens), before = random_tensor({tokens, width}, dtype, 2);
      std::vector<double> rows, sums = values(before);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < width; ++i) {
          rows.push_back(get(table.view, at.data<std::int32_t>()[t] * table.view.stride(0) + i));
          sums[static_cast<std::size_t>(t * width + i)] += rows.back();
        }
      }
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Padded y(before), sum(before);
        embedding_forward(at, table.view, y.view, stream);
        embedding_add(at, table.view, sum.view, stream);
        return {copy_of(y.view), copy_of(sum.view)};
      });
      EXPECT_EQ(values(got[0]), rows);
      expect_close(got[1], sums, 1e-6, 1e-15);
    }
  }
}

TEST(Embedding, BackwardAddsToSharedRowsInTheOrderOfTokens) {
  for (const DType dtype : kFloats) {
    for (const auto [tokens, width] : kSizes) {
      const Padded dy(random_tensor({tokens, width}, dtype, 1));
      const Tensor at = some_ids(tokens), before = random_tensor({kVocabulary, width}, dtype, 2);
      const Tensor want = copy_of(before);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < width; ++i) {
          const std::int64_t to = at.data<std::int32_t>()[t] * width + i;
          put(want, to, get(want, to) + get(dy.view, t * dy.view.stride(0) + i));
        }
      }
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Padded table(before);
        embedding_backward(at, dy.view, table.view, stream);
        return {copy_of(table.view)};
      });
      expect_same_bits(got[0], want);
    }
  }
}

TEST(Embedding, RefusesIdsOutsideTheTable) {
  Stream stream(1);
  const Tensor table = random_tensor({4, 3}, DType::f32, 1), y = empty({1, 3}, DType::f32);
  EXPECT_THROW(embedding_forward(ids({4}), table, y, stream), Error);
  EXPECT_THROW(embedding_add(ids({-1}), table, y, stream), Error);
  EXPECT_THROW(embedding_backward(ids({1 << 30}), y, table, stream), Error);
}

}  // namespace
}  // namespace heddle::ops
