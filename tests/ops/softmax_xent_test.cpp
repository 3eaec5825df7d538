#include "ops/softmax_xent.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace heddle {
namespace {

struct Problem {
  Memory memory;
  Tensor logits, targets, loss;

  Problem(std::int64_t rows, std::int64_t vocabulary, DType dtype)
      : logits(memory.alloc({rows, vocabulary}, dtype, MemoryTag::workspace)),
        targets(memory.alloc({rows}, DType::i32, MemoryTag::workspace)),
        loss(memory.alloc({rows}, DType::f64, MemoryTag::workspace)) {
    auto all = targets.host<std::int32_t>();
    for (std::size_t r = 0; r < all.size(); ++r) {
      all[r] = static_cast<std::int32_t>(random_u64(5, r) % static_cast<std::uint64_t>(vocabulary));
    }
  }
  template <class T>
  void fill(double deviation) {
    std::uint64_t index = 0;
    for (T& value : logits.host<T>()) {
      value = static_cast<T>(deviation * random_normal(1, index++));
    }
  }
};

/// Loss and gradient of one row by the definition.
template <class T>
double expected_row(const T* row, std::int64_t n, std::int32_t target, double grad_scale,
                    std::vector<double>& gradient) {
  gradient.assign(static_cast<std::size_t>(n), 0);
  if (target == ops::kIgnoreTarget) return 0;
  const auto max = static_cast<double>(*std::max_element(row, row + n));
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(row[i]) - max);
  for (std::int64_t i = 0; i < n; ++i) {
    gradient[static_cast<std::size_t>(i)] =
        (std::exp(static_cast<double>(row[i]) - max) / sum - (i == target ? 1 : 0)) * grad_scale;
  }
  return max + std::log(sum) - static_cast<double>(row[target]);
}

template <class T>
void check(Problem& p, int threads, double tolerance) {
  const std::int64_t rows = p.logits.size(0), n = p.logits.size(1), stride = p.logits.stride(0);
  const double grad_scale = 0.25;
  std::vector<double> losses, gradients, row;
  for (std::int64_t r = 0; r < rows; ++r) {
    losses.push_back(expected_row(p.logits.data<T>() + r * stride, n,
                                  p.targets.host<std::int32_t>()[static_cast<std::size_t>(r)],
                                  grad_scale, row));
    gradients.insert(gradients.end(), row.begin(), row.end());
  }
  Stream stream(threads);
  const auto expect_losses = [&] {
    for (std::size_t r = 0; r < losses.size(); ++r) {
      const double slack = tolerance * std::max(1.0, std::abs(losses[r]));
      EXPECT_NEAR(p.loss.host<double>()[r], losses[r], slack) << "row " << r;
    }
  };
  ops::cross_entropy_forward(p.logits, p.targets, p.loss, stream);
  expect_losses();
  ops::cross_entropy_forward_backward(p.logits, p.targets, grad_scale, p.loss, stream);
  expect_losses();
  double worst = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto found = static_cast<double>(p.logits.data<T>()[r * stride + i]);
      ASSERT_TRUE(std::isfinite(found));
      worst = std::max(worst, std::abs(found - gradients[static_cast<std::size_t>(r * n + i)]));
    }
  }
  EXPECT_LT(worst, tolerance * grad_scale);
}

TEST(CrossEntropy, LossAndGradientEqualTheDefinition) {
  for (const std::int64_t n : {1, 3, 127, 129, 4097, 32000}) {
    for (const std::int64_t rows : {1, 3, 5}) {
      SCOPED_TRACE(n);
      Problem p(rows, n, DType::f32);
      p.fill<float>(3);
      check<float>(p, 2, 5e-7);
      Problem p64(rows, n, DType::f64);
      p64.fill<double>(3);
      check<double>(p64, 2, 1e-14);
    }
  }
}

TEST(CrossEntropy, IgnoredRowsHaveNoLossAndNoGradient) {
  Problem p(4, 129, DType::f32);
  p.fill<float>(1);
  p.targets.host<std::int32_t>()[1] = ops::kIgnoreTarget;
  p.targets.host<std::int32_t>()[3] = ops::kIgnoreTarget;
  check<float>(p, 1, 5e-7);
  EXPECT_EQ(p.loss.host<double>()[1], 0);
  for (std::size_t i = 129; i < 258; ++i) EXPECT_EQ(p.logits.host<float>()[i], 0.0F);
}

TEST(CrossEntropy, IgnoredRowsMayHoldNotANumber) {
  Problem p(2, 5, DType::f32);
  p.fill<float>(1);
  p.logits.host<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  p.targets.host<std::int32_t>()[0] = ops::kIgnoreTarget;
  Stream stream(1);
  ops::cross_entropy_forward_backward(p.logits, p.targets, 1, p.loss, stream);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(p.logits.host<float>()[i], 0.0F);
}

TEST(CrossEntropy, StandsLargeLogits) {
  Problem p(3, 1000, DType::f32);
  p.fill<float>(1e4);
  p.logits.host<float>()[5] = 3e38F;
  p.logits.host<float>()[7] = -3e38F;
  check<float>(p, 1, 5e-7);
}

TEST(CrossEntropy, ShowsNotANumberInTheLoss) {
  Problem p(2, 1000, DType::f32);
  p.fill<float>(1);
  p.logits.host<float>()[700] = std::numeric_limits<float>::quiet_NaN();
  Stream stream(1);
  ops::cross_entropy_forward(p.logits, p.targets, p.loss, stream);
  EXPECT_TRUE(std::isnan(p.loss.host<double>()[0]));
  EXPECT_TRUE(std::isfinite(p.loss.host<double>()[1]));
}

TEST(CrossEntropy, TakesStridedRowsAndLeavesTheGapsAlone) {
  Problem p(5, 127, DType::f32);
  const Tensor wide = p.memory.alloc({5, 130}, DType::f32, MemoryTag::workspace);
  p.logits = wide;
  p.fill<float>(1);
  const float before = wide.host<float>()[129];
  p.logits = wide.slice(1, 1, 128);
  check<float>(p, 2, 5e-7);
  EXPECT_EQ(wide.host<float>()[129], before);
}

TEST(CrossEntropy, IsTheSameToTheBitOnAnyNumberOfThreads) {
  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<double>> losses;
  for (const int threads : {1, 2, 4}) {
    Problem p(33, 5001, DType::f32);
    p.fill<float>(2);
    Stream stream(threads);
    ops::cross_entropy_forward_backward(p.logits, p.targets, 0.1, p.loss, stream);
    gradients.emplace_back(p.logits.host<float>().begin(), p.logits.host<float>().end());
    losses.emplace_back(p.loss.host<double>().begin(), p.loss.host<double>().end());
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(gradients[0], gradients[2]);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

TEST(CrossEntropy, RefusesTargetsOutsideTheVocabulary) {
  Problem p(2, 10, DType::f32);
  p.fill<float>(1);
  Stream stream(1);
  for (const std::int32_t bad : {-1, 10}) {
    p.targets.host<std::int32_t>()[1] = bad;
    EXPECT_THROW(ops::cross_entropy_forward(p.logits, p.targets, p.loss, stream), Error);
  }
}

}  // namespace
}  // namespace heddle
