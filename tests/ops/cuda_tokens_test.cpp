// Operations on tokens, on a GPU: embedding, rotation, cross entropy.
#include <limits>

#include "ops/cuda_testing.h"
#include "ops/embedding.h"
#include "ops/rope.h"
#include "ops/softmax_xent.h"
#include "ops/split_vocabulary.h"

namespace heddle::ops {
namespace {

class CudaTokens : public OnGpu {
 protected:
  /// Ids below `rows`, of which a share is `often` and a share absent.
  static Tensor random_ids(std::int64_t count, std::int64_t rows, std::int32_t often) {
    std::vector<std::int32_t> list;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint64_t draw = random_u64(5, static_cast<std::uint64_t>(i));
      const auto id = static_cast<std::int32_t>(draw % static_cast<std::uint64_t>(rows));
      list.push_back(draw % 3 == 0 ? often : draw % 17 == 0 ? kAbsentRow : id);
    }
    return ids(list);
  }
};

TEST_F(CudaTokens, EmbeddingEqualsTheCpu) {
  for (const DType dtype : kGpuFloats) {
    for (const auto [tokens, rows, width] : {std::array<std::int64_t, 3>{1, 1, 1},
                                             {3, 5, 3},
                                             {127, 50, 129},
                                             {1000, 300, 768},
                                             {3000, 7, 64},
                                             {257, 3000, 1032}}) {
      SCOPED_TRACE(fmt::format("{} {} {} {}", name_of(dtype), tokens, rows, width));
      const Tensor host_ids = random_ids(tokens, rows, static_cast<std::int32_t>(rows / 2));
      const Tensor table = random({rows, width}, dtype, 1), y = empty({tokens, width}, DType::f64);
      const Tensor dtable = random({rows, width}, DType::f32, 2);
      const Tensor dev_ids = up(host_ids), dev_table = up(table, dtype);
      const Tensor dev_y = device_empty({tokens, width}, dtype),
                   dev_dtable = up(dtable, DType::f32);
      embedding_forward(host_ids, table, y, cpu());
      embedding_forward(dev_ids, dev_table, dev_y, gpu());
      expect_near(dev_y, y, 0.0, "rows");
      embedding_add(host_ids, table, y, cpu());
      embedding_add(dev_ids, dev_table, dev_y, gpu());
      expect_near(dev_y, y, 0.0, "twice the rows");
      embedding_backward(host_ids, y, dtable, cpu());
      embedding_backward(dev_ids, dev_y, dev_dtable, gpu());
      expect_near(dev_dtable, dtable, 1e-4, "dtable");
      const Tensor again = up(random({rows, width}, DType::f32, 2), DType::f32);
      embedding_backward(dev_ids, dev_y, again, gpu());
      expect_same_bits(down(again), down(dev_dtable));
    }
  }
}

TEST_F(CudaTokens, AnIdMayFillManyChunksOrNone) {
  std::vector<std::int32_t> list(1000, 3);
  for (const std::int32_t filler : {3, kAbsentRow}) {
    std::fill(list.begin(), list.end(), filler);
    list.front() = 4;
    list.back() = 2;
    const Tensor dy = random({1000, 8}, DType::f32, 1), dtable = random({5, 8}, DType::f32, 2);
    const Tensor dev_dtable = up(dtable, DType::f32);
    embedding_backward(ids(list), dy, dtable, cpu());
    embedding_backward(up(ids(list)), up(dy, DType::f32), dev_dtable, gpu());
    expect_near(dev_dtable, dtable, 1e-4, "dtable");
  }
}

TEST_F(CudaTokens, HeldRowsEqualTheCpu) {
  const Tensor some = random_ids(300, 1000, 20), rows = empty({300}, DType::i32);
  const Tensor dev_rows = device_empty({300}, DType::i32);
  held_rows(some, 10, 400, rows, cpu());
  held_rows(up(some), 10, 400, dev_rows, gpu());
  expect_same_bits(down(dev_rows), rows);
}

TEST_F(CudaTokens, RopeEqualsTheCpu) {
  for (const DType dtype : kGpuFloats) {
    for (const auto [S, H, K, R] : {std::array<std::int64_t, 4>{1, 1, 2, 1},
                                    {3, 2, 7, 3},
                                    {129, 3, 64, 32},
                                    {127, 4, 80, 16},
                                    {5, 2, 128, 64}}) {
      SCOPED_TRACE(fmt::format("{} {} {} {} {}", name_of(dtype), S, H, K, R));
      const Tensor fused = random({2, S, 2 * H * K}, dtype, 1);
      const Tensor cos = random({2 * S, R}, DType::f32, 2, 1.0);
      const Tensor sin = random({2 * S, R}, DType::f32, 3, 1.0);
      std::vector<std::int32_t> list;
      for (std::int64_t i = 0; i < 2 * S; ++i)
        list.push_back(static_cast<std::int32_t>(2 * S - 1 - i));
      const Tensor positions = ids(list).view({2, S});
      const Tensor dev_fused = up(fused, dtype), dev_positions = up(positions);
      const Tensor dev_cos = up(cos, DType::f32), dev_sin = up(sin, DType::f32);
      const auto k_of = [&, S = S, H = H, K = K](const Tensor& t) {
        return t.slice(2, H * K, 2 * H * K).view({2, S, H, K});
      };
      for (const RopePairs pairs : {RopePairs::halves, RopePairs::neighbours}) {
        for (const bool inverse : {false, true}) {
          rope(k_of(fused), positions, cos, sin, pairs, inverse, cpu());
          rope(k_of(dev_fused), dev_positions, dev_cos, dev_sin, pairs, inverse, gpu());
          expect_near(dev_fused, fused, tolerance_of(dtype, 1e-6), "rotated");
          copy(down(dev_fused), fused, cpu());  // the next rotation starts from the rounded values
        }
      }
    }
  }
}

struct Vocabulary {
  std::int64_t tokens, words;
};
const Vocabulary kVocabularies[] = {{1, 1},    {3, 3},     {5, 127},   {7, 129},
                                    {4, 4096}, {3, 50257}, {2, 128256}};

/// Also more rows than a GPU takes at a time, and longer ones than it holds.
std::vector<Vocabulary> vocabularies_and_more() {
  std::vector<Vocabulary> all(std::begin(kVocabularies), std::end(kVocabularies));
  all.insert(all.end(), {{900, 1003}, {600, 9000}, {300, 50304}, {140, 128256}, {3, 620003}});
  return all;
}

TEST_F(CudaTokens, CrossEntropyEqualsTheCpu) {
  for (const DType dtype : kGpuFloats) {
    for (const auto [tokens, words] : vocabularies_and_more()) {
      SCOPED_TRACE(fmt::format("{} {}x{}", name_of(dtype), tokens, words));
      const Tensor logits = random({tokens, words}, dtype, 1, 8.0);
      std::vector<std::int32_t> list;
      for (std::int64_t t = 0; t < tokens; ++t) {
        list.push_back(t % 7 == 1 ? kIgnoreTarget
                                  : static_cast<std::int32_t>((t + 1) * words / (tokens + 1)));
      }
      const Tensor targets = ids(list), dev_targets = up(targets);
      const Tensor loss = empty({tokens}, DType::f64), gradient = empty(logits.shape(), DType::f64);
      copy(logits, gradient, cpu());
      cross_entropy_forward_backward(gradient, targets, 3.0, loss, cpu());
      for (const Lie lie : kLies) {
        const Tensor dev_loss = device_empty({tokens}, DType::f64);
        const Lying dev_logits(logits, dtype, lie, gpu());
        cross_entropy_forward(dev_logits.view, dev_targets, dev_loss, gpu());
        expect_near(dev_loss, loss, 3e-6, "loss");
        cross_entropy_forward_backward(dev_logits.view, dev_targets, 3.0, dev_loss, gpu());
        expect_near(dev_loss, loss, 3e-6, "loss with gradient");
        expect_near(dev_logits.view, gradient, dtype == DType::f32 ? 3e-6 : 1.3e-2, "gradient");
      }
    }
  }
}

TEST_F(CudaTokens, CrossEntropyShowsNotANumber) {
  const Tensor logits = random({2, 700}, DType::f32, 1);
  put(logits, 650, std::numeric_limits<double>::quiet_NaN());
  const Tensor dev = up(logits, DType::f32), loss = device_empty({2}, DType::f64);
  cross_entropy_forward_backward(dev, up(ids({1, 1})), 1.0, loss, gpu());
  EXPECT_TRUE(std::isnan(values(down(loss))[0]));
  EXPECT_TRUE(std::isfinite(values(down(loss))[1]));
}

TEST_F(CudaTokens, ASharedVocabularyEqualsTheCpu) {
  for (const DType dtype : kGpuFloats) {
    for (const auto [tokens, words] : kVocabularies) {
      for (const Lie lie : kLies) {
        SCOPED_TRACE(fmt::format("{} {}x{}", name_of(dtype), tokens, words));
        const std::int64_t first = 10, valid = words - words / 3;
        const Tensor logits = random({tokens, words}, dtype, 1, 8.0);
        std::vector<std::int32_t> list;
        for (std::int64_t t = 0; t < tokens; ++t) {
          list.push_back(t == 1 ? kIgnoreTarget
                                : static_cast<std::int32_t>(first - 1 + t * valid / 2));
        }
        const Tensor targets = ids(list), dev_targets = up(targets);
        const auto statistic = [&, tokens = tokens] { return empty({tokens}, DType::f64); };
        const auto on_device = [&, tokens = tokens] { return device_empty({tokens}, DType::f32); };
        const Tensor max = statistic(), sum = statistic(), chosen = statistic(), loss = statistic();
        const Tensor dev_max = on_device(), dev_sum = on_device(), dev_chosen = on_device();
        const Tensor dev_loss = device_empty({tokens}, DType::f64);
        const Lying dev(logits, dtype, lie, gpu());
        row_max(logits, valid, max, cpu());
        row_max(dev.view, valid, dev_max, gpu());
        expect_near(dev_max, max, 0.0, "max");
        row_exponentials(logits, valid, targets, first, max, sum, chosen, cpu());
        row_exponentials(dev.view, valid, dev_targets, first, dev_max, dev_sum, dev_chosen, gpu());
        expect_near(dev_sum, sum, 5e-6, "sum");
        expect_near(dev_chosen, chosen, 1e-6, "chosen");
        expect_near(dev.view, logits, tolerance_of(dtype, 3e-6), "exponentials");
        row_loss(sum, chosen, targets, loss, cpu());
        row_loss(dev_sum, dev_chosen, dev_targets, dev_loss, gpu());
        expect_near(dev_loss, loss, 1e-5, "loss");
        softmax_gradient(logits, targets, first, sum, 2.0, cpu());
        softmax_gradient(dev.view, dev_targets, first, dev_sum, 2.0, gpu());
        expect_near(dev.view, logits, dtype == DType::f32 ? 5e-6 : 1.3e-2, "gradient");
      }
    }
  }
}

TEST_F(CudaTokens, ASplitVocabularyEqualsTheCpu) {
  const std::int64_t holders = 3, tokens = 129, width = 72;
  Tensor statistics = random({holders, 3, tokens}, DType::f32, 1);
  for (double& value : statistics.host<double>()) value = 3.0 + value;
  statistics = round_trip(statistics, DType::f32);
  std::vector<std::int32_t> list;
  for (std::int64_t t = 0; t < tokens; ++t) {
    list.push_back(t % 5 == 0 ? kIgnoreTarget : static_cast<std::int32_t>(t % 30));
  }
  const Tensor divisor = empty({tokens}, DType::f64), loss = empty({tokens}, DType::f64);
  const Tensor dev_divisor = device_empty({tokens}, DType::f32);
  const Tensor dev_loss = device_empty({tokens}, DType::f64);
  merge_row_statistics(statistics, ids(list), 10, 1, divisor, loss, cpu());
  merge_row_statistics(up(statistics, DType::f32), up(ids(list)), 10, 1, dev_divisor, dev_loss,
                       gpu());
  expect_near(dev_loss, loss, 1e-12, "loss");
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
    if (list[t] == kIgnoreTarget) {
      EXPECT_EQ(values(down(dev_divisor))[t], values(divisor)[t]);
    } else {
      EXPECT_NEAR(values(down(dev_divisor))[t] / values(divisor)[t], 1.0, 1e-6);
    }
  }
  for (const DType dtype : kGpuFloats) {
    const Tensor y = random({tokens, width}, dtype, 2), dev_y = up(y, dtype);
    divide_rows(y, down(dev_divisor), cpu());
    divide_rows(dev_y, dev_divisor, gpu());
    expect_near(dev_y, y, tolerance_of(dtype, 1e-6), "divided");
  }
}

}  // namespace
}  // namespace heddle::ops
