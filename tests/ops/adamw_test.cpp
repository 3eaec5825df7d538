#include "ops/adamw.h"

#include "base/error.h"
#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

TEST(AdamW, FollowsItsFormulaForSeveralSteps) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t count : {1, 3, 127, 129, 70001}) {
      const Tensor start = random_tensor({count}, dtype, 1);
      auto p = values(start);
      std::vector<double> m(p.size(), 0.0), v(p.size(), 0.0);
      const auto args_at = [](std::int64_t step) {
        return AdamWArgs{.lr = 0.01 / static_cast<double>(step),
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .weight_decay = 0.1,
                         .grad_scale = 0.5,
                         .step = step};
      };
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Tensor tp = copy_of(start), tm = random_tensor({count}, dtype, 2, 0.0);
        const Tensor tv = copy_of(tm);
        for (std::int64_t step = 1; step <= 3; ++step) {
          const Tensor g = random_tensor({count}, dtype, static_cast<std::uint64_t>(10 + step));
          adamw(tp, g, tm, tv, args_at(step), stream);
        }
        return {tp, tm, tv};
      });
      for (std::int64_t step = 1; step <= 3; ++step) {
        const auto a = args_at(step);
        const auto g = values(random_tensor({count}, dtype, static_cast<std::uint64_t>(10 + step)));
        for (std::size_t i = 0; i < p.size(); ++i) {
          const double gs = g[i] * a.grad_scale, t = static_cast<double>(step);
          m[i] = a.beta1 * m[i] + (1 - a.beta1) * gs;
          v[i] = a.beta2 * v[i] + (1 - a.beta2) * gs * gs;
          p[i] = p[i] * (1 - a.lr * a.weight_decay) -
                 a.lr * (m[i] / (1 - std::pow(a.beta1, t))) /
                     (std::sqrt(v[i] / (1 - std::pow(a.beta2, t))) + a.eps);
        }
      }
      expect_close(got[0], p, 1e-6, 1e-14);
      expect_close(got[1], m, 1e-6, 1e-15);
      expect_close(got[2], v, 1e-6, 1e-15);
    }
  }
}

TEST(AdamW, MovesByTheLearningRateOnTheFirstStepWhateverTheGradient) {
  Stream stream(1);
  for (const double size : {1e-6, 1.0, 1e6}) {
    const Tensor p = empty({4}, DType::f32), g = empty({4}, DType::f32);
    const Tensor m = empty({4}, DType::f32), v = empty({4}, DType::f32);
    for (const Tensor& t : {p, m, v}) set(t, {0, 0, 0, 0});
    set(g, {size, -size, size, 0.0});
    adamw(p, g, m, v, {.lr = 0.5, .eps = 1e-12, .step = 1}, stream);
    expect_close(p, {-0.5, 0.5, -0.5, 0.0}, 1e-5, 0.0);
  }
}

TEST(AdamW, ClipsByAFactorThatLiesBesideTheGradientsAndWritesALowCopy) {
  Stream stream(1);
  const Tensor g = random_tensor({129}, DType::f32, 2), zero = empty({129}, DType::f32);
  set(zero, std::vector<double>(129, 0.0));
  const auto step = [&](const AdamWArgs& args) {
    const Tensor p = random_tensor({129}, DType::f32, 1);
    adamw(p, g, copy_of(zero), copy_of(zero), args, stream);
    return p;
  };
  const Tensor clip = empty({1}, DType::f32), low = empty({129}, DType::bf16);
  set(clip, {0.25});
  const Tensor p = step({.lr = 0.1, .eps = 0.1, .clip = clip, .p_low = low});
  expect_same_bits(p, step({.lr = 0.1, .eps = 0.1, .grad_scale = 0.25}));
  for (std::size_t i = 0; i < 129; ++i) {
    EXPECT_EQ(low.host<BFloat16>()[i].bits, to_bfloat16(p.host<float>()[i]).bits);
  }
  set(clip, {std::nan("")});
  expect_same_bits(step({.lr = 0.1, .clip = clip}), random_tensor({129}, DType::f32, 1));
}

TEST(AdamW, RefusesUnequalTensorsAndStepZero) {
  Stream stream(1);
  const Tensor a = random_tensor({4}, DType::f32, 1), b = random_tensor({5}, DType::f32, 1);
  EXPECT_THROW(adamw(a, b, a, a, {.step = 1}, stream), Error);
  EXPECT_THROW(adamw(a, a, a, a, {.step = 0}, stream), Error);
}

}  // namespace
}  // namespace heddle::ops
