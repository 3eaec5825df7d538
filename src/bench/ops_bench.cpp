#include "bench/ops_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_value.h"
#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/gemm.h"
#include "ops/norm.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/rope.h"
#include "ops/softmax_xent.h"

namespace heddle {
namespace {

using Result = OpBenchResult;
using Options = OpsBenchOptions;

double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// Runs operations in turns with what bounds them, so that both meet the same state of the machine,
/// and keeps the results.
class OpsBench {
 public:
  explicit OpsBench(const Options& options) : options_(options), stream_(options.threads) {}

  Stream& stream() { return stream_; }
  const std::vector<Result>& results() const { return results_; }

  Tensor tensor(const Shape& shape, DType dtype = DType::f32) {
    const Tensor t = memory_.alloc(shape, dtype, MemoryTag::workspace);
    if (dtype == DType::f32) {
      ops::fill(t, 0.5, stream_);
    } else {
      std::fill_n(t.bytes(), t.size_bytes(), std::byte{0});
    }
    return t;
  }

  bool wants(const std::string& name) const {
    return name.find(options_.filter) != std::string::npos;
  }

  /// `bytes`: what one call must read and write. The bound is a copy that moves as many (up to half
  /// a GiB, far beyond the caches).
  void against_copy(const std::string& name, const std::string& size, double bytes,
                    const std::function<void()>& run) {
    const double copied = std::min(bytes, 512.0 * (1 << 20));
    const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(copied / 8));
    const Tensor from = tensor({count}), to = tensor({count});
    const auto [time, limit] = in_turns(run, [&] { ops::copy(from, to, stream_); });
    results_.push_back({name, size, Bound::copy, time, bytes / time / 1e9, copied / limit / 1e9});
  }

  void against_gemm(const std::string& name, const std::string& size, double flops,
                    const std::function<void()>& run) {
    constexpr std::int64_t kSide = 2048;
    const Tensor a = tensor({kSide, kSide}), b = tensor({kSide, kSide}), c = tensor({kSide, kSide});
    const auto [time, limit] = in_turns(
        run, [&] { ops::gemm(a, ops::Transpose::no, b, ops::Transpose::no, c, {}, stream_); });
    results_.push_back({name, size, Bound::gemm, time, flops / time / 1e9,
                        2.0 * kSide * kSide * kSide / limit / 1e9});
  }

 private:
  std::pair<double, double> in_turns(const std::function<void()>& run,
                                     const std::function<void()>& bound) const {
    std::vector<double> times, limits;
    run();
    bound();
    const Stopwatch total;
    while (times.size() < 5 || total.seconds() < options_.seconds) {
      times.push_back(timed(run));
      limits.push_back(timed(bound));
    }
    return {median(times), median(limits)};
  }

  /// Twice in a row, the second counts: the other operation has left its own data in the caches.
  static double timed(const std::function<void()>& run) {
    run();
    const Stopwatch watch;
    run();
    return watch.seconds();
  }

  Options options_;
  Stream stream_;
  Memory memory_;
  std::vector<Result> results_;
};

constexpr std::int64_t kTokens = 2048, kWidth = 768, kFeedForward = 2048, kVocabulary = 32000;

void bench_gemm(OpsBench& bench) {
  struct Product {
    const char* name;
    std::int64_t m, n, k;
    bool ta, tb;
  };
  const Product products[] = {
      {"gemm forward", kTokens, kWidth, kWidth, false, true},
      {"gemm forward", kTokens, kFeedForward, kWidth, false, true},
      {"gemm backward input", kTokens, kWidth, kFeedForward, false, false},
      {"gemm backward weight", kFeedForward, kWidth, kTokens, true, false},
      {"gemm logits", 512, kVocabulary, kWidth, false, true},
  };
  const auto transpose = [](bool yes) { return yes ? ops::Transpose::yes : ops::Transpose::no; };
  for (const auto& [name, m, n, k, ta, tb] : products) {
    if (!bench.wants(name)) continue;
    const Tensor a = bench.tensor(ta ? Shape{k, m} : Shape{m, k});
    const Tensor b = bench.tensor(tb ? Shape{n, k} : Shape{k, n}), c = bench.tensor({m, n});
    bench.against_gemm(name, fmt::format("{}x{}x{}", m, n, k), 2.0 * static_cast<double>(m * n * k),
                       [&, ta = ta, tb = tb] {
                         ops::gemm(a, transpose(ta), b, transpose(tb), c, {}, bench.stream());
                       });
  }
  if (bench.wants("gemm decode")) {
    const Tensor x = bench.tensor({1, kWidth}), w = bench.tensor({kVocabulary, kWidth});
    const Tensor y = bench.tensor({1, kVocabulary});
    bench.against_copy(
        "gemm decode", fmt::format("1x{}x{}", kVocabulary, kWidth),
        static_cast<double>(w.size_bytes()),
        [&] { ops::gemm(x, ops::Transpose::no, w, ops::Transpose::yes, y, {}, bench.stream()); });
  }
}

/// Operations on [rows, columns] tensors; `streams` counts the tensors read and written.
class RowBench {
 public:
  RowBench(OpsBench& bench, std::int64_t rows, std::int64_t columns)
      : bench_(bench), rows_(rows), columns_(columns) {}

  Tensor tensor() const { return bench_.tensor({rows_, columns_}); }
  Tensor row() const { return bench_.tensor({columns_}); }
  Tensor column() const { return bench_.tensor({rows_}); }

  template <class Run>
  void measure(const char* name, int streams, const Run& run) const {
    if (!bench_.wants(name)) return;
    bench_.against_copy(name, fmt::format("{}x{}", rows_, columns_),
                        4.0 * streams * static_cast<double>(rows_ * columns_), run);
  }

 private:
  OpsBench& bench_;
  std::int64_t rows_, columns_;
};

void bench_norm(OpsBench& bench) {
  const RowBench on(bench, kTokens, kWidth);
  const Tensor x = on.tensor(), y = on.tensor(), dy = on.tensor(), dx = on.tensor();
  const Tensor w = on.row(), b = on.row(), dw = on.row(), db = on.row();
  const Tensor mean = on.column(), rstd = on.column();
  Stream& s = bench.stream();
  constexpr double kEps = 1e-5;
  on.measure("rms_norm forward", 2, [&] { ops::rms_norm_forward(x, w, kEps, y, rstd, s); });
  on.measure("rms_norm backward input", 3,
             [&] { ops::rms_norm_backward_input(dy, x, w, rstd, dx, s); });
  on.measure("rms_norm backward weight", 2,
             [&] { ops::rms_norm_backward_weight(dy, x, rstd, dw, s); });
  on.measure("layer_norm forward", 2,
             [&] { ops::layer_norm_forward(x, w, b, kEps, y, mean, rstd, s); });
  on.measure("layer_norm backward input", 3,
             [&] { ops::layer_norm_backward_input(dy, x, w, mean, rstd, dx, s); });
  on.measure("layer_norm backward weight", 2,
             [&] { ops::layer_norm_backward_weight(dy, x, mean, rstd, dw, db, s); });
}

void bench_activation(OpsBench& bench) {
  const RowBench on(bench, kTokens, kFeedForward);
  const Tensor gate = on.tensor(), up = on.tensor(), y = on.tensor(), dy = on.tensor();
  const Tensor dgate = on.tensor(), dup = on.tensor();
  Stream& s = bench.stream();
  using ops::Gelu;
  on.measure("swiglu forward", 3, [&] { ops::swiglu_forward(gate, up, y, s); });
  on.measure("swiglu backward", 5, [&] { ops::swiglu_backward(dy, gate, up, dgate, dup, s); });
  on.measure("gelu exact forward", 2, [&] { ops::gelu_forward(gate, Gelu::exact, y, s); });
  on.measure("gelu exact backward", 3,
             [&] { ops::gelu_backward(dy, gate, Gelu::exact, dgate, s); });
  on.measure("gelu tanh forward", 2, [&] { ops::gelu_forward(gate, Gelu::tanh, y, s); });
  on.measure("gelu tanh backward", 3, [&] { ops::gelu_backward(dy, gate, Gelu::tanh, dgate, s); });
}

void bench_elementwise(OpsBench& bench) {
  const RowBench on(bench, kTokens, kWidth);
  const Tensor a = on.tensor(), b = on.tensor(), y = on.tensor(), bias = on.row();
  Stream& s = bench.stream();
  on.measure("add", 3, [&] { ops::add(a, b, y, s); });
  on.measure("accumulate", 3, [&] { ops::accumulate(a, y, s); });
  on.measure("scale", 2, [&] { ops::scale(y, 1.0, s); });
  on.measure("fill", 1, [&] { ops::fill(y, 0.0, s); });
  on.measure("add_bias", 2, [&] { ops::add_bias(a, bias, s); });
  on.measure("bias_backward", 1, [&] { ops::bias_backward(b, bias, s); });
}

void bench_tokens(OpsBench& bench) {
  const RowBench on(bench, kTokens, kWidth);
  const Tensor table = bench.tensor({kVocabulary, kWidth}), x = on.tensor();
  const Tensor ids = bench.tensor({kTokens}, DType::i32);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    ids.data<std::int32_t>()[t] = static_cast<std::int32_t>(t * 7919 % kVocabulary);
  }
  Stream& s = bench.stream();
  on.measure("embedding forward", 2, [&] { ops::embedding_forward(ids, table, x, s); });
  on.measure("embedding backward", 3, [&] { ops::embedding_backward(ids, x, table, s); });
  const Tensor heads = x.view({4, kTokens / 4, 12, kWidth / 12});
  const Tensor cosine = bench.tensor({kTokens, 32}), sine = bench.tensor({kTokens, 32});
  ops::fill(cosine, 1.0, s);
  ops::fill(sine, 0.0, s);
  const Tensor positions = bench.tensor({4, kTokens / 4}, DType::i32);
  on.measure("rope", 2, [&] { ops::rope(heads, positions, cosine, sine, false, s); });
}

void bench_flat(OpsBench& bench) {
  Stream& s = bench.stream();
  constexpr std::int64_t kCount = 50'000'000;
  const auto measure = [&](const char* name, int bytes, const std::function<void()>& run) {
    bench.against_copy(name, fmt::format("{}", kCount), bytes * static_cast<double>(kCount), run);
  };
  if (bench.wants("adamw")) {
    const Tensor p = bench.tensor({kCount}), g = bench.tensor({kCount});
    const Tensor m = bench.tensor({kCount}), v = bench.tensor({kCount});
    ops::fill(v, 1.0, s);
    measure("adamw", 28, [&] { ops::adamw(p, g, m, v, {.lr = 1e-4, .step = 10}, s); });
  }
  const Tensor x = bench.tensor({kCount});
  if (bench.wants("sum_of_squares"))
    measure("sum_of_squares", 4, [&] { ops::sum_of_squares(x, s); });
  if (bench.wants("first_non_finite")) {
    measure("first_non_finite", 4, [&] { ops::first_non_finite(x, s); });
  }
  for (const DType narrow : {DType::bf16, DType::f16}) {
    const Tensor y = bench.tensor({kCount}, narrow);
    const auto to = fmt::format("cast to {}", name_of(narrow));
    const auto from = fmt::format("cast from {}", name_of(narrow));
    if (bench.wants(to)) measure(to.c_str(), 6, [&] { ops::cast(x, y, s); });
    if (bench.wants(from)) measure(from.c_str(), 6, [&] { ops::cast(y, x, s); });
  }
  if (bench.wants("fill_normal")) {
    measure("fill_normal", 4, [&] { ops::fill_normal(x, 1, 0, 1.0, s); });
  }
}

void bench_attention(OpsBench& bench) {
  constexpr std::int64_t kBatch = 4, kHeads = 12, kHeadDim = 64, kSeq = kTokens / kBatch;
  const Shape shape{kBatch, kSeq, kHeads, kHeadDim}, rows{kBatch, kHeads, kSeq};
  const std::string size = fmt::format("{}x{}x{}x{}", kBatch, kSeq, kHeads, kHeadDim);
  // Two products of the causal half forward, five backward.
  const double product = 2.0 * kBatch * kHeads * kSeq * kSeq * kHeadDim / 2.0;
  const Tensor q = bench.tensor(shape), k = bench.tensor(shape), v = bench.tensor(shape);
  const Tensor out = bench.tensor(shape), lse = bench.tensor(rows);
  Stream& s = bench.stream();
  constexpr double kScale = 0.125;
  if (bench.wants("attention forward")) {
    bench.against_gemm("attention forward", size, 2.0 * product,
                       [&] { ops::attention_forward(q, k, v, {}, kScale, out, lse, s); });
  }
  if (bench.wants("attention backward")) {
    const Tensor dq = bench.tensor(shape), dk = bench.tensor(shape), dv = bench.tensor(shape);
    const Tensor delta = bench.tensor(rows);
    ops::attention_forward(q, k, v, {}, kScale, out, lse, s);
    bench.against_gemm("attention backward", size, 5.0 * product, [&] {
      ops::attention_backward(out, q, k, v, out, lse, {}, kScale, dq, dk, dv, delta, s);
    });
  }
}

void bench_cross_entropy(OpsBench& bench) {
  const RowBench on(bench, 512, kVocabulary);
  const Tensor logits = on.tensor(), targets = bench.tensor({512}, DType::i32);
  const Tensor loss = bench.tensor({512}, DType::f64);
  Stream& s = bench.stream();
  on.measure("cross_entropy forward", 1,
             [&] { ops::cross_entropy_forward(logits, targets, loss, s); });
  on.measure("cross_entropy backward", 2,
             [&] { ops::cross_entropy_forward_backward(logits, targets, 1.0, loss, s); });
}

}  // namespace

std::vector<OpBenchResult> bench_ops(const OpsBenchOptions& options) {
  OpsBench bench(options);
  bench_gemm(bench);
  bench_attention(bench);
  bench_cross_entropy(bench);
  bench_norm(bench);
  bench_activation(bench);
  bench_elementwise(bench);
  bench_tokens(bench);
  bench_flat(bench);
  if (bench.results().empty()) {
    throw Error(ErrorCode::usage, fmt::format("no operation matches \"{}\"", options.filter),
                "run `heddle bench ops` without --filter to see their names");
  }
  return bench.results();
}

}  // namespace heddle
