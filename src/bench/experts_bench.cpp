#include "bench/experts_bench.h"

#include <fmt/core.h>

#include <cmath>

#include "bench/timed_ops.h"
#include "ops/experts.h"

namespace heddle {
namespace {

using ops::Transpose;

struct ExpertSize {
  std::int64_t tokens, width, inner, experts, per_token;
  std::int64_t rows() const { return tokens * per_token; }
};

/// Rows of experts as their choices make them: the first expert has four times the rows of the last
/// that has any; two have none.
struct Routed {
  Tensor experts_TK, offsets_E1, token_R, row_TK;

  Routed(OpsBench& bench, const ExpertSize& size)
      : experts_TK(bench.integers({size.tokens, size.per_token},
                                  [&](std::int64_t i) { return expert(i, size.experts - 2); })),
        offsets_E1(bench.tensor({size.experts + 1}, DType::i32)),
        token_R(bench.tensor({size.rows()}, DType::i32)),
        row_TK(bench.tensor({size.tokens, size.per_token}, DType::i32)) {
    order(bench);
  }
  void order(OpsBench& bench) const {
    ops::order_by_expert(experts_TK, offsets_E1, token_R, row_TK, bench.stream());
  }

 private:
  /// Choices that follow each other lie apart by the golden ratio of all.
  static std::int64_t expert(std::int64_t choice, std::int64_t used) {
    const double at = std::fmod(static_cast<double>(choice) * 0.6180339887498949, 1.0);
    // The share of experts below x, with a density that falls from 4 to 1: (4 x - 1.5 x^2) / 2.5.
    const double x = (4.0 - std::sqrt(16.0 - 15.0 * at)) / 3.0;
    return std::min(used - 1, static_cast<std::int64_t>(x * static_cast<double>(used)));
  }
};

/// The three products of one of the experts' matrices, [out, in] each.
void bench_products(OpsBench& bench, const std::string& matrix, const ExpertSize& size,
                    std::int64_t in, std::int64_t out) {
  const std::string prefix = fmt::format("experts {} ", matrix);
  const std::string names[] = {prefix + "forward", prefix + "backward input",
                               prefix + "backward weight", prefix + "first weight"};
  if (std::ranges::none_of(names, [&](const auto& name) { return bench.wants(name); })) return;
  const Routed routed(bench, size);
  const std::int64_t R = size.rows(), E = size.experts;
  const Tensor x = bench.tensor({R, in}), y = bench.tensor({R, out});
  const Tensor weights = bench.tensor({E, out, in}), weight = bench.tensor({out, in});
  const std::string shape = fmt::format("{}x{}x{}", R, out, in);
  const double flops = 2.0 * static_cast<double>(R * in * out);
  Stream& s = bench.stream();
  bench.against_dense(
      names[0], shape, flops,
      [&] { ops::grouped_gemm(x, weights, Transpose::yes, routed.offsets_E1, y, s); },
      [&] { ops::gemm(x, Transpose::no, weight, Transpose::yes, y, {}, s); });
  bench.against_dense(
      names[1], shape, flops,
      [&] { ops::grouped_gemm(y, weights, Transpose::no, routed.offsets_E1, x, s); },
      [&] { ops::gemm(y, Transpose::no, weight, Transpose::no, x, {}, s); });
  const Tensor gradients = bench.precise({E, out, in}), gradient = bench.precise({out, in});
  for (const auto& [name, beta] : {std::pair{names[2], 1.0}, {names[3], 0.0}}) {
    bench.against_dense(
        name, shape, flops,
        [&, beta = beta] { ops::grouped_gemm_weight(y, x, routed.offsets_E1, beta, gradients, s); },
        [&, beta = beta] {
          ops::gemm(y, Transpose::yes, x, Transpose::no, gradient, {.beta = beta}, s);
        });
  }
}

void bench_rows(OpsBench& bench, const ExpertSize& size) {
  const char* const names[] = {"experts route",           "experts order",
                               "experts spread",          "experts combine",
                               "experts swiglu backward", "experts combine backward",
                               "experts up, swiglu",      "experts down, swiglu backward"};
  if (std::ranges::none_of(names, [&](const char* name) { return bench.wants(name); })) return;
  const Routed routed(bench, size);
  const std::int64_t T = size.tokens, K = size.per_token, R = size.rows(), D = size.width,
                     F = size.inner;
  const auto element = static_cast<double>(size_of(bench.dtype()));
  const std::string shape = fmt::format("{}*{}x{}", T, K, D);
  const auto bytes = [](double each, std::int64_t count) {
    return each * static_cast<double>(count);
  };
  Stream& s = bench.stream();
  const Tensor logits = bench.precise({T, size.experts}), weights = bench.precise({T, K});
  ops::fill_normal(logits.view({logits.count()}), 1, 0, 1.0, s);
  const Tensor chosen = bench.tensor({T, K}, DType::i32);
  bench.against_copy("experts route", fmt::format("{}x{}", T, size.experts),
                     bytes(4.0, T * (size.experts + 2 * K)),
                     [&] { ops::route(logits, {}, {}, chosen, weights, s); });
  bench.against_copy("experts order", fmt::format("{}*{}", T, K), bytes(4.0, 3 * R),
                     [&] { routed.order(bench); });
  const Tensor x = bench.tensor({T, D}), sums = bench.tensor({T, D}), rows = bench.tensor({R, D});
  bench.against_copy("experts spread", shape, bytes(element, (T + R) * D),
                     [&] { ops::spread_rows(x, routed.row_TK, rows, s); });
  bench.against_copy("experts combine", shape, bytes(element, (T + R) * D),
                     [&] { ops::combine_rows(rows, routed.row_TK, weights, {}, sums, s); });
  bench.against_copy("experts combine backward", shape, bytes(element, (2 * T + R) * D),
                     [&] { ops::combine_rows(rows, routed.row_TK, {}, x, sums, s); });
  const Tensor dy = bench.tensor({R, F}), y = bench.tensor({R, F}),
               inside = bench.tensor({R, 2 * F});
  const Tensor dinside = bench.tensor({R, 2 * F}), dweights = bench.precise({T, K});
  bench.against_copy(
      "experts swiglu backward", fmt::format("{}*{}x{}", T, K, F), bytes(element, 6 * R * F), [&] {
        ops::expert_swiglu_backward(dy, inside, routed.row_TK, weights, dinside, y, dweights, s);
      });
  const Tensor matrices = bench.tensor({size.experts, 2 * F, D}), matrix = bench.tensor({2 * F, D});
  bench.against_dense(
      "experts up, swiglu", fmt::format("{}x{}x{}", R, 2 * F, D),
      4.0 * static_cast<double>(R * F * D),
      [&] { ops::grouped_swiglu(rows, matrices, routed.offsets_E1, inside, y, s); },
      [&] { ops::gemm(rows, Transpose::no, matrix, Transpose::yes, inside, {}, s); });
  const Tensor downs = bench.tensor({size.experts, D, F}), down = bench.tensor({D, F});
  bench.against_dense(
      "experts down, swiglu backward", fmt::format("{}x{}x{}", R, F, D),
      2.0 * static_cast<double>(R * F * D),
      [&] {
        ops::grouped_swiglu_backward(rows, downs, routed.offsets_E1, inside, routed.row_TK, weights,
                                     dy, dinside, y, dweights, s);
      },
      [&] { ops::gemm(rows, Transpose::no, down, Transpose::no, dy, {}, s); });
}

/// Rows of experts from tokens and back, beside products with matrices of zeros and ones.
void bench_one_hot(OpsBench& bench, const ExpertSize& size) {
  const std::string name = "experts encode, decode";
  if (!bench.wants(name)) return;
  const Routed routed(bench, size);
  const std::int64_t T = size.tokens, R = size.rows(), D = size.width;
  const Tensor x = bench.tensor({T, D}), rows = bench.tensor({R, D}), y = bench.tensor({T, D});
  const Tensor weights = bench.precise({T, size.per_token}), one_hot = bench.tensor({R, T});
  Stream& s = bench.stream();
  bench.against_dense(
      name, fmt::format("{}*{}x{}", T, size.per_token, D), 4.0 * static_cast<double>(T * R * D),
      [&] {
        ops::spread_rows(x, routed.row_TK, rows, s);
        ops::combine_rows(rows, routed.row_TK, weights, {}, y, s);
      },
      [&] {
        ops::gemm(one_hot, Transpose::no, x, Transpose::no, rows, {}, s);
        ops::gemm(one_hot, Transpose::yes, rows, Transpose::no, y, {}, s);
      });
}

}  // namespace

void bench_experts(OpsBench& bench) {
  const ExpertSize small{512, 256, 128, 8, 2}, olmoe{16384, 2048, 1024, 64, 8},
      more_tokens{32768, 2048, 1024, 64, 8}, mixtral{16384, 4096, 14336, 8, 2};
  const std::vector<ExpertSize> sizes =
      bench.is_on_gpu() ? std::vector{olmoe, more_tokens, mixtral} : std::vector{small};
  for (const ExpertSize& size : sizes) {
    bench_products(bench, "up", size, size.width, 2 * size.inner);
    bench_products(bench, "down", size, size.inner, size.width);
    bench_rows(bench, size);
  }
  bench_one_hot(bench, bench.is_on_gpu() ? ExpertSize{4096, 2048, 1024, 64, 8} : small);
}

}  // namespace heddle
