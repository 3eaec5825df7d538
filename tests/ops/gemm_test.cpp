#include "ops/gemm.h"

#include <cstdlib>
#include <limits>
#include <thread>

#include "base/error.h"
#include "ops/activation.h"
#include "ops/cpu/openmp.h"
#include "ops/elementwise.h"
#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

std::vector<double> reference(const Tensor& a, bool ta, const Tensor& b, bool tb, const Tensor& c,
                              GemmScale scale) {
  auto result = values(c);
  const std::int64_t m = c.size(0), n = c.size(1), k = a.size(ta ? 0 : 1);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum += get(a, ta ? l * a.stride(0) + i : i * a.stride(0) + l) *
               get(b, tb ? j * b.stride(0) + l : l * b.stride(0) + j);
      }
      double& out = result[static_cast<std::size_t>(i * n + j)];
      out = scale.alpha * sum + (scale.beta == 0.0 ? 0.0 : scale.beta * out);
    }
  }
  return result;
}

struct Product {
  std::int64_t m, n, k;
};

TEST(Gemm, AgreesWithTheDefinitionForAllTransposesAndStrides) {
  Stream stream(2);
  const Product products[] = {{1, 1, 1},   {3, 1, 127}, {1, 129, 3},    {127, 3, 1},
                              {1, 64, 65}, {129, 1, 7}, {127, 129, 33}, {64, 48, 129}};
  for (const DType dtype : kFloats) {
    for (const auto [m, n, k] : products) {
      for (const bool ta : {false, true}) {
        for (const bool tb : {false, true}) {
          for (const GemmScale scale :
               {GemmScale{1.0, 0.0}, GemmScale{0.5, 1.0}, GemmScale{-2.0, 0.25}}) {
            const Padded a(random_tensor(ta ? Shape{k, m} : Shape{m, k}, dtype, 1));
            const Padded b(random_tensor(tb ? Shape{n, k} : Shape{k, n}, dtype, 2));
            const Padded c(random_tensor({m, n}, dtype, 3));
            const auto want = reference(a.view, ta, b.view, tb, c.view, scale);
            gemm(a.view, ta ? Transpose::yes : Transpose::no, b.view,
                 tb ? Transpose::yes : Transpose::no, c.view, scale, stream);
            expect_close(c.view, want, 1e-4, 1e-12);
          }
        }
      }
    }
  }
}

TEST(Gemm, IgnoresWhatIsInTheResultWhenBetaIsZero) {
  Stream stream(2);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : kFloats) {
    for (const std::int64_t m : {1, 3, 129}) {
      for (const std::int64_t k : {0, 1, 33}) {
        const Tensor a = random_tensor({m, k}, dtype, 1), b = random_tensor({k, 5}, dtype, 2);
        const Padded c(random_tensor({m, 5}, dtype, 3));
        set(c.view, std::vector<double>(static_cast<std::size_t>(m * 5), nan));
        const auto want = reference(a, false, b, false, c.view, {});
        gemm(a, Transpose::no, b, Transpose::no, c.view, {}, stream);
        expect_close(c.view, want, 1e-4, 1e-12);
      }
    }
  }
}

TEST(Gemm, ScalesTheResultWhenTheSumIsEmpty) {
  Stream stream(1);
  const Tensor a = empty({3, 0}, DType::f32), b = empty({0, 4}, DType::f32);
  const Padded c(random_tensor({3, 4}, DType::f32, 1));
  auto want = values(c.view);
  for (double& v : want) v *= 0.5;
  gemm(a, Transpose::no, b, Transpose::no, c.view, {1.0, 0.5}, stream);
  EXPECT_EQ(values(c.view), want);
}

TEST(Gemm, TakesEmptyMatrices) {
  Stream stream(2);
  const Tensor a = empty({0, 3}, DType::f32), b = random_tensor({3, 4}, DType::f32, 1);
  gemm(a, Transpose::no, b, Transpose::no, empty({0, 4}, DType::f32), {}, stream);
  gemm(b, Transpose::yes, a, Transpose::yes, empty({4, 0}, DType::f32), {}, stream);
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  Stream stream(1);
  const Tensor a = empty({2, 3}, DType::f32), b = empty({3, 4}, DType::f32);
  const Tensor c = empty({2, 4}, DType::f32);
  EXPECT_THROW(gemm(a, Transpose::yes, b, Transpose::no, c, {}, stream), Error);
  EXPECT_THROW(gemm(a, Transpose::no, b, Transpose::yes, c, {}, stream), Error);
  EXPECT_THROW(gemm(a, Transpose::no, b, Transpose::no, empty({2, 5}, DType::f32), {}, stream),
               Error);
  EXPECT_THROW(gemm(a, Transpose::no, b, Transpose::no, empty({2, 4}, DType::f64), {}, stream),
               Error);
}

TEST(Gemm, ServesSeveralCallersWithDifferentThreadCountsAtOnce) {
  const Tensor a = random_tensor({200, 150}, DType::f64, 1);
  const Tensor b = random_tensor({150, 180}, DType::f64, 2);
  const auto want = reference(a, false, b, false, random_tensor({200, 180}, DType::f64, 3), {});
  std::vector<std::thread> callers;
  std::vector<Tensor> results;
  for (int rank = 0; rank < 4; ++rank) results.push_back(empty({200, 180}, DType::f64));
  for (int rank = 0; rank < 4; ++rank) {
    callers.emplace_back([&, rank] {
      Stream stream(1 + rank);
      for (int i = 0; i < 50; ++i) {
        gemm(a, Transpose::no, b, Transpose::no, results[static_cast<std::size_t>(rank)], {},
             stream);
      }
    });
  }
  for (auto& caller : callers) caller.join();
  for (const Tensor& result : results) expect_close(result, want, 0.0, 1e-12);
}

TEST(Gemm, LeavesTheCallersThreadSettingAlone) {
  const auto max_threads = cpu::OpenMp::instance().get_max_threads;
  const int before = max_threads();
  Stream stream(before + 1);
  const Tensor a = random_tensor({64, 64}, DType::f32, 1), c = empty({64, 64}, DType::f32);
  gemm(a, Transpose::no, a, Transpose::no, c, {}, stream);
  EXPECT_EQ(max_threads(), before);
}

TEST(Gemm, NamesItsBackend) {
  EXPECT_NE(gemm_backend().find("OpenBLAS "), std::string::npos) << gemm_backend();
  // CTest runs these tests once more with oneDNN hidden, and says so here.
  if (std::getenv("HEDDLE_TEST_GEMM") != nullptr) {
    EXPECT_EQ(gemm_backend().find(std::getenv("HEDDLE_TEST_GEMM")), 0U) << gemm_backend();
  }
}

TEST(GemmSwiglu, EqualsAProductAndThenSwiglu) {
  Stream stream(2);
  const std::int64_t tokens = 5, in = 7, width = 9, out = 4;
  for (const DType dtype : kFloats) {
    const Padded x(random_tensor({tokens, in}, dtype, 1)),
        w(random_tensor({2 * width, in}, dtype, 2));
    const Padded dout(random_tensor({tokens, out}, dtype, 3)),
        v(random_tensor({out, width}, dtype, 4));
    const Padded gate_up(random_tensor({tokens, 2 * width}, dtype, 5));
    const Padded y(random_tensor({tokens, width}, dtype, 6)),
        dy(random_tensor({tokens, width}, dtype, 7));
    const Tensor want = empty({tokens, 2 * width}, dtype), want_y = empty({tokens, width}, dtype);
    const auto [gate, up] = halves(want);
    gemm(x.view, Transpose::no, w.view, Transpose::yes, want, {}, stream);
    swiglu_forward(gate, up, want_y, stream);
    gemm_swiglu(x.view, w.view, gate_up.view, y.view, stream);
    expect_close(gate_up.view, values(want), 1e-6, 1e-14);
    expect_close(y.view, values(want_y), 1e-6, 1e-14);

    const Tensor want_dy = empty({tokens, width}, dtype);
    gemm(dout.view, Transpose::no, v.view, Transpose::no, want_dy, {}, stream);
    swiglu_backward(want_dy, gate, up, gate, up, {}, stream);
    fill(y.view, 0.0, stream);
    gemm_swiglu_backward(dout.view, v.view, dy.view, gate_up.view, gate_up.view, y.view, stream);
    expect_close(gate_up.view, values(want), 1e-6, 1e-14);
    expect_close(y.view, values(want_y), 1e-6, 1e-14);
  }
}

TEST(Gemm, AddsABiasToEveryRowAndAnotherMatrix) {
  Stream stream(2);
  const Tensor a = random_tensor({5, 7}, DType::f32, 1), b = random_tensor({7, 3}, DType::f32, 2);
  const Tensor bias = random_tensor({3}, DType::f32, 3),
               addend = random_tensor({5, 3}, DType::f32, 4);
  const Tensor c = empty({5, 3}, DType::f32), plain = empty({5, 3}, DType::f32);
  gemm(a, Transpose::no, b, Transpose::no, plain, {}, stream);
  auto want = values(plain);
  gemm_add(a, Transpose::no, b, Transpose::no, {}, {}, c, stream);
  expect_same_bits(c, plain);
  for (std::size_t i = 0; i < want.size(); ++i) want[i] += values(bias)[i % 3];
  gemm_add(a, Transpose::no, b, Transpose::no, bias, {}, c, stream);
  expect_close(c, want, 1e-6, 0.0);
  for (std::size_t i = 0; i < want.size(); ++i) want[i] += values(addend)[i];
  gemm_add(a, Transpose::no, b, Transpose::no, bias, addend, c, stream);
  expect_close(c, want, 1e-6, 0.0);
}

}  // namespace
}  // namespace heddle::ops
