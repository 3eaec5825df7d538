#include "ops/sgd.h"

#include "base/error.h"
#include "ops/op_testing.h"
#include "ops/reduce.h"

namespace heddle::ops {
namespace {

Tensor zeros(std::int64_t count, DType dtype) { return random_tensor({count}, dtype, 1, 0.0); }

Tensor factor(double value) {
  const Tensor made = empty({1}, DType::f32);
  set(made, {value});
  return made;
}

TEST(Sgd, FollowsItsFormulaForSeveralSteps) {
  struct Case {
    double momentum, dampening;
    bool nesterov;
  };
  for (const Case& c : {Case{0.0, 0.0, false}, Case{0.9, 0.0, false}, Case{0.8, 0.3, false},
                        Case{0.9, 0.0, true}}) {
    for (const DType dtype : kFloats) {
      for (const std::int64_t count : {1, 3, 127, 129, 70001}) {
        const auto args_at = [&](int step) {
          return SgdArgs{.lr = 0.1 / step,
                         .momentum = c.momentum,
                         .dampening = c.dampening,
                         .nesterov = c.nesterov,
                         .weight_decay = 0.2,
                         .is_first = step == 1,
                         .clip = factor(0.5)};
        };
        const auto gradient = [&](int step) {
          return random_tensor({count}, dtype, static_cast<std::uint64_t>(10 + step));
        };
        const Tensor start = random_tensor({count}, dtype, 1);
        const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
          const Tensor p = copy_of(start), m = zeros(count, dtype);
          for (int step = 1; step <= 3; ++step) {
            sgd(p, gradient(step), c.momentum > 0.0 ? m : Tensor(), args_at(step), stream);
          }
          return {p, m};
        });
        auto p = values(start);
        std::vector<double> m(p.size(), 0.0);
        for (int step = 1; step <= 3; ++step) {
          const auto a = args_at(step);
          const auto g = values(gradient(step));
          for (std::size_t i = 0; i < p.size(); ++i) {
            const double grad = 0.5 * g[i] + a.weight_decay * p[i];
            double change = grad;
            if (c.momentum > 0.0) {
              m[i] = step == 1 ? grad : c.momentum * m[i] + (1 - c.dampening) * grad;
              change = c.nesterov ? grad + c.momentum * m[i] : m[i];
            }
            p[i] -= a.lr * change;
          }
        }
        expect_close(got[0], p, 1e-6, 1e-14);
        expect_close(got[1], m, 1e-6, 1e-14);
      }
    }
  }
}

TEST(Sgd, AGuardOrAClipThatIsNotFiniteLeavesAllAsItWas) {
  Stream stream(1);
  const Tensor p = random_tensor({129}, DType::f32, 1), g = random_tensor({129}, DType::f32, 2);
  const Tensor m = random_tensor({129}, DType::f32, 3), p_before = copy_of(p),
               m_before = copy_of(m);
  const Tensor bad = factor(std::nan(""));
  sgd(p, g, m, {.lr = 0.1, .momentum = 0.9, .clip = bad}, stream);
  sgd(p, g, m, {.lr = 0.1, .momentum = 0.9, .guard = bad}, stream);
  expect_same_bits(p, p_before);
  expect_same_bits(m, m_before);
  const Tensor guarded = copy_of(p);
  sgd(guarded, g, {}, {.lr = 0.1, .guard = factor(0.25)}, stream);
  sgd(p, g, {}, {.lr = 0.1}, stream);
  expect_same_bits(guarded, p);  // it is no factor
}

TEST(Sgd, WritesALowCopyAndRefusesMomentumWithoutItsTensor) {
  Stream stream(1);
  const Tensor p = random_tensor({129}, DType::f32, 1), g = random_tensor({129}, DType::f32, 2);
  const Tensor low = empty({129}, DType::bf16);
  sgd(p, g, {}, {.lr = 0.1, .p_low = low}, stream);
  for (std::size_t i = 0; i < 129; ++i) {
    EXPECT_EQ(low.host<BFloat16>()[i].bits, to_bfloat16(p.host<float>()[i]).bits);
  }
  EXPECT_THROW(sgd(p, g, {}, {.lr = 0.1, .momentum = 0.9}, stream), Error);
}

TEST(RunningMean, TakesThePlaceOfTheGradients) {
  for (const bool nesterov : {false, true}) {
    for (const DType dtype : kFloats) {
      for (const std::int64_t count : {1, 3, 127, 129, 70001}) {
        const Tensor start = random_tensor({count}, dtype, 1),
                     mean = random_tensor({count}, dtype, 2);
        const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
          const Tensor g = copy_of(start), m = copy_of(mean);
          running_mean(g, m, {.momentum = 0.9, .nesterov = nesterov, .clip = factor(0.5)}, stream);
          return {g, m};
        });
        auto g = values(start), m = values(mean);
        for (std::size_t i = 0; i < g.size(); ++i) {
          m[i] = 0.9 * m[i] + 0.1 * 0.5 * g[i];
          g[i] = nesterov ? 0.9 * m[i] + 0.1 * 0.5 * g[i] : m[i];
        }
        expect_close(got[0], g, 1e-6, 1e-14);
        expect_close(got[1], m, 1e-6, 1e-14);
      }
    }
  }
}

TEST(DivideByNorm, GivesANormOfOneUnlessThereIsNothingToDivide) {
  Stream stream(1);
  for (const DType dtype : kFloats) {
    const Tensor x = random_tensor({3, 43}, dtype, 1), sum = zeros(1, DType::f64);
    add_sum_of_squares(x, sum, stream);
    divide_by_norm(x, sum, 1e-7, stream);
    EXPECT_NEAR(sum_of_squares(x, stream), 1.0, 1e-6);
    const Tensor nothing = zeros(5, dtype);
    divide_by_norm(nothing, zeros(1, DType::f64), 1e-7, stream);
    EXPECT_EQ(sum_of_squares(nothing, stream), 0.0);
  }
}

}  // namespace
}  // namespace heddle::ops
