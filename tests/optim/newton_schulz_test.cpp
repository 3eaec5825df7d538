#include "optim/newton_schulz.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"

namespace heddle {
namespace {

using Rows = std::vector<std::vector<double>>;

Rows product(const Rows& a, const Rows& b) {
  Rows c(a.size(), std::vector<double>(b[0].size(), 0.0));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < b.size(); ++k) {
      for (std::size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

Rows transposed(const Rows& a) {
  Rows t(a[0].size(), std::vector<double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}

/// As published: X <- a X + b (X X^T) X + c (X X^T)^2 X, of X with more columns than rows.
Rows published(Rows x, int steps) {
  if (x.size() > x[0].size()) return transposed(published(transposed(x), steps));
  double squares = 0.0;
  for (const auto& row : x) {
    for (const double value : row) squares += value * value;
  }
  for (auto& row : x) {
    for (double& value : row) value /= std::sqrt(squares);
  }
  for (int step = 0; step < steps; ++step) {
    const Rows gram = product(x, transposed(x)), once = product(gram, x),
               twice = product(gram, once);
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t j = 0; j < x[0].size(); ++j) {
        x[i][j] = 3.4445 * x[i][j] - 4.7750 * once[i][j] + 2.0315 * twice[i][j];
      }
    }
  }
  return x;
}

Rows random_rows(std::int64_t rows, std::int64_t columns) {
  Rows made(static_cast<std::size_t>(rows), std::vector<double>(static_cast<std::size_t>(columns)));
  std::uint64_t i = 0;
  for (auto& row : made) {
    for (double& value : row) value = random_normal(7, i++);
  }
  return made;
}

Tensor tensor_of(const Rows& rows, Memory& memory) {
  const Tensor made = memory.alloc(
      {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows[0].size())},
      DType::f64, MemoryTag::workspace);
  double* at = made.data<double>();
  for (const auto& row : rows) at = std::copy(row.begin(), row.end(), at);
  return made;
}

TEST(NewtonSchulz, FollowsThePublishedIterationForWideAndTallMatrices) {
  Memory memory;
  Stream stream(1);
  for (const auto& [rows, columns] :
       {std::pair{1, 1}, {5, 5}, {3, 17}, {17, 3}, {1, 9}, {40, 24}}) {
    for (const int steps : {1, 5}) {
      const Rows start = random_rows(rows, columns), want = published(start, steps);
      const Tensor made =
          newton_schulz(tensor_of(start, memory), steps, DType::f64, memory, stream);
      for (std::size_t i = 0; i < want.size(); ++i) {
        for (std::size_t j = 0; j < want[0].size(); ++j) {
          ASSERT_NEAR(made.data<double>()[i * want[0].size() + j], want[i][j], 1e-11)
              << rows << " x " << columns;
        }
      }
    }
  }
}

TEST(NewtonSchulz, BringsSingularValuesNearOne) {
  Memory memory;
  Stream stream(1);
  const Tensor made =
      newton_schulz(tensor_of(random_rows(12, 40), memory), 5, DType::f64, memory, stream);
  // Of a matrix with singular values between 0.5 and 1.5, x^T X X^T x lies between their squares.
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    double whole = 0.0, image = 0.0;
    std::vector<double> x(12);
    for (std::size_t i = 0; i < 12; ++i) whole += std::pow(x[i] = random_normal(seed, i), 2);
    for (std::int64_t j = 0; j < 40; ++j) {
      double sum = 0.0;
      for (std::int64_t i = 0; i < 12; ++i) {
        sum += x[static_cast<std::size_t>(i)] * made.data<double>()[i * 40 + j];
      }
      image += sum * sum;
    }
    EXPECT_GT(image / whole, 0.25);
    EXPECT_LT(image / whole, 2.25);
  }
}

TEST(NewtonSchulz, LeavesNothingOfNothing) {
  Memory memory;
  Stream stream(1);
  const Tensor zero = memory.zeros({4, 6}, DType::f32, MemoryTag::workspace);
  for (const float value : newton_schulz(zero, 5, DType::f32, memory, stream).host<float>()) {
    EXPECT_EQ(value, 0.0F);
  }
}

}  // namespace
}  // namespace heddle
