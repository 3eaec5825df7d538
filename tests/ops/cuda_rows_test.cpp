// Operations on rows and elements, on a GPU: activations, elementwise, norms.
#include "ops/activation.h"
#include "ops/cuda_testing.h"
#include "ops/norm.h"

namespace heddle::ops {
namespace {

class CudaRows : public OnGpu {
 protected:
  using Body = std::function<void(Size, DType, Lie)>;
  static void for_cases(const Body& body) {
    for (const DType dtype : kGpuFloats) {
      for (const Size size :
           {Size{1, 1}, Size{3, 1}, Size{1, 3}, Size{3, 127}, Size{129, 3}, Size{127, 64},
            Size{129, 768}, Size{300, 264}, Size{70, 2048}, Size{5, 4104}}) {
        for (const Lie lie : kLies) {
          SCOPED_TRACE(fmt::format("{} {}x{} lie {}", name_of(dtype), size.rows, size.columns,
                                   static_cast<int>(lie)));
          body(size, dtype, lie);
        }
      }
    }
  }
  Lying placed(const Tensor& host, DType dtype, Lie lie) { return {host, dtype, lie, gpu()}; }
};

TEST_F(CudaRows, SwigluEqualsTheCpu) {
  for_cases([&](Size size, DType dtype, Lie lie) {
    const Shape shape{size.rows, size.columns};
    const Tensor gate = random(shape, dtype, 1, 6.0), up = random(shape, dtype, 2);
    const Tensor dy = random(shape, dtype, 3), y = empty(shape, DType::f64);
    const Lying dev_gate = placed(gate, dtype, lie), dev_up = placed(up, dtype, lie);
    const Lying dev_dy = placed(dy, dtype, lie), dev_y = placed(gate, dtype, lie);
    swiglu_forward(gate, up, y, cpu());
    swiglu_forward(dev_gate.view, dev_up.view, dev_y.view, gpu());
    expect_near(dev_y.view, y, tolerance_of(dtype, 3e-6), "y");
    const Lying dev_again = placed(gate, dtype, lie);
    swiglu_backward(dy, gate, up, gate, up, {}, cpu());
    swiglu_backward(dev_dy.view, dev_gate.view, dev_up.view, dev_gate.view, dev_up.view,
                    dev_again.view, gpu());
    expect_near(dev_again.view, down(dev_y.view), tolerance_of(dtype, 1e-6), "y again");
    expect_near(dev_gate.view, gate, tolerance_of(dtype, 3e-6), "dgate");
    expect_near(dev_up.view, up, tolerance_of(dtype, 3e-6), "dup");
  });
}

TEST_F(CudaRows, GegluEqualsTheCpu) {
  for_cases([&](Size size, DType dtype, Lie lie) {
    for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
      const Shape shape{size.rows, size.columns};
      const Tensor gate = random(shape, dtype, 1, 6.0), up = random(shape, dtype, 2);
      const Tensor dy = random(shape, dtype, 3), y = empty(shape, DType::f64);
      const Lying dev_gate = placed(gate, dtype, lie), dev_up = placed(up, dtype, lie);
      const Lying dev_dy = placed(dy, dtype, lie), dev_y = placed(gate, dtype, lie);
      geglu_forward(gate, up, kind, y, cpu());
      geglu_forward(dev_gate.view, dev_up.view, kind, dev_y.view, gpu());
      expect_near(dev_y.view, y, tolerance_of(dtype, 3e-6), "y");
      const Lying dev_again = placed(gate, dtype, lie);
      geglu_backward(dy, gate, up, kind, gate, up, {}, cpu());
      geglu_backward(dev_dy.view, dev_gate.view, dev_up.view, kind, dev_gate.view, dev_up.view,
                     dev_again.view, gpu());
      expect_near(dev_again.view, down(dev_y.view), tolerance_of(dtype, 1e-6), "y again");
      expect_near(dev_gate.view, gate, tolerance_of(dtype, 5e-6), "dgate");
      expect_near(dev_up.view, up, tolerance_of(dtype, 3e-6), "dup");
    }
  });
}

TEST_F(CudaRows, SoftCapEqualsTheCpu) {
  for_cases([&](Size size, DType dtype, Lie lie) {
    const Shape shape{size.rows, size.columns};
    const Tensor x = random(shape, dtype, 1, 6.0), dx = random(shape, dtype, 2);
    const Lying dev_x = placed(x, dtype, lie), dev_dx = placed(dx, dtype, lie);
    soft_cap(x, 3.0, cpu());
    soft_cap(dev_x.view, 3.0, gpu());
    expect_near(dev_x.view, x, tolerance_of(dtype, 3e-6), "capped");
    copy(down(dev_x.view), x, cpu());  // the gradient starts from the rounded values
    soft_cap_backward(x, 3.0, dx, cpu());
    soft_cap_backward(dev_x.view, 3.0, dev_dx.view, gpu());
    expect_near(dev_dx.view, dx, tolerance_of(dtype, 5e-6), "gradient");
  });
}

TEST_F(CudaRows, GeluEqualsTheCpu) {
  for_cases([&](Size size, DType dtype, Lie lie) {
    for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
      const Shape shape{size.rows, size.columns};
      const Tensor x = random(shape, dtype, 1, 8.0), dy = random(shape, dtype, 2);
      const Tensor y = empty(shape, DType::f64);
      const Lying dev_x = placed(x, dtype, lie), dev_dy = placed(dy, dtype, lie);
      const Lying dev_y = placed(x, dtype, lie);
      gelu_forward(x, kind, y, cpu());
      gelu_forward(dev_x.view, kind, dev_y.view, gpu());
      expect_near(dev_y.view, y, tolerance_of(dtype, 3e-6), "y");
      gelu_backward(dy, x, kind, x, {}, cpu());
      const Lying dev_again = placed(y, dtype, lie);
      gelu_backward(dev_dy.view, dev_x.view, kind, dev_x.view, dev_again.view, gpu());
      expect_near(dev_again.view, down(dev_y.view), tolerance_of(dtype, 1e-6), "y again");
      expect_near(dev_x.view, x, tolerance_of(dtype, 5e-6), "dx");
    }
  });
}

TEST_F(CudaRows, GeluStandsLargeAndInfiniteInputs) {
  const Tensor x = empty({4}, DType::f64), one = empty({4}, DType::f64);
  set(x, {-1e30, -50.0, 50.0, 1e30});
  set(one, {1.0, 1.0, 1.0, 1.0});
  const Tensor dev = up(x, DType::f32), dx = up(one, DType::f32);
  gelu_backward(dx, dev, Gelu::tanh, dx, {}, gpu());
  gelu_forward(dev, Gelu::tanh, dev, gpu());
  const auto slope = values(down(dx)), y = values(down(dev));
  EXPECT_NEAR(slope[0], 0.0, 1e-6);
  EXPECT_NEAR(slope[3], 1.0, 1e-6);
  EXPECT_EQ(y[1], 0.0);
  EXPECT_EQ(y[2], 50.0);
}

TEST_F(CudaRows, ElementwiseEqualsTheCpu) {
  for_cases([&](Size size, DType dtype, Lie lie) {
    const Shape shape{size.rows, size.columns};
    const Tensor a = random(shape, dtype, 1), b = random(shape, dtype, 2);
    const Tensor bias = random({size.columns}, dtype, 3), y = empty(shape, DType::f64);
    const Lying dev_a = placed(a, dtype, lie), dev_b = placed(b, dtype, lie);
    const Lying dev_y = placed(a, dtype, lie);
    add(a, b, y, cpu());
    add(dev_a.view, dev_b.view, dev_y.view, gpu());
    expect_near(dev_y.view, y, tolerance_of(dtype, 1e-7), "sum");
    accumulate(a, b, cpu());
    accumulate(dev_a.view, dev_b.view, gpu());
    expect_near(dev_b.view, b, tolerance_of(dtype, 1e-7), "accumulated");
    scale(a, 0.375, cpu());
    scale(dev_a.view, 0.375, gpu());
    expect_near(dev_a.view, a, tolerance_of(dtype, 1e-7), "scaled");
    copy(dev_a.view, dev_y.view, gpu());
    expect_near(dev_y.view, down(dev_a.view), 0.0, "copy");
    const Tensor biased = down(dev_y.view);
    add_bias(biased, bias, cpu());
    add_bias(dev_y.view, up(bias, dtype), gpu());
    expect_near(dev_y.view, biased, tolerance_of(dtype, 1e-7), "biased");
    for (const double value : {0.0, -1.5}) {
      fill(y, value, cpu());
      fill(dev_y.view, value, gpu());
      expect_near(dev_y.view, y, 0.0, "filled");
    }
  });
}

TEST_F(CudaRows, BiasGradientIsAddedInF32) {
  for_cases([&](Size size, DType dtype, Lie lie) {
    const Tensor dy = random({size.rows, size.columns}, dtype, 1);
    const Tensor db = random({size.columns}, DType::f32, 2);
    const Lying dev_dy = placed(dy, dtype, lie);
    const Tensor dev_db = up(db, DType::f32);
    bias_backward(dy, db, cpu());
    bias_backward(dev_dy.view, dev_db, gpu());
    expect_near(dev_db, db, 2e-5, "db");
  });
}

TEST_F(CudaRows, RmsNormEqualsTheCpu) {
  for_cases([&](Size size, DType dtype, Lie lie) {
    if (size.columns == 1) return;
    const Shape shape{size.rows, size.columns};
    const Tensor x = random(shape, dtype, 1), dy = random(shape, dtype, 2);
    const Tensor w = random({size.columns}, dtype, 3), dw = random({size.columns}, DType::f32, 4);
    const Tensor y = empty(shape, DType::f64), rstd = empty({size.rows}, DType::f64);
    const Lying dev_x = placed(x, dtype, lie), dev_dy = placed(dy, dtype, lie);
    const Lying dev_y = placed(x, dtype, lie);
    const Tensor dev_w = up(w, dtype), dev_dw = up(dw, DType::f32);
    const Tensor dev_rstd = device_empty({size.rows}, DType::f32);
    rms_norm_forward(x, w, 1e-5, y, rstd, cpu());
    rms_norm_forward(dev_x.view, dev_w, 1e-5, dev_y.view, dev_rstd, gpu());
    expect_near(dev_y.view, y, tolerance_of(dtype, 5e-6), "y");
    expect_near(dev_rstd, rstd, 5e-6, "rstd");
    rms_norm_backward_weight(dy, x, rstd, dw, cpu());
    rms_norm_backward_weight(dev_dy.view, dev_x.view, dev_rstd, dev_dw, gpu());
    expect_near(dev_dw, dw, 5e-5, "dw");
    rms_norm_backward_input(dy, x, w, rstd, dy, cpu());
    rms_norm_backward_input(dev_dy.view, dev_x.view, dev_w, dev_rstd, dev_dy.view, gpu());
    expect_near(dev_dy.view, dy, tolerance_of(dtype, 5e-5), "dx");
  });
}

TEST_F(CudaRows, LayerNormEqualsTheCpu) {
  for_cases([&](Size size, DType dtype, Lie lie) {
    if (size.columns == 1) return;
    const Shape shape{size.rows, size.columns};
    const Tensor x = random(shape, dtype, 1), dy = random(shape, dtype, 2);
    const Tensor w = random({size.columns}, dtype, 3), b = random({size.columns}, dtype, 4);
    const Tensor dw = random({size.columns}, DType::f32, 5), db = copy_of(dw);
    const Tensor y = empty(shape, DType::f64), mean = empty({size.rows}, DType::f64);
    const Tensor rstd = empty({size.rows}, DType::f64);
    const Lying dev_x = placed(x, dtype, lie), dev_dy = placed(dy, dtype, lie);
    const Lying dev_y = placed(x, dtype, lie);
    const Tensor dev_w = up(w, dtype), dev_b = up(b, dtype);
    const Tensor dev_dw = up(dw, DType::f32), dev_db = up(db, DType::f32);
    const Tensor dev_mean = device_empty({size.rows}, DType::f32);
    const Tensor dev_rstd = device_empty({size.rows}, DType::f32);
    layer_norm_forward(x, w, b, 1e-5, y, mean, rstd, cpu());
    layer_norm_forward(dev_x.view, dev_w, dev_b, 1e-5, dev_y.view, dev_mean, dev_rstd, gpu());
    expect_near(dev_y.view, y, tolerance_of(dtype, 2e-5), "y");
    expect_near(dev_mean, mean, 1e-6, "mean");
    expect_near(dev_rstd, rstd, 2e-5, "rstd");
    layer_norm_backward_weight(dy, x, mean, rstd, dw, db, cpu());
    layer_norm_backward_weight(dev_dy.view, dev_x.view, dev_mean, dev_rstd, dev_dw, dev_db, gpu());
    expect_near(dev_dw, dw, 1e-4, "dw");
    expect_near(dev_db, db, 5e-5, "db");
    layer_norm_backward_input(dy, x, w, mean, rstd, dy, cpu());
    layer_norm_backward_input(dev_dy.view, dev_x.view, dev_w, dev_mean, dev_rstd, dev_dy.view,
                              gpu());
    expect_near(dev_dy.view, dy, tolerance_of(dtype, 4e-4), "dx");
  });
}

TEST_F(CudaRows, NormBackwardInOnePassEqualsTheCpu) {
  for_cases([&](Size size, DType dtype, Lie lie) {
    if (size.columns == 1) return;
    const Shape shape{size.rows, size.columns};
    const Tensor x = random(shape, dtype, 1), dy = random(shape, dtype, 2);
    const Tensor w = random({size.columns}, dtype, 3), addend = random(shape, dtype, 4);
    const Tensor y = empty(shape, DType::f64), mean = empty({size.rows}, DType::f64);
    const Tensor rstd = empty({size.rows}, DType::f64), dx = empty(shape, DType::f64);
    const Lying dev_x = placed(x, dtype, lie), dev_dy = placed(dy, dtype, lie);
    const Lying dev_addend = placed(addend, dtype, lie), dev_dx = placed(x, dtype, lie);
    const Tensor dev_w = up(w, dtype);
    const Tensor dw = random({size.columns}, DType::f32, 5), db = copy_of(dw);
    const Tensor dev_dw = up(dw, DType::f32), dev_db = up(db, DType::f32);
    layer_norm_forward(x, w, w, 1e-5, y, mean, rstd, cpu());
    layer_norm_backward(dy, x, w, mean, rstd, addend, dx, dw, db, cpu());
    layer_norm_backward(dev_dy.view, dev_x.view, dev_w, up(mean, DType::f32), up(rstd, DType::f32),
                        dev_addend.view, dev_dx.view, dev_dw, dev_db, gpu());
    expect_near(dev_dx.view, dx, tolerance_of(dtype, 4e-4), "dx of layer norm");
    expect_near(dev_dw, dw, 1e-4, "dw of layer norm");
    expect_near(dev_db, db, 1e-4, "db of layer norm");
    rms_norm_forward(x, w, 1e-5, y, rstd, cpu());
    rms_norm_backward(dy, x, w, rstd, {}, dx, dw, cpu());
    rms_norm_backward(dev_dy.view, dev_x.view, dev_w, up(rstd, DType::f32), {}, dev_dx.view, dev_dw,
                      gpu());
    expect_near(dev_dx.view, dx, tolerance_of(dtype, 5e-5), "dx of RMS norm");
    expect_near(dev_dw, dw, 1e-4, "dw of RMS norm");
  });
}

TEST_F(CudaRows, NormsWorkOnHeadsInsideAFusedProjection) {
  for (const DType dtype : kGpuFloats) {
    const std::int64_t heads = 3, width = 64;
    const Tensor fused = random({2, 5, 3 * heads * width}, dtype, 11),
                 w = random({width}, dtype, 12);
    const Tensor dw = random({width}, DType::f32, 13);
    const Tensor dev_fused = up(fused, dtype), dev_w = up(w, dtype), dev_dw = up(dw, DType::f32);
    const auto q_of = [&](const Tensor& t) {
      return t.slice(2, 0, heads * width).view({2, 5, heads, width});
    };
    const Tensor rstd = empty({30}, DType::f64), dev_rstd = device_empty({30}, DType::f32);
    rms_norm_forward(q_of(fused), w, 1e-5, q_of(fused), rstd, cpu());
    rms_norm_forward(q_of(dev_fused), dev_w, 1e-5, q_of(dev_fused), dev_rstd, gpu());
    expect_near(dev_fused, fused, tolerance_of(dtype, 5e-6), "normed");
    const Tensor same = down(dev_fused);
    rms_norm_backward_weight(q_of(same), q_of(same), rstd, dw, cpu());
    rms_norm_backward_weight(q_of(dev_fused), q_of(dev_fused), dev_rstd, dev_dw, gpu());
    expect_near(dev_dw, dw, 5e-5, "dw");
  }
}

TEST_F(CudaRows, SumsOverRowsAreTheSameEveryTime) {
  const Tensor dy = up(random({4099, 264}, DType::bf16, 1), DType::bf16);
  const auto sum = [&] {
    const Tensor db = device_empty({264}, DType::f32);
    fill(db, 0.0, gpu());
    bias_backward(dy, db, gpu());
    return down(db);
  };
  expect_same_bits(sum(), sum());
}

}  // namespace
}  // namespace heddle::ops
