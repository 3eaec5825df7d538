#include "ops/norm.h"

#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

constexpr double kEps = 1e-5;

struct Reference {
  std::vector<double> y, dx, dw, db, mean, rstd;
};

/// y, and the gradients of sum(dy * y), by the textbook; `centred` is layer norm, else RMS norm.
Reference reference(const Tensor& x, const Tensor& w, const Tensor* b, const Tensor& dy) {
  const auto vx = values(x), vw = values(w), vdy = values(dy);
  const std::size_t n = vw.size(), rows = vx.size() / n;
  Reference r{vx, vx, std::vector<double>(n), std::vector<double>(n), {}, {}};
  for (std::size_t row = 0; row < rows; ++row) {
    const double* const at = vx.data() + row * n;
    double mean = 0.0, square = 0.0;
    if (b != nullptr) {
      for (std::size_t i = 0; i < n; ++i) mean += at[i] / static_cast<double>(n);
    }
    for (std::size_t i = 0; i < n; ++i) {
      square += (at[i] - mean) * (at[i] - mean) / static_cast<double>(n);
    }
    const double rstd = 1.0 / std::sqrt(square + kEps);
    r.mean.push_back(mean);
    r.rstd.push_back(rstd);
    double sum_g = 0.0, sum_gh = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      const double h = (at[i] - mean) * rstd, g = vdy[row * n + i];
      r.y[row * n + i] = h * vw[i] + (b != nullptr ? get(*b, static_cast<std::int64_t>(i)) : 0.0);
      r.dw[i] += g * h;
      r.db[i] += g;
      sum_g += b != nullptr ? g * vw[i] / static_cast<double>(n) : 0.0;
      sum_gh += g * vw[i] * h / static_cast<double>(n);
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double h = (at[i] - mean) * rstd, g = vdy[row * n + i] * vw[i];
      r.dx[row * n + i] = rstd * (g - sum_g - h * sum_gh);
    }
  }
  return r;
}

std::vector<double> plus(std::vector<double> a, const Tensor& b) {
  const auto vb = values(b);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += vb[i];
  return a;
}

TEST(RmsNorm, AgreesWithTheTextbookOnStridedRows) {
  for (const DType dtype : kFloats) {
    for (const auto [rows, n] : kSizes) {
      const Padded x(random_tensor({rows, n}, dtype, 1)), dy(random_tensor({rows, n}, dtype, 2));
      const Tensor w = random_tensor({n}, dtype, 3), before = random_tensor({n}, dtype, 4);
      const auto want = reference(x.view, w, nullptr, dy.view);
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Padded y(empty({rows, n}, dtype)), dx(empty({rows, n}, dtype));
        const Tensor rstd = empty({rows}, dtype), dw = copy_of(before);
        rms_norm_forward(x.view, w, kEps, y.view, rstd, stream);
        rms_norm_backward_input(dy.view, x.view, w, rstd, dx.view, stream);
        rms_norm_backward_weight(dy.view, x.view, rstd, dw, stream);
        return {copy_of(y.view), rstd, copy_of(dx.view), dw};
      });
      expect_close(got[0], want.y, 3e-6, 1e-13);
      expect_close(got[1], want.rstd, 3e-6, 1e-13);
      expect_close(got[2], want.dx, n == 1 ? 1e-3 : 2e-5, n == 1 ? 1e-11 : 1e-12);
      expect_close(got[3], plus(want.dw, before), 2e-5, 1e-12);
    }
  }
}

TEST(LayerNorm, AgreesWithTheTextbookOnStridedRows) {
  for (const DType dtype : kFloats) {
    for (const auto [rows, n] : kSizes) {
      if (n == 1) continue;  // the variance is 0: nothing but eps remains
      const Padded x(random_tensor({rows, n}, dtype, 5)), dy(random_tensor({rows, n}, dtype, 6));
      const Tensor w = random_tensor({n}, dtype, 7), b = random_tensor({n}, dtype, 8);
      const Tensor before = random_tensor({n}, dtype, 9);
      const auto want = reference(x.view, w, &b, dy.view);
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Padded y(empty({rows, n}, dtype)), dx(empty({rows, n}, dtype));
        const Tensor mean = empty({rows}, dtype), rstd = empty({rows}, dtype);
        const Tensor dw = copy_of(before), db = copy_of(before);
        layer_norm_forward(x.view, w, b, kEps, y.view, mean, rstd, stream);
        layer_norm_backward_input(dy.view, x.view, w, mean, rstd, dx.view, stream);
        layer_norm_backward_weight(dy.view, x.view, mean, rstd, dw, db, stream);
        return {copy_of(y.view), mean, rstd, copy_of(dx.view), dw, db};
      });
      expect_close(got[0], want.y, 1e-5, 1e-12);
      expect_close(got[1], want.mean, 1e-6, 1e-14);
      expect_close(got[2], want.rstd, 1e-5, 1e-12);
      expect_close(got[3], want.dx, 2e-4, 1e-11);
      expect_close(got[4], plus(want.dw, before), 3e-5, 1e-12);
      expect_close(got[5], plus(want.db, before), 3e-5, 1e-12);
    }
  }
}

TEST(LayerNorm, KeepsItsPrecisionFarFromZero) {
  Stream stream(2);
  const std::int64_t n = 768;
  const Tensor x = random_tensor({4, n}, DType::f32, 1), w = empty({n}, DType::f32);
  for (float& v : x.host<float>()) v += 1000.0F;
  set(w, std::vector<double>(static_cast<std::size_t>(n), 1.0));
  const Tensor b = empty({n}, DType::f32), y = empty({4, n}, DType::f32);
  set(b, std::vector<double>(static_cast<std::size_t>(n), 0.0));
  const Tensor mean = empty({4}, DType::f32), rstd = empty({4}, DType::f32);
  layer_norm_forward(x, w, b, kEps, y, mean, rstd, stream);
  expect_close(y, reference(x, w, &b, x).y, 2e-4, 0.0);
}

TEST(Norm, WorksOnHeadsInsideAFusedProjection) {
  Stream stream(2);
  const std::int64_t heads = 3, width = 16;
  for (const DType dtype : kFloats) {
    const Tensor fused = random_tensor({2, 5, 3 * heads * width}, dtype, 11);
    const Tensor q = fused.slice(2, 0, heads * width).view({2, 5, heads, width});
    const Tensor w = random_tensor({width}, dtype, 12), rstd = empty({2 * 5 * heads}, dtype);
    const auto want = reference(q, w, nullptr, q);
    const auto keys = values(fused.slice(2, heads * width, 3 * heads * width));
    rms_norm_forward(q, w, kEps, q, rstd, stream);
    expect_close(q, want.y, 3e-6, 1e-13);
    EXPECT_EQ(values(fused.slice(2, heads * width, 3 * heads * width)), keys);
  }
}

TEST(Norm, InPlaceEqualsOutOfPlace) {
  Stream stream(2);
  for (const DType dtype : kFloats) {
    const Tensor x = random_tensor({129, 127}, dtype, 1), dy = random_tensor({129, 127}, dtype, 2);
    const Tensor w = random_tensor({127}, dtype, 3), b = random_tensor({127}, dtype, 4);
    const Tensor y = empty({129, 127}, dtype), dx = empty({129, 127}, dtype);
    const Tensor mean = empty({129}, dtype), rstd = empty({129}, dtype);
    layer_norm_forward(x, w, b, kEps, y, mean, rstd, stream);
    layer_norm_backward_input(dy, x, w, mean, rstd, dx, stream);
    const Tensor dy2 = copy_of(dy), x2 = copy_of(x);
    layer_norm_backward_input(dy2, x, w, mean, rstd, dy2, stream);
    layer_norm_forward(x2, w, b, kEps, x2, mean, rstd, stream);
    expect_same_bits(x2, y);
    expect_same_bits(dy2, dx);
    rms_norm_forward(x, w, kEps, y, rstd, stream);
    rms_norm_backward_input(dy, x, w, rstd, dx, stream);
    const Tensor dy3 = copy_of(dy), x3 = copy_of(x);
    rms_norm_backward_input(dy3, x, w, rstd, dy3, stream);
    rms_norm_forward(x3, w, kEps, x3, rstd, stream);
    expect_same_bits(x3, y);
    expect_same_bits(dy3, dx);
  }
}

TEST(Norm, BackwardInOnePassAddsWhatWentAround) {
  Stream stream(2);
  const Tensor x = random_tensor({5, 7}, DType::f32, 1), dy = random_tensor({5, 7}, DType::f32, 2);
  const Tensor w = random_tensor({7}, DType::f32, 3), addend = random_tensor({5, 7}, DType::f32, 4);
  const Tensor y = empty({5, 7}, DType::f32), mean = empty({5}, DType::f32);
  const Tensor rstd = empty({5}, DType::f32), dx = empty({5, 7}, DType::f32), want = copy_of(dx);
  const Tensor dw = copy_of(w), db = copy_of(w), want_dw = copy_of(w), want_db = copy_of(w);
  layer_norm_forward(x, w, w, kEps, y, mean, rstd, stream);
  layer_norm_backward(dy, x, w, mean, rstd, addend, dx, dw, db, stream);
  layer_norm_backward_input(dy, x, w, mean, rstd, want, stream);
  layer_norm_backward_weight(dy, x, mean, rstd, want_dw, want_db, stream);
  expect_close(dx, plus(values(want), addend), 1e-6, 0.0);
  expect_same_bits(dw, want_dw);
  expect_same_bits(db, want_db);
  rms_norm_forward(x, w, kEps, y, rstd, stream);
  rms_norm_backward(dy, x, w, rstd, {}, dx, dw, stream);
  rms_norm_backward_input(dy, x, w, rstd, want, stream);
  rms_norm_backward_weight(dy, x, rstd, want_dw, stream);
  expect_same_bits(dx, want);
  expect_same_bits(dw, want_dw);
}

TEST(Norm, TakesNoRows) {
  Stream stream(2);
  const Tensor x = empty({0, 8}, DType::f32), w = random_tensor({8}, DType::f32, 1);
  const Tensor rstd = empty({0}, DType::f32), dw = copy_of(w);
  rms_norm_forward(x, w, kEps, x, rstd, stream);
  rms_norm_backward_weight(x, x, rstd, dw, stream);
  expect_same_bits(dw, w);
}

}  // namespace
}  // namespace heddle::ops
