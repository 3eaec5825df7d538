// Matrix products and attention, on a GPU.
#include "ops/attention.h"
#include "ops/cuda_testing.h"
#include "ops/gemm.h"

namespace heddle::ops {
namespace {

class CudaProducts : public OnGpu {};

TEST_F(CudaProducts, GemmEqualsTheCpu) {
  struct Types {
    DType in, out;
    double tolerance;
  };
  // A result in bf16 is off by half a unit in its last place: at most 2^-8 of the largest one.
  const Types types[] = {{DType::f32, DType::f32, 3e-6},
                         {DType::bf16, DType::bf16, 0x1.0p-8 + 1e-5},
                         {DType::bf16, DType::f32, 3e-6}};
  using Sizes = std::array<std::int64_t, 3>;
  for (const auto& [in, out, tolerance] : types) {
    for (const auto [m, n, k] : {Sizes{1, 1, 1},
                                 {3, 127, 129},
                                 {129, 3, 127},
                                 {127, 129, 3},
                                 {64, 256, 128},
                                 {1, 300, 64},
                                 {257, 1, 40}}) {
      for (const bool ta : {false, true}) {
        for (const bool tb : {false, true}) {
          for (const Lie lie : {Lie::contiguous, Lie::odd}) {
            SCOPED_TRACE(fmt::format("{} to {} {}x{}x{} {} {} lie {}", name_of(in), name_of(out), m,
                                     n, k, ta, tb, static_cast<int>(lie)));
            const auto transpose = [](bool yes) { return yes ? Transpose::yes : Transpose::no; };
            const Tensor a = random(ta ? Shape{k, m} : Shape{m, k}, in, 1);
            const Tensor b = random(tb ? Shape{n, k} : Shape{k, n}, in, 2);
            const Tensor c = random({m, n}, out, 3), bias = random({n}, out, 4);
            const Lying dev_a(a, in, lie, gpu()), dev_b(b, in, lie, gpu());
            const Lying dev_c(c, out, lie, gpu());
            for (const GemmScale scale : {GemmScale{}, GemmScale{.alpha = 0.5, .beta = 1.0}}) {
              copy(down(dev_c.view), c, cpu());  // both add to the same, rounded, values
              gemm(a, transpose(ta), b, transpose(tb), c, scale, cpu());
              gemm(dev_a.view, transpose(ta), dev_b.view, transpose(tb), dev_c.view, scale, gpu());
              expect_relative(dev_c.view, c, tolerance, "product");
            }
            const Tensor addend = random({m, n}, out, 5);
            const Lying dev_addend(addend, out, lie, gpu());
            gemm_add(a, transpose(ta), b, transpose(tb), bias, addend, c, cpu());
            gemm_add(dev_a.view, transpose(ta), dev_b.view, transpose(tb), up(bias, out),
                     dev_addend.view, dev_c.view, gpu());
            // cuBLASLt's kernels for odd rows round the product before they add to it.
            expect_relative(dev_c.view, c, 2 * tolerance, "product with bias and addend");
            gemm_add(a, transpose(ta), b, transpose(tb), bias, {}, c, cpu());
            gemm_add(dev_a.view, transpose(ta), dev_b.view, transpose(tb), up(bias, out), {},
                     dev_c.view, gpu());
            expect_relative(dev_c.view, c, 2 * tolerance, "product with bias");
          }
        }
      }
    }
  }
}

/// Outside deterministic mode a large product is first tried in several ways.
TEST_F(CudaProducts, TrialsLeaveNothingBehind) {
  gpu().set_deterministic(false);
  const std::int64_t m = 1024, n = 1000, k = 1024;
  const Tensor a = random({k, m}, DType::bf16, 1), b = random({k, n}, DType::bf16, 2);
  const Tensor c = random({m, n}, DType::f32, 3), dev_c = up(c, DType::f32);
  const Tensor dev_a = up(a, DType::bf16), dev_b = up(b, DType::bf16);
  for (int step = 0; step < 2; ++step) {
    gemm(a, Transpose::yes, b, Transpose::no, c, {.beta = 1.0}, cpu());
    gemm(dev_a, Transpose::yes, dev_b, Transpose::no, dev_c, {.beta = 1.0}, gpu());
    expect_relative(dev_c, c, 3e-6, "sum of products");
  }
}

/// Small ones take two steps; those with many tiles one, where the device is a Hopper.
TEST_F(CudaProducts, SwigluInAProductEqualsTheCpu) {
  using Sizes = std::array<std::int64_t, 3>;
  for (const DType dtype : kGpuFloats) {
    for (const auto [tokens, width, summed] :
         {Sizes{3, 5, 7}, {130, 40, 72}, {1801, 3176, 136}, {4001, 3176, 72}}) {
      if (dtype == DType::f32 && tokens > 1000) continue;
      SCOPED_TRACE(fmt::format("{} {}x{}x{}", name_of(dtype), tokens, width, summed));
      const double tolerance = dtype == DType::f32 ? 5e-6 : 2e-2;
      const double range = 2.0 / std::sqrt(static_cast<double>(summed));
      const Tensor x = random({tokens, summed}, dtype, 1);
      const Tensor w = random({2 * width, summed}, dtype, 2, range);
      const Tensor v = random({summed, width}, dtype, 3, range);
      const Tensor both = random({tokens, 2 * width}, dtype, 4),
                   y = random({tokens, width}, dtype, 5);
      const Tensor dy = empty({tokens, width}, DType::f64);
      const Lying dev_both(both, dtype, Lie::wide, gpu()), dev_y(y, dtype, Lie::wide, gpu());
      const Lying dev_gradient(both, dtype, Lie::wide, gpu());
      const Tensor dev_x = up(x, dtype), dev_w = up(w, dtype), dev_v = up(v, dtype);
      const Tensor dev_dy = device_unwritten({tokens, width}, dtype);
      gemm_swiglu(x, w, both, y, cpu());
      gemm_swiglu(dev_x, dev_w, dev_both.view, dev_y.view, gpu());
      expect_relative(dev_both.view, both, tolerance, "gate and up");
      expect_relative(dev_y.view, y, tolerance, "y");

      copy(down(dev_both.view), both, cpu());
      gemm_swiglu_backward(x, v, dy, both, both, y, cpu());
      fill(dev_y.view, 0.0, gpu());
      gemm_swiglu_backward(dev_x, dev_v, dev_dy, dev_both.view, dev_gradient.view, dev_y.view,
                           gpu());
      expect_relative(dev_gradient.view, both, tolerance, "gradients");
      expect_relative(dev_y.view, y, tolerance, "y again");
      gemm_swiglu_backward(dev_x, dev_v, dev_dy, dev_both.view, dev_both.view, dev_y.view, gpu());
      expect_same_bits(down(dev_both.view), down(dev_gradient.view));
    }
  }
}

TEST_F(CudaProducts, AnEmptyProductScales) {
  const Tensor a = device_empty({3, 0}, DType::f32), b = device_empty({0, 4}, DType::f32);
  const Tensor c = up(random({3, 4}, DType::f32, 1), DType::f32), before = down(c);
  gemm(a, Transpose::no, b, Transpose::no, c, {.beta = 1.0}, gpu());
  expect_same_bits(down(c), before);
  gemm(a, Transpose::no, b, Transpose::no, c, {}, gpu());
  for (const double value : values(down(c))) EXPECT_EQ(value, 0.0);
}

struct Sizes {
  std::int64_t batch, queries, keys, heads, groups, width;
  std::int64_t query_offset = 0;
  std::int64_t document = 0;  ///< length of documents; 0: no mask
  std::int64_t copies = 1;    ///< of the batch on the GPU; the CPU computes one
  std::int64_t window = 0;    ///< of keys that a query sees; 0: all before it
  double cap = 0.0;           ///< of scores
};

class CudaAttention : public CudaProducts {
 protected:
  AttentionMask mask_of(const Sizes& x) {
    AttentionMask mask;
    mask.query_offset = x.query_offset;
    if (x.document == 0) return mask;
    mask.first_key_BS = empty({x.batch, x.queries}, DType::i32);
    const auto first = mask.first_key_BS.host<std::int32_t>();
    for (std::size_t i = 0; i < first.size(); ++i) {
      const auto s = static_cast<std::int64_t>(i) % x.queries + x.query_offset;
      const auto b = static_cast<std::int64_t>(i) / x.queries;
      first[i] = static_cast<std::int32_t>(
          std::max<std::int64_t>(0, (s + b) / x.document * x.document - b));
    }
    return mask;
  }
  static Tensor growing(const Tensor& k_BTGK, double growth, DType dtype) {
    const std::int64_t keys = k_BTGK.size(1), row = k_BTGK.size(2) * k_BTGK.size(3);
    const auto values = k_BTGK.host<double>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t key = static_cast<std::int64_t>(i) / row % keys;
      values[i] *= 1.0 + (growth - 1.0) * static_cast<double>(key) / static_cast<double>(keys);
    }
    return round_trip(k_BTGK, dtype);
  }
  Tensor repeated(const Tensor& t, std::int64_t copies) {
    if (copies == 1) return t;
    Shape shape = t.shape();
    shape.set(0, copies * t.size(0));
    const Tensor all = empty(shape, t.dtype());
    for (std::int64_t i = 0; i < copies; ++i) {
      copy(t, all.slice(0, i * t.size(0), (i + 1) * t.size(0)), cpu());
    }
    return all;
  }
  AttentionMask on_device(const AttentionMask& mask) {
    AttentionMask result = mask;
    if (mask.first_key_BS.defined()) result.first_key_BS = up(mask.first_key_BS);
    return result;
  }
  /// The mask with the window, made where `first_key_BS` is.
  static AttentionMask in_window(const AttentionMask& mask, const Sizes& x,
                                 const Tensor& first_key_BS, Stream& stream) {
    if (x.window == 0) return mask;
    return ops::in_window(mask, x.window, first_key_BS, stream);
  }

  /// With `growth` the scores of later keys are up to so many times larger.
  void check(const Sizes& x, DType dtype, bool with_gradients, double growth = 1.0) {
    SCOPED_TRACE(
        fmt::format("{} B{} S{} T{} H{} G{} K{} offset {} document {} copies {} window {} "
                    "cap {}{}",
                    name_of(dtype), x.batch, x.queries, x.keys, x.heads, x.groups, x.width,
                    x.query_offset, x.document, x.copies, x.window, x.cap,
                    gpu().is_deterministic() ? "" : ", sums in any order"));
    const ScoreRule scale(1.0 / std::sqrt(static_cast<double>(x.width)), x.cap);
    const double tolerance = dtype == DType::f32 ? 5e-6 : 2e-2;
    const Shape query_shape{x.batch, x.queries, x.heads, x.width};
    const Shape key_shape{x.batch, x.keys, x.groups, x.width};
    const Shape row_shape{x.batch, x.heads, x.queries};
    const Tensor q = random(query_shape, dtype, 1);
    const Tensor k = growing(random(key_shape, dtype, 2), growth, dtype);
    const Tensor v = random(key_shape, dtype, 3), dout = random(query_shape, dtype, 4);
    const Tensor out = empty(query_shape, DType::f64), lse = empty(row_shape, DType::f64);
    const auto all = [&](const Tensor& t) { return repeated(t, x.copies); };
    const Tensor dev_q = up(all(q), dtype), dev_k = up(all(k), dtype), dev_v = up(all(v), dtype);
    const Tensor dev_out = device_unwritten(dev_q.shape(), dtype);
    const Shape dev_row_shape{x.copies * x.batch, x.heads, x.queries};
    const Tensor dev_lse = device_unwritten(dev_row_shape, DType::f32);
    const Shape token_shape{x.batch, x.queries};
    const AttentionMask plain = mask_of(x);
    const AttentionMask mask = in_window(plain, x, empty(token_shape, DType::i32), cpu());
    const AttentionMask dev_mask =
        in_window(on_device(plain), x, device_empty(token_shape, DType::i32), gpu());
    attention_forward(q, k, v, mask, scale, out, lse, cpu());
    attention_forward(dev_q, dev_k, dev_v, dev_mask, scale, dev_out, dev_lse, gpu());
    expect_relative(dev_out, all(out), tolerance, "out");
    expect_relative(dev_lse, all(lse), dtype == DType::f32 ? 5e-6 : 1e-3, "lse");
    if (!with_gradients) return;
    const Tensor dq = empty(query_shape, DType::f64), delta = empty(row_shape, DType::f64);
    const Tensor dk = empty(key_shape, DType::f64), dv = empty(key_shape, DType::f64);
    const Tensor dev_dq = device_unwritten(dev_q.shape(), dtype);
    const Tensor dev_dk = device_unwritten(dev_k.shape(), dtype),
                 dev_dv = device_unwritten(dev_k.shape(), dtype);
    const Tensor dev_delta = device_empty(dev_row_shape, DType::f32),
                 dev_dout = up(all(dout), dtype);
    attention_backward(dout, q, k, v, out, lse, mask, scale, dq, dk, dv, delta, cpu());
    attention_backward(dev_dout, dev_q, dev_k, dev_v, dev_out, dev_lse, dev_mask, scale, dev_dq,
                       dev_dk, dev_dv, dev_delta, gpu());
    expect_relative(dev_dq, all(dq), tolerance, "dq");
    expect_relative(dev_dk, all(dk), tolerance, "dk");
    expect_relative(dev_dv, all(dv), tolerance, "dv");
  }
};

TEST_F(CudaAttention, EqualsTheCpuInTraining) {
  for (const DType dtype : kGpuFloats) {
    for (const Sizes& sizes :
         {Sizes{1, 1, 1, 1, 1, 1}, Sizes{1, 3, 3, 1, 1, 3}, Sizes{2, 127, 127, 2, 2, 16},
          Sizes{1, 129, 129, 3, 1, 20}, Sizes{2, 65, 65, 6, 2, 64}, Sizes{1, 64, 64, 4, 1, 127},
          Sizes{1, 200, 200, 1, 1, 129}, Sizes{1, 129, 129, 4, 4, 80}, Sizes{2, 256, 256, 4, 2, 64},
          Sizes{1, 128, 128, 2, 1, 128}, Sizes{1, 70, 70, 2, 1, 256},
          Sizes{2, 127, 127, 4, 2, 32, 0, 5}, Sizes{1, 300, 300, 2, 1, 8, 0, 150},
          Sizes{3, 129, 129, 2, 2, 64, 0, 40}, Sizes{2, 200, 200, 2, 1, 128, 0, 33}}) {
      check(sizes, dtype, true);
    }
  }
}

TEST_F(CudaAttention, EqualsTheCpuOverManyTiles) {
  for (const Sizes& sizes :
       {Sizes{2, 512, 512, 5, 5, 64}, Sizes{1, 1000, 1000, 4, 1, 64}, Sizes{1, 999, 999, 2, 1, 128},
        Sizes{1, 500, 700, 4, 2, 64, 200}, Sizes{1, 500, 700, 2, 1, 128, 200},
        Sizes{2, 900, 900, 2, 1, 64, 0, 411}}) {
    check(sizes, DType::bf16, false);
  }
}

TEST_F(CudaAttention, TakesScoresThatGrowBeyondAllEarlierOnes) {
  for (const Sizes& sizes : {Sizes{1, 700, 700, 3, 1, 64}, Sizes{1, 600, 600, 2, 1, 64, 0, 500},
                             Sizes{1, 600, 600, 2, 1, 128, 0, 500}}) {
    check(sizes, DType::bf16, false, 60.0);
  }
}

TEST_F(CudaAttention, StaysInsideDocuments) {
  for (const Sizes& sizes :
       {Sizes{1, 1, 1, 2, 1, 64, 0, 1}, Sizes{2, 63, 63, 2, 1, 64, 0, 20},
        Sizes{2, 129, 129, 4, 2, 64, 0, 128}, Sizes{1, 300, 300, 4, 1, 64, 0, 3},
        Sizes{2, 1024, 1024, 4, 2, 64, 0, 301}, Sizes{1, 1024, 1024, 2, 2, 64, 0, 64},
        Sizes{1, 1024, 1024, 3, 1, 64, 0, 1000}, Sizes{1, 1, 1, 1, 1, 128, 0, 1},
        Sizes{2, 63, 63, 4, 2, 128, 0, 31}, Sizes{1, 129, 129, 2, 1, 128, 0, 129},
        Sizes{1, 1024, 1024, 2, 1, 128, 0, 128}, Sizes{2, 1024, 1024, 6, 2, 128, 0, 77},
        Sizes{2, 300, 300, 4, 1, 80, 0, 100}, Sizes{1, 300, 300, 2, 1, 96, 0, 7},
        Sizes{2, 300, 300, 6, 2, 48, 0, 130}, Sizes{1, 129, 129, 2, 1, 16, 0, 64}}) {
    check(sizes, DType::bf16, true);
  }
}

TEST_F(CudaAttention, StaysInsideWindows) {
  for (const bool in_order : {true, false}) {
    gpu().set_deterministic(in_order);
    for (const std::int64_t width : {64, 128, 80}) {
      for (const auto& [queries, document, window] : {std::array<std::int64_t, 3>{63, 0, 2},
                                                      {129, 0, 20},
                                                      {300, 0, 64},
                                                      {513, 0, 129},
                                                      {300, 101, 70},
                                                      {100, 0, 4096}}) {
        check({2, queries, queries, 2, 1, width, 0, document, 1, window}, DType::bf16, true);
      }
    }
  }
  check({1, 200, 200, 2, 1, 256, 0, 0, 1, 33}, DType::bf16, true);
  check({2, 513, 513, 4, 2, 256, 0, 0, 1, 128}, DType::bf16, true);
  check({2, 300, 300, 4, 2, 256, 0, 101, 1, 70}, DType::bf16, true);
  check({4, 1100, 1100, 16, 8, 128, 0, 0, 1, 70}, DType::bf16, true);  // jobs of all heads
  check({1, 200, 200, 2, 1, 64, 0, 0, 1, 33}, DType::f32, true);
  check({2, 70, 300, 4, 2, 64, 230, 0, 1, 90}, DType::bf16, false);
}

TEST_F(CudaAttention, CapsScores) {
  for (const bool in_order : {true, false}) {
    gpu().set_deterministic(in_order);
    for (const DType dtype : kGpuFloats) {
      for (const std::int64_t width : {64, 128, 256}) {
        check({2, 129, 129, 4, 2, width, 0, 0, 1, 0, 0.8}, dtype, true);
        check({1, 300, 300, 2, 1, width, 0, 120, 1, 50, 2.0}, dtype, true);
        check({1, 300, 300, 4, 2, width, 0, 0, 1, 140, 50.0}, dtype, true);
        check({1, 1, 200, 4, 2, width, 199, 0, 1, 30, 1.5}, dtype, false);
      }
    }
    // Scores far beyond the cap.
    for (const std::int64_t width : {64, 128, 256}) {
      check({1, 200, 200, 2, 1, width, 0, 0, 1, 0, 20.0}, DType::bf16, true, 30.0);
    }
  }
}

// Tiles of keys that are seen whole, between those that are not; of the former scores may be all
// small beside the cap, or grow beyond that.
TEST_F(CudaAttention, CapsScoresAndSeesWindowsOverManyTiles) {
  gpu().set_deterministic(false);
  for (const std::int64_t width : {64, 128}) {
    for (const std::int64_t queries : {1000, 1001}) {
      for (const auto& [document, window] : {std::array<std::int64_t, 2>{0, 0},
                                             {0, 512},
                                             {0, 449},
                                             {0, 577},
                                             {610, 400},
                                             {450, 0}}) {
        for (const double cap : {0.0, 50.0}) {
          check({1, queries, queries, 4, 2, width, 0, document, 1, window, cap}, DType::bf16, true);
        }
      }
      check({1, queries, queries, 4, 2, width, 0, 0, 1, 0, 4.0}, DType::bf16, true, 8.0);
      check({1, queries, queries, 4, 2, width, 0, 0, 1, 0, 50.0}, DType::bf16, true, 10.0);
      check({1, queries, queries, 4, 2, width, 0, 0, 1, 600, 50.0}, DType::bf16, true, 60.0);
    }
    // Three heads have a piece of work, and half a piece is left for the last.
    check({2, 900, 900, 3, 1, width, 0, 0, 1, 320, 0.0}, DType::bf16, true);
    check({1, 901, 901, 5, 1, width, 0, 0, 1, 320, 30.0}, DType::bf16, true);
  }
}

TEST_F(CudaAttention, EqualsTheCpuWithSumsInAnyOrder) {
  gpu().set_deterministic(false);
  for (const Sizes& sizes :
       {Sizes{1, 1, 1, 2, 1, 64}, Sizes{2, 63, 63, 2, 2, 64}, Sizes{1, 64, 64, 4, 1, 64},
        Sizes{2, 65, 65, 6, 2, 64}, Sizes{2, 256, 256, 4, 2, 64}, Sizes{1, 333, 333, 6, 2, 64},
        Sizes{1, 700, 700, 3, 1, 64}, Sizes{5, 200, 200, 16, 16, 64}, Sizes{1, 128, 128, 2, 1, 128},
        Sizes{1, 1, 1, 2, 1, 64, 0, 1}, Sizes{2, 63, 63, 2, 1, 64, 0, 20},
        Sizes{2, 129, 129, 4, 2, 64, 0, 128}, Sizes{1, 300, 300, 4, 1, 64, 0, 3},
        Sizes{3, 500, 500, 2, 1, 64, 0, 129}, Sizes{2, 1024, 1024, 4, 2, 64, 0, 301},
        Sizes{1, 1024, 1024, 2, 2, 64, 0, 64}, Sizes{1, 1024, 1024, 3, 1, 64, 0, 1000},
        Sizes{1, 1024, 1024, 2, 1, 64, 0, 4096}}) {
    check(sizes, DType::bf16, true);
  }
}

TEST_F(CudaAttention, EqualsTheCpuForTheUsualSizesOfHeads) {
  for (const bool is_deterministic : {true, false}) {
    gpu().set_deterministic(is_deterministic);
    for (const DType dtype : kGpuFloats) {
      for (const std::int64_t width : {64, 80, 96, 128}) {
        check({2, 200, 200, 6, 2, width}, dtype, true);
        check({1, 333, 333, 4, 4, width}, dtype, true);
      }
    }
  }
}

// cuDNN keeps f32 sums of dq in the workspace, here more than that begins with, so that it grows
// while plans are tried.
TEST_F(CudaAttention, EqualsTheCpuWhereTheWorkspaceGrows) {
  gpu().set_deterministic(false);
  for (const auto& [groups, width] : {std::array{4, 80}, {4, 96}, {4, 128}, {2, 128}}) {
    check({.batch = 1,
           .queries = 512,
           .keys = 512,
           .heads = 4,
           .groups = groups,
           .width = width,
           .copies = 64},
          DType::bf16, true);
  }
}

TEST_F(CudaAttention, DecodesWithACacheOfEarlierKeys) {
  for (const DType dtype : kGpuFloats) {
    for (const Sizes& sizes :
         {Sizes{1, 1, 1, 2, 1, 64}, Sizes{2, 1, 129, 4, 4, 64, 128},
          Sizes{1, 1, 127, 8, 2, 64, 126}, Sizes{1, 5, 17, 6, 3, 32, 12},
          Sizes{1, 5, 40, 2, 2, 20, 12}, Sizes{2, 70, 200, 4, 1, 16, 130, 90},
          Sizes{1, 300, 1024, 4, 2, 64, 700}, Sizes{2, 129, 500, 2, 1, 128, 333, 150},
          Sizes{1, 16, 300, 4, 1, 80, 284, 290}}) {
      check(sizes, dtype, false);
    }
  }
}

TEST_F(CudaAttention, GradientsAreTheSameBitsEveryTime) {
  for (const std::int64_t width : {64, 128}) {
    for (const Sizes& x : {Sizes{3, 1500, 1500, 8, 2, width}, Sizes{3, 1500, 1500, 8, 8, width},
                           Sizes{3, 1500, 1500, 8, 2, width, 0, 420},
                           Sizes{3, 1500, 1500, 8, 4, width, 0, 0, 1, 500}}) {
      SCOPED_TRACE(
          fmt::format("K{} G{} document {} window {}", width, x.groups, x.document, x.window));
      const Shape queries{x.batch, x.queries, x.heads, width};
      const Shape keys{x.batch, x.keys, x.groups, width}, rows{x.batch, x.heads, x.queries};
      const auto given = [&](const Shape& shape, std::uint64_t seed) {
        return up(random(shape, DType::bf16, seed), DType::bf16);
      };
      const Tensor q = given(queries, 1), k = given(keys, 2), v = given(keys, 3);
      const Tensor dout = given(queries, 4), out = device_unwritten(queries, DType::bf16);
      const Tensor lse = device_unwritten(rows, DType::f32), delta = device_empty(rows, DType::f32);
      const AttentionMask mask = in_window(on_device(mask_of(x)), x,
                                           device_empty({x.batch, x.queries}, DType::i32), gpu());
      attention_forward(q, k, v, mask, 0.1, out, lse, gpu());
      std::vector<Tensor> first;
      for (int i = 0; i < 10; ++i) {
        const std::vector<Tensor> now{device_unwritten(queries, DType::bf16),
                                      device_unwritten(keys, DType::bf16),
                                      device_unwritten(keys, DType::bf16)};
        attention_backward(dout, q, k, v, out, lse, mask, 0.1, now[0], now[1], now[2], delta,
                           gpu());
        if (i == 0) first = {down(now[0]), down(now[1]), down(now[2])};
        for (std::size_t j = 0; j < 3; ++j) expect_same_bits(down(now[j]), first[j]);
      }
    }
  }
}

TEST_F(CudaAttention, TakesSlicesOfAFusedProjectionAndRepeatsItself) {
  const std::int64_t B = 2, S = 192, H = 6, G = 2, K = 64;
  for (const DType dtype : kGpuFloats) {
    for (const std::int64_t document : {0, 50}) {
      SCOPED_TRACE(fmt::format("{} document {}", name_of(dtype), document));
      const AttentionMask mask = mask_of({B, S, S, H, G, K, 0, document});
      const AttentionMask dev_mask = on_device(mask);
      const Tensor fused = random({B, S, (H + 2 * G) * K}, dtype, 1),
                   grads = empty(fused.shape(), DType::f64);
      const Tensor dout = random({B, S, H, K}, dtype, 2), out = empty(dout.shape(), DType::f64);
      const Tensor lse = empty({B, H, S}, DType::f64), delta = empty({B, H, S}, DType::f64);
      const auto part = [&](const Tensor& t, std::int64_t begin, std::int64_t heads) {
        return t.slice(2, begin * K, (begin + heads) * K).view({B, S, heads, K});
      };
      attention_forward(part(fused, 0, H), part(fused, H, G), part(fused, H + G, G), mask, 0.125,
                        out, lse, cpu());
      attention_backward(dout, part(fused, 0, H), part(fused, H, G), part(fused, H + G, G), out,
                         lse, mask, 0.125, part(grads, 0, H), part(grads, H, G),
                         part(grads, H + G, G), delta, cpu());
      const Tensor dev = up(fused, dtype), dev_dout = up(dout, dtype);
      const auto run = [&] {
        const Tensor dev_out = device_unwritten(out.shape(), dtype);
        const Tensor dev_grads = device_unwritten(fused.shape(), dtype);
        const Tensor dev_lse = device_unwritten({B, H, S}, DType::f32);
        const Tensor dev_delta = device_empty({B, H, S}, DType::f32);
        attention_forward(part(dev, 0, H), part(dev, H, G), part(dev, H + G, G), dev_mask, 0.125,
                          dev_out, dev_lse, gpu());
        attention_backward(dev_dout, part(dev, 0, H), part(dev, H, G), part(dev, H + G, G), dev_out,
                           dev_lse, dev_mask, 0.125, part(dev_grads, 0, H), part(dev_grads, H, G),
                           part(dev_grads, H + G, G), dev_delta, gpu());
        expect_relative(dev_out, out, dtype == DType::f32 ? 5e-6 : 2e-2, "out");
        return dev_grads;
      };
      const double tolerance = dtype == DType::f32 ? 5e-6 : 2e-2;
      const Tensor first = run();
      expect_relative(first, grads, tolerance, "gradients");
      expect_same_bits(down(run()), down(first));
      gpu().set_deterministic(false);
      expect_relative(run(), grads, tolerance, "gradients, sums in any order");
      gpu().set_deterministic(true);
    }
  }
}

}  // namespace
}  // namespace heddle::ops
