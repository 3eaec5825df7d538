#include "ops/embedding.h"

#include <algorithm>

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

TEST(Embedding, RowsThatAreElsewhereReadAsZerosAndTakeNoGradient) {
  for (const DType dtype : kFloats) {
    for (const auto [tokens, width] : kSizes) {
      const Tensor table = random_tensor({kVocabulary, width}, dtype, 1);
      const Tensor dy = random_tensor({tokens, width}, dtype, 2);
      // Ids, and the same with every third one absent; the gradient of those is then zero.
      const Tensor all = some_ids(tokens), some = some_ids(tokens), some_dy = copy_of(dy);
      for (std::int64_t t = 0; t < tokens; t += 3) {
        some.data<std::int32_t>()[t] = kAbsentRow;
        for (std::int64_t i = 0; i < width; ++i) put(some_dy, t * width + i, 0.0);
      }
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Tensor whole = copy_of(dy), y = copy_of(dy), sum = copy_of(dy);
        const Tensor dtable = copy_of(table), want_dtable = copy_of(table);
        embedding_forward(all, table, whole, stream);
        embedding_forward(some, table, y, stream);
        embedding_add(some, table, sum, stream);
        embedding_backward(some, dy, dtable, stream);
        embedding_backward(all, some_dy, want_dtable, stream);
        return {whole, y, sum, dtable, want_dtable};
      });
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < width; ++i) {
          const std::int64_t at = t * width + i;
          EXPECT_EQ(get(got[1], at), t % 3 == 0 ? 0.0 : get(got[0], at));
          if (t % 3 == 0) {
            EXPECT_EQ(get(got[2], at), get(dy, at));
          }
        }
      }
      expect_close(got[3], values(got[4]), 1e-6, 1e-15);
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

TEST(HeldRows, AreCountedFromTheFirstAndOthersAreAbsent) {
  Stream stream(1);
  const Tensor rows = empty({4}, DType::i32);
  held_rows(ids({9, 10, 14, 15}), 10, 5, rows, stream);
  const std::vector<std::int32_t> want{kAbsentRow, 0, 4, kAbsentRow};
  EXPECT_TRUE(std::ranges::equal(rows.host<std::int32_t>(), want));
}

}  // namespace
}  // namespace heddle::ops
