// Routing and products of experts, on a GPU.
#include <algorithm>
#include <limits>
#include <numeric>

#include "ops/cuda_testing.h"
#include "ops/embedding.h"
#include "ops/experts.h"

namespace heddle::ops {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class CudaExperts : public OnGpu {
 protected:
  Tensor device_ints(const Shape& shape) {
    const Tensor t = device_empty(shape, DType::i32);
    fill(t, -7.0, gpu());
    return t;
  }
};

/// Multiples of 2^-10: of two that differ, the scores differ by more than rounding.
Tensor coarse_logits(std::int64_t tokens, std::int64_t experts, std::uint64_t seed) {
  const Tensor logits = random_tensor({tokens, experts}, DType::f64, seed, 4.0);
  for (double& value : logits.host<double>()) value = std::round(value * 1024.0) / 1024.0;
  return logits;
}

const RouterRule kGpuRules[] = {
    {},
    {.renormalize = false},
    {.score = RouterRule::Score::sigmoid},
    {.score = RouterRule::Score::sigmoid, .renormalize = false, .scale = 2.5},
    {.score = RouterRule::Score::sigmoid, .scale = 2.5, .groups = 4, .kept_groups = 2},
    {.renormalize = true, .scale = 0.5, .groups = 2, .kept_groups = 1}};

struct RouterSize {
  std::int64_t tokens, experts, slots;
};

TEST_F(CudaExperts, RouteAndItsGradientEqualTheCpu) {
  for (const auto& [T, E, K] :
       {RouterSize{1, 4, 1}, RouterSize{37, 8, 2}, RouterSize{61, 64, 8}, RouterSize{50, 132, 6},
        RouterSize{9, 2000, 3}, RouterSize{0, 8, 2}}) {
    for (const RouterRule& rule : kGpuRules) {
      for (const bool has_bias : {false, true}) {
        SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts, {} groups, bias {}", T, K, E,
                                 rule.groups, has_bias));
        const Tensor logits = coarse_logits(T, E, 3), dweights = random({T, K}, DType::f32, 4);
        const Tensor bias = has_bias ? random({E}, DType::f32, 5, 0.3) : Tensor();
        const Tensor experts = empty({T, K}, DType::i32), weights = empty({T, K}, DType::f64);
        const Tensor dlogits = empty({T, E}, DType::f64), counts = empty({E + 1}, DType::f64);
        route(logits, rule, bias, experts, weights, cpu());
        const Tensor dev_logits = up(logits, DType::f32), dev_experts = device_ints({T, K});
        const Tensor dev_weights = device_unwritten({T, K}, DType::f32);
        route(dev_logits, rule, has_bias ? up(bias, DType::f32) : Tensor(), dev_experts,
              dev_weights, gpu());
        expect_same(dev_experts, experts, "experts");
        expect_near(dev_weights, weights, 2e-6, "weights");

        if (T > 1) experts.host<std::int32_t>()[0] = kAbsentRow;
        route_backward(dweights, logits, rule, experts, dlogits, cpu());
        const Tensor chosen = up(experts), dev_dlogits = device_unwritten({T, E}, DType::f32);
        route_backward(up(dweights, DType::f32), dev_logits, rule, chosen, dev_dlogits, gpu());
        expect_near(dev_dlogits, dlogits, 5e-6, "gradient of the logits");

        count_choices(experts, counts, cpu());
        const Tensor dev_counts = device_unwritten({E + 1}, DType::f32);
        count_choices(chosen, dev_counts, gpu());
        expect_near(dev_counts, counts, 0.0, "counts");
        for (const RouterLoss& loss : {RouterLoss{.balance = 0.3}, RouterLoss{.z = 0.2},
                                       RouterLoss{.balance = 0.1, .z = 0.4}}) {
          router_loss_backward(logits, rule, counts, loss, dlogits, cpu());
          router_loss_backward(dev_logits, rule, dev_counts, loss, dev_dlogits, gpu());
          expect_near(dev_dlogits, dlogits, 1e-5, "with the gradient of losses");
        }
      }
    }
  }
}

TEST_F(CudaExperts, OfEqualScoresTheLowerIndexIsChosenAndNanIsLessThanAll) {
  constexpr auto kBad = std::numeric_limits<float>::quiet_NaN();
  constexpr auto kInf = std::numeric_limits<float>::infinity();
  const Tensor logits = empty({7, 6}, DType::f32);
  const std::vector<float> of = {1,    2,     2,    0, 2,     1,    0,    0,    0,    0,     0,
                                 0,    kBad,  kBad, 1, kBad,  kBad, kBad, 1,    kBad, 2,     0,
                                 kBad, 3,     kInf, 0, kInf,  1,    2,    3,    0,    -kInf, -kInf,
                                 kBad, -kInf, 5,    0, -kInf, 0,    5,    kInf, -1};
  std::ranges::copy(of, logits.host<float>().begin());
  for (const RouterRule& rule : kGpuRules) {
    if (rule.groups > 2) continue;
    const Tensor experts = empty({7, 3}, DType::i32), weights = empty({7, 3}, DType::f32);
    const Tensor dev_experts = device_ints({7, 3}), dev_weights = device_empty({7, 3}, DType::f32);
    route(logits, rule, {}, experts, weights, cpu());
    route(up(logits), rule, {}, dev_experts, dev_weights, gpu());
    expect_same(dev_experts, experts, "experts");
  }
}

/// Choices of T tokens: `of(random number)` each.
Tensor choices(std::int64_t T, std::int64_t K,
               const std::function<std::int32_t(std::uint64_t)>& of) {
  const Tensor t = empty({T, K}, DType::i32);
  std::uint64_t i = 0;
  for (std::int32_t& choice : t.host<std::int32_t>()) choice = of(random_u64(17, i++));
  return t;
}

TEST_F(CudaExperts, OrderEqualsTheCpu) {
  struct Case {
    const char* what;
    std::int64_t experts;
    Tensor experts_TK;
  };
  const auto at_random = [](std::uint64_t x) { return static_cast<std::int32_t>(x % 64); };
  const auto skewed = [](std::uint64_t x) {
    return x % 5 == 0 ? kAbsentRow : static_cast<std::int32_t>(x / 8 % (x % 2 == 0 ? 3 : 60) + 2);
  };
  const Tensor each = choices(3000, 1, at_random);
  std::iota(each.host<std::int32_t>().rbegin(), each.host<std::int32_t>().rend(), 0);
  for (const auto& [what, E, experts] :
       {Case{"at random", 64, choices(5000, 8, at_random)},
        Case{"skewed, some absent", 64, choices(777, 3, skewed)},
        Case{"all to one", 5, choices(400, 2, [](auto) { return 3; })},
        Case{"all absent", 5, choices(40, 2, [](auto) { return kAbsentRow; })},
        Case{"one", 1, choices(1, 1, [](auto) { return 0; })}, Case{"each to its own", 3000, each},
        Case{"nothing", 4, choices(0, 2, at_random)}}) {
    SCOPED_TRACE(what);
    const Tensor offsets = empty({E + 1}, DType::i32),
                 tokens = empty({experts.count()}, DType::i32),
                 rows = empty(experts.shape(), DType::i32);
    order_by_expert(experts, offsets, tokens, rows, cpu());
    const Tensor dev_offsets = device_ints(offsets.shape()),
                 dev_tokens = device_ints(tokens.shape()), dev_rows = device_ints(rows.shape());
    order_by_expert(up(experts), dev_offsets, dev_tokens, dev_rows, gpu());
    expect_same(dev_offsets, offsets, "offsets");
    expect_same(dev_tokens, tokens, "tokens");
    expect_same(dev_rows, rows, "rows");
  }
}

struct RowsSize {
  std::int64_t tokens, slots, width;
};
const RowsSize kMovedRows[] = {{1, 1, 1}, {33, 2, 64}, {20, 8, 2056}, {7, 11, 129}, {0, 2, 8}};

/// The rows of choices among five experts, a seventh of which are absent.
Tensor rows_by_expert(std::int64_t T, std::int64_t K, Stream& stream) {
  const Tensor experts = choices(T, K, [](std::uint64_t x) {
    return x % 7 == 0 ? kAbsentRow : static_cast<std::int32_t>(x / 7 % 5);
  });
  const Tensor offsets = empty({6}, DType::i32), tokens = empty({T * K}, DType::i32);
  Tensor row = empty({T, K}, DType::i32);
  order_by_expert(experts, offsets, tokens, row, stream);
  return row;
}

TEST_F(CudaExperts, CombinedRowsEqualTheCpus) {
  for (const DType dtype : kGpuFloats) {
    for (const auto& [T, K, D] : kMovedRows) {
      for (const Lie lie : kLies) {
        SCOPED_TRACE(
            fmt::format("{} {}x{}x{} lie {}", name_of(dtype), T, K, D, static_cast<int>(lie)));
        const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(T * K, 1));
        const Tensor row = choices(T, K, [=](std::uint64_t x) {
          return x % 7 == 0 ? kAbsentRow : static_cast<std::int32_t>(x / 7 % count);
        });
        const Tensor rows = random({T * K, D}, dtype, 1), weights = random({T, K}, DType::f32, 2);
        const Tensor addend = random({T, D}, dtype, 3), y = empty({T, D}, DType::f64);
        const Lying dev_rows(rows, dtype, lie, gpu()), dev_addend(addend, dtype, lie, gpu());
        const Lying dev_y(addend, dtype, lie, gpu());
        const double tolerance = tolerance_of(dtype, 3e-6);
        combine_rows(rows, row, weights, addend, y, cpu());
        combine_rows(dev_rows.view, up(row), up(weights, DType::f32), dev_addend.view, dev_y.view,
                     gpu());
        expect_near(dev_y.view, y, tolerance, "weighted rows and addend");
        combine_rows(rows, row, {}, {}, y, cpu());
        combine_rows(dev_rows.view, up(row), {}, {}, dev_y.view, gpu());
        expect_near(dev_y.view, y, tolerance, "rows");
      }
    }
  }
}

TEST_F(CudaExperts, SpreadRowsEqualTheCpus) {
  for (const DType dtype : kGpuFloats) {
    for (const auto& [T, K, D] : kMovedRows) {
      for (const Lie lie : kLies) {
        SCOPED_TRACE(
            fmt::format("{} {}x{}x{} lie {}", name_of(dtype), T, K, D, static_cast<int>(lie)));
        const Tensor row = rows_by_expert(T, K, cpu());
        const Tensor x = random({T, D}, dtype, 1), rows = random({T * K, D}, dtype, 2);
        const Lying dev_x(x, dtype, lie, gpu()), dev_rows(rows, dtype, lie, gpu());
        spread_rows(x, row, rows, cpu());
        spread_rows(dev_x.view, up(row), dev_rows.view, gpu());
        expect_near(dev_rows.view, rows, 0.0, "rows");
      }
    }
  }
}

TEST_F(CudaExperts, BackwardOfSwigluEqualsTheCpus) {
  for (const DType dtype : kGpuFloats) {
    for (const auto& [T, K, F] : {RowsSize{1, 1, 1}, RowsSize{33, 2, 64}, RowsSize{5, 8, 1032},
                                  RowsSize{7, 3, 129}, RowsSize{0, 2, 8}}) {
      for (const Lie lie : kLies) {
        SCOPED_TRACE(
            fmt::format("{} {}x{}x{} lie {}", name_of(dtype), T, K, F, static_cast<int>(lie)));
        const Tensor row = rows_by_expert(T, K, cpu());
        const Tensor gate_up = random({T * K, 2 * F}, dtype, 1), dy = random({T * K, F}, dtype, 2);
        const Tensor weights = random({T, K}, DType::f32, 3), dweights = empty({T, K}, DType::f64);
        const Tensor y = random({T * K, F}, dtype, 4);
        const Lying dev(gate_up, dtype, lie, gpu()), dev_dy(dy, dtype, lie, gpu());
        const Lying dev_y(y, dtype, lie, gpu());
        const Tensor dev_dweights = device_unwritten({T, K}, DType::f32);
        expert_swiglu_backward(dy, gate_up, row, weights, gate_up, y, dweights, cpu());
        expert_swiglu_backward(dev_dy.view, dev.view, up(row), up(weights, DType::f32), dev.view,
                               dev_y.view, dev_dweights, gpu());
        const double tolerance = tolerance_of(dtype, 1e-5);
        expect_near(dev.view, gate_up, tolerance, "gradients");
        expect_near(dev_y.view, y, tolerance, "y");
        // A sum of F products: their rounding in f32 grows with it.
        expect_near(dev_dweights, dweights, 1e-4, "gradient of the weights");
      }
    }
  }
}

/// Rows of experts one after the other; behind them some of none.
struct Groups {
  const char* what;
  std::vector<std::int64_t> rows;
  std::int64_t behind = 0;

  std::int64_t used() const { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }
  std::int64_t total() const { return used() + behind; }
  Tensor offsets() const {
    std::vector<std::int32_t> at{0};
    for (const std::int64_t count : rows)
      at.push_back(at.back() + static_cast<std::int32_t>(count));
    return ids(at);
  }
};

/// 4:1 from the first to the last, and two without rows.
Groups skewed_groups(std::int64_t experts, std::int64_t mean) {
  Groups groups{"skewed", {}};
  for (std::int64_t e = 0; e < experts; ++e) {
    groups.rows.push_back(mean * 2 * (4 * (experts - 1) - 3 * e) / (5 * (experts - 1)));
  }
  groups.rows[static_cast<std::size_t>(experts / 2)] = 0;
  groups.rows[static_cast<std::size_t>(experts - 1)] = 0;
  return groups;
}

const Groups kGroups[] = {
    {"one row", {1}},
    {"around tiles", {63, 64, 65, 0, 127, 128, 129, 255, 256, 257, 383, 385}},
    {"all to one, some rows of none", {0, 0, 700, 0}, 77},
    {"few each, most of none", {3, 0, 1, 20, 5}, 300},
    {"none", {0, 0, 0}},
    {"all of none", {0, 0}, 100},
};

struct MatrixSize {
  std::int64_t inner, width;
};

std::string described(const Groups& groups, const MatrixSize& size, DType dtype, Lie lie) {
  return fmt::format("{} {} rows of {} experts, {}x{}, {} lie {}", groups.what, groups.total(),
                     groups.rows.size(), size.inner, size.width, name_of(dtype),
                     static_cast<int>(lie));
}

class CudaGroups : public CudaExperts {
 protected:
  /// Rows [used, total) of a host tensor are NaN: nobody may use them.
  static Tensor rows_of(const Groups& groups, std::int64_t width, DType dtype, std::uint64_t seed) {
    const Tensor t = random({groups.total(), width}, dtype, seed);
    fill_nan(t.slice(0, groups.used(), groups.total()));
    return t;
  }
  static void fill_nan(const Tensor& t) {
    Stream stream(1);
    fill(t, kNan, stream);
  }
  /// The rows of experts, and NaN in all others.
  void expect_rows(const Groups& groups, const Tensor& got, const Tensor& want, double tolerance,
                   const char* what) {
    const std::int64_t used = groups.used();
    const Tensor have = down(got);
    if (used > 0) expect_relative(got.slice(0, 0, used), want.slice(0, 0, used), tolerance, what);
    for (const double value : values(have.slice(0, used, groups.total()))) {
      ASSERT_TRUE(std::isnan(value)) << what << " of no expert";
    }
  }

  void check(const Groups& groups, const MatrixSize& size, DType dtype, Lie lie = Lie::contiguous) {
    const auto& [D, N] = size;
    const auto E = static_cast<std::int64_t>(groups.rows.size());
    SCOPED_TRACE(described(groups, size, dtype, lie));
    const double tolerance = dtype == DType::f32 ? 3e-6 : 0x1.0p-8 + 1e-5;
    const Tensor a = rows_of(groups, D, dtype, 1), offsets = groups.offsets();
    const Tensor dev_offsets = up(offsets);
    const Lying dev_a(a, dtype, lie, gpu());
    for (const Transpose transpose : {Transpose::yes, Transpose::no}) {
      const Tensor b = random(transpose == Transpose::yes ? Shape{E, N, D} : Shape{E, D, N}, dtype,
                              2, 2.0 / std::sqrt(static_cast<double>(D)));
      const Tensor c = empty({groups.total(), N}, DType::f64);
      fill_nan(c);
      const Lying dev_c(c, dtype, lie, gpu());
      grouped_gemm(a, b, transpose, offsets, c, cpu());
      grouped_gemm(dev_a.view, up(b, dtype), transpose, dev_offsets, dev_c.view, gpu());
      expect_rows(groups, dev_c.view, c, tolerance,
                  transpose == Transpose::yes ? "rows times b^T" : "rows times b");
    }
    const Tensor d = rows_of(groups, N, dtype, 3), before = random({E, D, N}, DType::f32, 4);
    const Lying dev_d(d, dtype, lie, gpu());
    for (const double beta : {0.0, 1.0, 0.5}) {
      const Tensor c = copy_of(before);
      if (beta == 0.0) fill_nan(c);
      const Tensor dev_c = up(c, DType::f32), again = up(c, DType::f32);
      grouped_gemm_weight(a, d, offsets, beta, c, cpu());
      grouped_gemm_weight(dev_a.view, dev_d.view, dev_offsets, beta, dev_c, gpu());
      expect_relative(dev_c, c, 5e-6, "gradient of the matrices");
      grouped_gemm_weight(dev_a.view, dev_d.view, dev_offsets, beta, again, gpu());
      expect_same_bits(down(again), down(dev_c));
      for (std::int64_t e = 0; e < E; ++e) {
        if (groups.rows[static_cast<std::size_t>(e)] > 0) continue;
        const auto of = values(down(dev_c.select(0, e))), was = values(before.select(0, e));
        for (std::size_t i = 0; i < of.size(); ++i) ASSERT_EQ(of[i], beta * was[i]);
      }
      check_parts(groups, dev_a.view, dev_d.view, beta, before, c);
    }
  }

  /// The gradient of the matrices from parts of the rows, cut at tiles, within them and nowhere.
  void check_parts(const Groups& groups, const Tensor& dev_a, const Tensor& dev_d, double beta,
                   const Tensor& before, const Tensor& want) {
    const std::int64_t rows = dev_a.size(0);
    const Tensor dev_offsets = up(groups.offsets());
    if (rows == 0) return;
    for (const std::int64_t part : {(rows + 1) / 2, std::int64_t{64}, std::int64_t{250}, rows}) {
      if (rows / part > 40) continue;
      SCOPED_TRACE(fmt::format("parts of {} rows, beta {}", part, beta));
      const Tensor start = copy_of(before);
      if (beta == 0.0) fill_nan(start);
      const Tensor sum = up(start, DType::f32), again = up(start, DType::f32);
      for (const Tensor& to : {sum, again}) {
        for (std::int64_t first = 0; first < rows; first += part) {
          const std::int64_t end = std::min(first + part, rows);
          grouped_gemm_weight_part(dev_a.slice(0, first, end), dev_d.slice(0, first, end),
                                   dev_offsets, first, beta, to, gpu());
        }
      }
      expect_relative(sum, want, 5e-6, "gradient of the matrices by parts");
      expect_same_bits(down(again), down(sum));
    }
  }

  /// Columns of results and of gradients, as parts of a row: bit by bit what all of them are.
  void check_columns(const Groups& groups, const MatrixSize& size, DType dtype) {
    const auto& [D, N] = size;
    const auto E = static_cast<std::int64_t>(groups.rows.size());
    SCOPED_TRACE(described(groups, size, dtype, Lie::contiguous));
    const std::int64_t R = groups.total(), used = groups.used(), half = N / 128 * 64;
    if (used == 0) return;
    const Tensor a = up(rows_of(groups, D, dtype, 1), dtype),
                 d = up(rows_of(groups, N, dtype, 3), dtype), offsets = up(groups.offsets());
    const std::pair<std::int64_t, std::int64_t> parts[] = {{0, half}, {half, N}};
    for (const Transpose transpose : {Transpose::yes, Transpose::no}) {
      const bool is_along = transpose == Transpose::yes;
      const Tensor b = up(random(is_along ? Shape{E, N, D} : Shape{E, D, N}, dtype, 2), dtype),
                   c = device_unwritten({R, N}, dtype);
      grouped_gemm(a, b, transpose, offsets, c, gpu());
      for (const auto& [begin, end] : parts) {
        const Tensor made = device_unwritten({R, end - begin}, dtype);
        grouped_gemm(a, b.slice(is_along ? 1 : 2, begin, end), transpose, offsets, made, gpu());
        expect_near(made.slice(0, 0, used), down(c.slice(0, 0, used).slice(1, begin, end)), 0.0,
                    is_along ? "columns of rows times b^T" : "columns of rows times b");
      }
    }
    const Tensor whole = device_unwritten({E, D, N}, DType::f32),
                 right = device_unwritten({E, D, N}, DType::f32);
    const Tensor turned = device_unwritten({E, N, D}, DType::f32),
                 left = device_unwritten({E, N, D}, DType::f32);
    grouped_gemm_weight(a, d, offsets, 0.0, whole, gpu());
    grouped_gemm_weight(d, a, offsets, 0.0, turned, gpu());
    for (const auto& [begin, end] : parts) {
      const Tensor columns = device_empty({R, end - begin}, dtype);
      copy(d.slice(1, begin, end), columns, gpu());
      grouped_gemm_weight(a, columns, offsets, 0.0, right.slice(2, begin, end), gpu());
      grouped_gemm_weight(columns, a, offsets, 0.0, left.slice(1, begin, end), gpu());
    }
    expect_same_bits(down(right), down(whole));
    expect_same_bits(down(left), down(turned));
  }

  void check_swiglu(const Groups& groups, const MatrixSize& size, DType dtype,
                    Lie lie = Lie::contiguous) {
    const auto& [D, F] = size;
    const auto E = static_cast<std::int64_t>(groups.rows.size());
    const std::int64_t R = groups.total();
    SCOPED_TRACE(described(groups, size, dtype, lie));
    const double tolerance = dtype == DType::f32 ? 1e-5 : 0x1.0p-7;
    const Tensor x = rows_of(groups, D, dtype, 1), offsets = groups.offsets();
    const Tensor weights = random({E, 2 * F, D}, dtype, 2, 2.0 / std::sqrt(static_cast<double>(D)));
    const Tensor gate_up = empty({R, 2 * F}, DType::f64), y = empty({R, F}, DType::f64);
    fill_nan(gate_up);
    fill_nan(y);
    const Lying dev_x(x, dtype, lie, gpu()), dev_gate_up(gate_up, dtype, lie, gpu()),
        dev_y(y, dtype, lie, gpu());
    const Tensor dev_offsets = up(offsets);
    grouped_swiglu(x, weights, offsets, gate_up, y, cpu());
    grouped_swiglu(dev_x.view, up(weights, dtype), dev_offsets, dev_gate_up.view, dev_y.view,
                   gpu());
    expect_rows(groups, dev_gate_up.view, gate_up, tolerance, "gate and up");
    expect_rows(groups, dev_y.view, y, tolerance, "y");
  }

  void check_swiglu_backward(const Groups& groups, const MatrixSize& size, DType dtype,
                             Lie lie = Lie::contiguous) {
    const auto& [D, F] = size;
    const auto E = static_cast<std::int64_t>(groups.rows.size());
    const std::int64_t R = groups.total();
    SCOPED_TRACE(described(groups, size, dtype, lie));
    const double tolerance = dtype == DType::f32 ? 1e-5 : 0x1.0p-7;
    const Tensor dout = rows_of(groups, D, dtype, 1), offsets = groups.offsets();
    const Tensor matrices = random({E, D, F}, dtype, 2, 2.0 / std::sqrt(static_cast<double>(D)));
    const Tensor gate_up = rows_of(groups, 2 * F, dtype, 3), y = empty({R, F}, DType::f64);
    fill_nan(y);
    // Choices of the rows, backwards; those of no expert are absent.
    const Tensor row = empty({R, 1}, DType::i32), weights = random({R, 1}, DType::f32, 4);
    for (std::int64_t i = 0; i < R; ++i) {
      row.host<std::int32_t>()[static_cast<std::size_t>(i)] =
          R - 1 - i < groups.used() ? static_cast<std::int32_t>(R - 1 - i) : kAbsentRow;
    }
    const Tensor dweights = empty({R, 1}, DType::f64), scratch = empty({R, F}, DType::f64);
    const Tensor dev_offsets = up(offsets), dev_row = up(row), dev_matrices = up(matrices, dtype),
                 dev_weights = up(weights, DType::f32);
    const Lying dev_dout(dout, dtype, lie, gpu()), dev(gate_up, dtype, lie, gpu()),
        again(gate_up, dtype, lie, gpu()), dev_y(y, dtype, lie, gpu());
    const auto on_gpu = [&](const Tensor& of, const Tensor& dev_scratch) {
      Tensor dev_dweights = device_unwritten({R, 1}, DType::f32);
      grouped_swiglu_backward(dev_dout.view, dev_matrices, dev_offsets, of, dev_row, dev_weights,
                              dev_scratch, of, dev_y.view, dev_dweights, gpu());
      return dev_dweights;
    };
    grouped_swiglu_backward(dout, matrices, offsets, gate_up, row, weights, scratch, gate_up, y,
                            dweights, cpu());
    const Tensor dev_dweights = on_gpu(dev.view, dev_y.view);
    expect_rows(groups, dev.view, gate_up, tolerance, "gradients of gate and up");
    expect_rows(groups, dev_y.view, y, tolerance, "y");
    expect_relative(dev_dweights, dweights, dtype == DType::f32 ? 1e-5 : 0x1.0p-8,
                    "gradients of weights");
    expect_same_bits(down(on_gpu(again.view, device_unwritten({R, F}, dtype))), down(dev_dweights));
    expect_same_bits(down(again.view), down(dev.view));
  }
};

TEST_F(CudaGroups, ProductsThroughBackwardOfSwigluEqualTheCpus) {
  for (const DType dtype : kGpuFloats) {
    for (const Groups& groups : kGroups) {
      for (const MatrixSize& size : {MatrixSize{64, 256}, MatrixSize{136, 520}, MatrixSize{200, 24},
                                     MatrixSize{1032, 768}, MatrixSize{5, 3}}) {
        check_swiglu_backward(groups, size, dtype);
      }
    }
    for (const Lie lie : {Lie::wide, Lie::odd}) {
      check_swiglu_backward(kGroups[1], {136, 264}, dtype, lie);
    }
  }
  check_swiglu_backward(skewed_groups(64, 130), {264, 520}, DType::bf16);
  check_swiglu_backward(skewed_groups(9, 700), {512, 1032}, DType::bf16);
}

TEST_F(CudaGroups, ProductsThroughSwigluEqualTheCpus) {
  for (const DType dtype : kGpuFloats) {
    for (const Groups& groups : kGroups) {
      for (const MatrixSize& size : {MatrixSize{64, 256}, MatrixSize{136, 520}, MatrixSize{200, 24},
                                     MatrixSize{72, 768}, MatrixSize{5, 3}}) {
        check_swiglu(groups, size, dtype);
      }
    }
    for (const Lie lie : {Lie::wide, Lie::odd}) check_swiglu(kGroups[1], {136, 264}, dtype, lie);
  }
}

TEST_F(CudaGroups, ProductsEqualTheCpus) {
  for (const DType dtype : kGpuFloats) {
    for (const Groups& groups : kGroups) {
      for (const MatrixSize& size : {MatrixSize{64, 256}, MatrixSize{136, 520}, MatrixSize{200, 24},
                                     MatrixSize{72, 768}, MatrixSize{5, 3}}) {
        check(groups, size, dtype);
      }
    }
  }
}

TEST_F(CudaGroups, ProductsOfStridedRowsEqualTheCpus) {
  for (const DType dtype : kGpuFloats) {
    for (const Lie lie : {Lie::wide, Lie::odd}) {
      check(kGroups[1], {136, 264}, dtype, lie);
      check(kGroups[2], {72, 40}, dtype, lie);
    }
  }
}

TEST_F(CudaGroups, ColumnsOfProductsAreTheSameBits) {
  for (const DType dtype : kGpuFloats) {
    for (const Groups& groups : kGroups) {
      for (const MatrixSize& size :
           {MatrixSize{64, 256}, MatrixSize{136, 520}, MatrixSize{72, 768}}) {
        check_columns(groups, size, dtype);
      }
    }
  }
  check_columns(skewed_groups(9, 700), {512, 1032}, DType::bf16);
}

TEST_F(CudaGroups, HeldOffsetsEqualTheCpus) {
  for (const Groups& groups : kGroups) {
    const Tensor offsets = groups.offsets(), held = empty(offsets.shape(), DType::i32);
    for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, groups.total()},
                                       {64, 100},
                                       {5, 1},
                                       {10000, 7}}) {
      const Tensor dev_held = device_ints(offsets.shape());
      held_offsets(offsets, first, count, held, cpu());
      held_offsets(up(offsets), first, count, dev_held, gpu());
      expect_same(dev_held, held, "offsets of a part");
    }
  }
}

/// More tiles than the device makes at a time, of different lengths.
TEST_F(CudaGroups, ProductsOfManyTilesEqualTheCpus) {
  check(skewed_groups(64, 130), {264, 520}, DType::bf16);
  check(skewed_groups(9, 700), {512, 1032}, DType::bf16);
  check({"three hundred experts", std::vector<std::int64_t>(300, 7)}, {64, 72}, DType::bf16);
  check({"more experts than the table has", std::vector<std::int64_t>(1100, 1)}, {8, 16},
        DType::bf16);
}

}  // namespace
}  // namespace heddle::ops
