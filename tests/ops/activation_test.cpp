#include "ops/activation.h"

#include <limits>

#include "ops/op_testing.h"

namespace heddle::ops {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double gelu(double x, Gelu kind) {
  if (kind == Gelu::exact) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  const double u = std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(u));
}

double gelu_slope(double x, Gelu kind) {
  const double pi = std::acos(-1.0);
  if (kind == Gelu::exact) {
    return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * pi);
  }
  const double u = std::sqrt(2.0 / pi) * (x + 0.044715 * x * x * x), t = std::tanh(u);
  const double du = std::sqrt(2.0 / pi) * (1.0 + 3.0 * 0.044715 * x * x);
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du;
}

TEST(SwiGlu, AgreesWithItsFormulaOnStridedRows) {
  for (const DType dtype : kFloats) {
    for (const auto [rows, n] : kSizes) {
      const Padded gate(random_tensor({rows, n}, dtype, 1, 12.0));
      const Padded up(random_tensor({rows, n}, dtype, 2)), dy(random_tensor({rows, n}, dtype, 3));
      const auto g = values(gate.view), u = values(up.view), o = values(dy.view);
      std::vector<double> y(g.size()), dgate(g.size()), dup(g.size());
      for (std::size_t i = 0; i < g.size(); ++i) {
        const double s = sigmoid(g[i]);
        y[i] = g[i] * s * u[i];
        dgate[i] = o[i] * u[i] * s * (1.0 + g[i] * (1.0 - s));
        dup[i] = o[i] * g[i] * s;
      }
      const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
        const Tensor out = empty({rows, n}, dtype);
        const Padded to_gate(out), to_up(out);
        swiglu_forward(gate.view, up.view, out, stream);
        swiglu_backward(dy.view, gate.view, up.view, to_gate.view, to_up.view, {}, stream);
        return {out, copy_of(to_gate.view), copy_of(to_up.view)};
      });
      expect_close(got[0], y, 1e-6, 1e-14);
      expect_close(got[1], dgate, 1e-6, 1e-14);
      expect_close(got[2], dup, 1e-6, 1e-14);
    }
  }
}

TEST(SwiGlu, InPlaceEqualsOutOfPlace) {
  Stream stream(2);
  for (const DType dtype : kFloats) {
    const Tensor fused = random_tensor({129, 2 * 127}, dtype, 1);
    const Tensor gate = fused.slice(1, 0, 127), up = fused.slice(1, 127, 254);
    const Tensor dy = random_tensor({129, 127}, dtype, 2);
    const Tensor y = empty({129, 127}, dtype), dgate = empty({129, 127}, dtype);
    const Tensor dup = empty({129, 127}, dtype);
    swiglu_forward(gate, up, y, stream);
    swiglu_backward(dy, gate, up, dgate, dup, {}, stream);
    const Tensor over_gate = copy_of(gate), over_up = copy_of(up);
    swiglu_forward(over_gate, up, over_gate, stream);
    swiglu_forward(gate, over_up, over_up, stream);
    expect_same_bits(over_gate, y);
    expect_same_bits(over_up, y);
    swiglu_backward(dy, gate, up, gate, up, {}, stream);
    expect_same_bits(copy_of(gate), dgate);
    expect_same_bits(copy_of(up), dup);
  }
}

TEST(GeGlu, AgreesWithItsFormulaOnStridedRowsAndInPlace) {
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    for (const DType dtype : kFloats) {
      for (const auto [rows, n] : kSizes) {
        const Padded gate(random_tensor({rows, n}, dtype, 1, 5.0));
        const Padded up(random_tensor({rows, n}, dtype, 2)), dy(random_tensor({rows, n}, dtype, 3));
        auto y = values(gate.view), dgate = values(dy.view), dup = values(dy.view);
        const auto u = values(up.view);
        for (std::size_t i = 0; i < y.size(); ++i) {
          dgate[i] *= u[i] * gelu_slope(y[i], kind);
          dup[i] *= gelu(y[i], kind);
          y[i] = gelu(y[i], kind) * u[i];
        }
        const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
          const Tensor out = empty({rows, n}, dtype);
          geglu_forward(gate.view, up.view, kind, out, stream);
          const Padded to_gate(gate.view), to_up(up.view);
          const Tensor again = empty({rows, n}, dtype);
          geglu_backward(dy.view, to_gate.view, to_up.view, kind, to_gate.view, to_up.view, again,
                         stream);
          expect_same_bits(again, out);
          return {out, copy_of(to_gate.view), copy_of(to_up.view)};
        });
        expect_close(got[0], y, 1e-6, 1e-14);
        expect_close(got[1], dgate, 2e-6, 1e-13);
        expect_close(got[2], dup, 1e-6, 1e-14);
      }
    }
  }
}

TEST(SoftCap, AgreesWithItsFormulaOnStridedRows) {
  for (const double cap : {0.5, 30.0}) {
    for (const DType dtype : kFloats) {
      for (const auto [rows, n] : kSizes) {
        const Padded x(random_tensor({rows, n}, dtype, 1, 2.0 * cap));
        const Padded dy(random_tensor({rows, n}, dtype, 2));
        auto y = values(x.view), dx = values(dy.view);
        for (std::size_t i = 0; i < y.size(); ++i) {
          const double tanh = std::tanh(y[i] / cap);
          y[i] = cap * tanh;
          dx[i] *= 1.0 - tanh * tanh;
        }
        const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
          const Padded over(x.view), gradient(dy.view);
          soft_cap(over.view, cap, stream);
          soft_cap_backward(over.view, cap, gradient.view, stream);
          return {copy_of(over.view), copy_of(gradient.view)};
        });
        expect_close(got[0], y, 1e-6, 1e-14);
        expect_close(got[1], dx, 1e-6, 1e-13);
      }
    }
  }
}

TEST(SoftCap, KeepsTheSignOfSmallAndTheBoundOfHugeValues) {
  Stream stream(1);
  for (const DType dtype : kFloats) {
    const Tensor x = empty({1, 6}, dtype);
    set(x, {1e-20, -1e-20, 1e30, -1e30, 0.0, 1e-4});
    soft_cap(x, 2.0, stream);
    const auto got = values(x);
    EXPECT_NEAR(got[0] / 1e-20, 1.0, 1e-6);
    EXPECT_NEAR(got[1] / -1e-20, 1.0, 1e-6);
    EXPECT_EQ(got[2], 2.0);
    EXPECT_EQ(got[3], -2.0);
    EXPECT_EQ(got[4], 0.0);
    EXPECT_NEAR(got[5] / 1e-4, 1.0, 1e-6);
  }
}

TEST(Gelu, AgreesWithItsFormulaOnStridedRows) {
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    for (const DType dtype : kFloats) {
      for (const auto [rows, n] : kSizes) {
        const Padded x(random_tensor({rows, n}, dtype, 1, 7.0));
        const Padded dy(random_tensor({rows, n}, dtype, 2));
        auto y = values(x.view), dx = values(dy.view);
        for (std::size_t i = 0; i < y.size(); ++i) {
          dx[i] *= gelu_slope(y[i], kind);
          y[i] = gelu(y[i], kind);
        }
        const auto got = on_any_threads([&](Stream& stream) -> std::vector<Tensor> {
          const Tensor out = empty({rows, n}, dtype), to_x = empty({rows, n}, dtype);
          gelu_forward(x.view, kind, out, stream);
          gelu_backward(dy.view, x.view, kind, to_x, {}, stream);
          const Tensor over_x = copy_of(x.view), over_dy = copy_of(dy.view);
          gelu_backward(dy.view, over_x, kind, over_x, {}, stream);
          gelu_backward(over_dy, x.view, kind, over_dy, {}, stream);
          expect_same_bits(over_x, to_x);
          expect_same_bits(over_dy, to_x);
          const Padded over(x.view);
          gelu_forward(over.view, kind, over.view, stream);
          expect_same_bits(copy_of(over.view), out);
          return {out, to_x};
        });
        expect_close(got[0], y, 5e-7, 1e-14);
        expect_close(got[1], dx, 2e-6, 1e-13);
      }
    }
  }
}

TEST(Gelu, IsRelativelyPreciseWhereItIsSmall) {
  Stream stream(1);
  const std::int64_t n = 20000;
  const Tensor x = empty({1, n}, DType::f32), y = empty({1, n}, DType::f32);
  for (std::int64_t i = 0; i < n; ++i) put(x, i, -5.0 + 10.0 * static_cast<double>(i) / n);
  gelu_forward(x, Gelu::exact, y, stream);
  double worst = 0.0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double want = gelu(get(x, i), Gelu::exact);
    if (want != 0.0) worst = std::max(worst, std::abs(get(y, i) / want - 1.0));
  }
  EXPECT_LT(worst, 2e-6);  // the tail's exponent, 12.5, is itself only good to 1e-6
}

TEST(Activations, StayFiniteForHugeInputs) {
  Stream stream(1);
  for (const DType dtype : kFloats) {
    const double huge = dtype == DType::f32 ? 1e30 : 1e300;
    const Tensor x = empty({1, 8}, dtype), one = empty({1, 8}, dtype);
    set(x, {huge, -huge, 1000.0, -1000.0, 89.0, -89.0, 40.0, -40.0});
    set(one, std::vector<double>(8, 1.0));
    const Tensor y = empty({1, 8}, dtype), dx = empty({1, 8}, dtype), dup = empty({1, 8}, dtype);
    const auto check = [&](const Tensor& slope) {
      const auto vx = values(x), vy = values(y), vs = values(slope);
      for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_NEAR(vy[i], std::max(vx[i], 0.0), 1e-14 * std::abs(vx[i]));
        EXPECT_NEAR(vs[i], vx[i] > 0.0 ? 1.0 : 0.0, 1e-14);
      }
    };
    swiglu_forward(x, one, y, stream);
    swiglu_backward(one, x, one, dx, dup, {}, stream);
    check(dx);
    for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
      gelu_forward(x, kind, y, stream);
      gelu_backward(one, x, kind, dx, {}, stream);
      check(dx);
    }
  }
}

TEST(Activations, PassNaNOn) {
  Stream stream(1);
  for (const DType dtype : kFloats) {
    const Tensor x = empty({1, 33}, dtype), y = empty({1, 33}, dtype);
    set(x, std::vector<double>(33, std::numeric_limits<double>::quiet_NaN()));
    for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
      gelu_forward(x, kind, y, stream);
      for (const double v : values(y)) EXPECT_TRUE(std::isnan(v));
    }
    swiglu_forward(x, x, y, stream);
    for (const double v : values(y)) EXPECT_TRUE(std::isnan(v));
  }
}

TEST(Activation, BackwardMakesTheOutputAgain) {
  Stream stream(1);
  const Tensor dy = random_tensor({3, 5}, DType::f32, 1), x = random_tensor({3, 5}, DType::f32, 2);
  const Tensor up = random_tensor({3, 5}, DType::f32, 3), y = empty({3, 5}, DType::f32);
  const Tensor again = empty({3, 5}, DType::f32);
  swiglu_forward(x, up, y, stream);
  swiglu_backward(dy, copy_of(x), copy_of(up), copy_of(x), copy_of(up), again, stream);
  expect_same_bits(again, y);
  gelu_forward(x, Gelu::tanh, y, stream);
  gelu_backward(dy, x, Gelu::tanh, x, again, stream);
  expect_same_bits(again, y);
}

}  // namespace
}  // namespace heddle::ops
