#include "bench/ops_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "bench/experts_bench.h"
#include "bench/timed_ops.h"
#include "bench/windows_bench.h"
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

void bench_gemm(OpsBench& bench) {
  const std::int64_t tokens = bench.sizes.tokens, width = bench.sizes.width;
  const std::int64_t feed_forward = bench.sizes.feed_forward, loss_rows = bench.sizes.loss_rows;
  const std::int64_t vocabulary = bench.sizes.vocabulary;
  struct Product {
    const char* name;
    std::int64_t m, n, k;
    bool ta, tb;
    bool to_gradient = false;  ///< added to a parameter's gradient
  };
  const Product products[] = {
      {"gemm forward", tokens, width, width, false, true},
      {"gemm forward", tokens, feed_forward, width, false, true},
      {"gemm backward input", tokens, width, feed_forward, false, false},
      {"gemm backward weight", feed_forward, width, tokens, true, false, true},
      {"gemm logits", loss_rows, vocabulary, width, false, true},
      {"gemm logits input", loss_rows, width, vocabulary, false, false},
      {"gemm logits weight", vocabulary, width, loss_rows, true, false, true},
  };
  const auto transpose = [](bool yes) { return yes ? ops::Transpose::yes : ops::Transpose::no; };
  Stream& s = bench.stream();
  for (const auto& [name, m, n, k, ta, tb, to_gradient] : products) {
    if (!bench.wants(name)) continue;
    const Tensor a = bench.tensor(ta ? Shape{k, m} : Shape{m, k});
    const Tensor b = bench.tensor(tb ? Shape{n, k} : Shape{k, n});
    const Tensor c = to_gradient ? bench.precise({m, n}) : bench.tensor({m, n});
    const ops::GemmScale scale{.beta = to_gradient ? 1.0 : 0.0};
    bench.against_gemm(
        name, fmt::format("{}x{}x{}", m, n, k), 2.0 * static_cast<double>(m * n * k),
        [&, ta = ta, tb = tb] { ops::gemm(a, transpose(ta), b, transpose(tb), c, scale, s); });
  }
  const auto flops = 2.0 * static_cast<double>(tokens * feed_forward * width);
  if (bench.wants("gemm bias")) {
    const Tensor x = bench.tensor({tokens, width}), w = bench.tensor({feed_forward, width});
    const Tensor y = bench.tensor({tokens, feed_forward}), b = bench.tensor({feed_forward});
    bench.against_gemm(
        "gemm bias", fmt::format("{}x{}x{}", tokens, feed_forward, width), flops,
        [&] { ops::gemm_add(x, ops::Transpose::no, w, ops::Transpose::yes, b, {}, y, s); });
  }
  if (bench.wants("gemm swiglu")) {
    const Tensor x = bench.tensor({tokens, width}), w = bench.tensor({2 * feed_forward, width});
    const Tensor to = bench.tensor({tokens, 2 * feed_forward});
    const Tensor y = bench.tensor({tokens, feed_forward});
    bench.against_gemm("gemm swiglu", fmt::format("{}x{}x{}", tokens, 2 * feed_forward, width),
                       2.0 * flops, [&] { ops::gemm_swiglu(x, w, to, y, s); });
  }
  if (bench.wants("gemm swiglu backward")) {
    const Tensor dout = bench.tensor({tokens, width}), w = bench.tensor({width, feed_forward});
    const Tensor x = bench.tensor({tokens, 2 * feed_forward}), dx = bench.tensor(x.shape());
    const Tensor y = bench.tensor({tokens, feed_forward}), dy = bench.tensor(y.shape());
    bench.against_gemm("gemm swiglu backward", fmt::format("{}x{}x{}", tokens, feed_forward, width),
                       flops, [&] { ops::gemm_swiglu_backward(dout, w, dy, x, dx, y, s); });
  }
  if (bench.wants("gemm decode")) {
    const Tensor x = bench.tensor({1, width}), w = bench.tensor({vocabulary, width});
    const Tensor y = bench.tensor({1, vocabulary});
    bench.against_copy("gemm decode", fmt::format("1x{}x{}", vocabulary, width),
                       static_cast<double>(w.size_bytes()),
                       [&] { ops::gemm(x, ops::Transpose::no, w, ops::Transpose::yes, y, {}, s); });
  }
}

/// Operations on [rows, columns] tensors; `streams` counts the tensors read and written.
class RowBench {
 public:
  RowBench(OpsBench& bench, std::int64_t rows, std::int64_t columns)
      : bench_(bench), rows_(rows), columns_(columns) {}

  Tensor tensor() const { return bench_.tensor({rows_, columns_}); }
  Tensor row() const { return bench_.tensor({columns_}); }
  Tensor gradient() const { return bench_.precise({columns_}); }
  Tensor column() const { return bench_.precise({rows_}); }

  void measure(const char* name, int streams, const std::function<void()>& run) const {
    const auto bytes = static_cast<double>(size_of(bench_.dtype())) * streams;
    bench_.against_copy(name, fmt::format("{}x{}", rows_, columns_),
                        bytes * static_cast<double>(rows_ * columns_), run);
  }

 private:
  OpsBench& bench_;
  std::int64_t rows_, columns_;
};

constexpr double kNormEps = 1e-5;

void bench_rms_norm(OpsBench& bench, std::int64_t rows, std::int64_t width) {
  if (!bench.wants("rms_norm forward") && !bench.wants("rms_norm backward weight") &&
      !bench.wants("rms_norm backward input")) {
    return;
  }
  const RowBench on(bench, rows, width);
  const Tensor x = on.tensor(), y = on.tensor(), dy = on.tensor(), dx = on.tensor();
  const Tensor w = on.row(), dw = on.gradient(), rstd = on.column();
  Stream& s = bench.stream();
  on.measure("rms_norm forward", 2, [&] { ops::rms_norm_forward(x, w, kNormEps, y, rstd, s); });
  on.measure("rms_norm backward input", 3,
             [&] { ops::rms_norm_backward_input(dy, x, w, rstd, dx, s); });
  on.measure("rms_norm backward weight", 2,
             [&] { ops::rms_norm_backward_weight(dy, x, rstd, dw, s); });
  on.measure("rms_norm backward", 4, [&] { ops::rms_norm_backward(dy, x, w, rstd, y, dx, dw, s); });
}

void bench_norm(OpsBench& bench) {
  const OpSizes& sizes = bench.sizes;
  bench_rms_norm(bench, sizes.rows, sizes.width);
  if (sizes.wide != sizes.width) bench_rms_norm(bench, sizes.wide_rows, sizes.wide);
  const RowBench on(bench, sizes.rows, sizes.width);
  const Tensor x = on.tensor(), y = on.tensor(), dy = on.tensor(), dx = on.tensor();
  const Tensor w = on.row(), b = on.row(), dw = on.gradient(), db = on.gradient();
  const Tensor mean = on.column(), rstd = on.column();
  Stream& s = bench.stream();
  on.measure("layer_norm forward", 2,
             [&] { ops::layer_norm_forward(x, w, b, kNormEps, y, mean, rstd, s); });
  on.measure("layer_norm backward input", 3,
             [&] { ops::layer_norm_backward_input(dy, x, w, mean, rstd, dx, s); });
  on.measure("layer_norm backward weight", 2,
             [&] { ops::layer_norm_backward_weight(dy, x, mean, rstd, dw, db, s); });
  on.measure("layer_norm backward", 4,
             [&] { ops::layer_norm_backward(dy, x, w, mean, rstd, y, dx, dw, db, s); });
}

void bench_activation(OpsBench& bench) {
  const RowBench on(bench, bench.sizes.tokens, bench.sizes.feed_forward);
  const Tensor gate = on.tensor(), up = on.tensor(), y = on.tensor(), dy = on.tensor();
  const Tensor dgate = on.tensor(), dup = on.tensor();
  Stream& s = bench.stream();
  using ops::Gelu;
  on.measure("swiglu forward", 3, [&] { ops::swiglu_forward(gate, up, y, s); });
  on.measure("swiglu backward", 5, [&] { ops::swiglu_backward(dy, gate, up, dgate, dup, {}, s); });
  on.measure("swiglu backward with y", 6,
             [&] { ops::swiglu_backward(dy, gate, up, dgate, dup, y, s); });
  on.measure("gelu tanh backward with y", 4,
             [&] { ops::gelu_backward(dy, gate, Gelu::tanh, dgate, y, s); });
  on.measure("gelu exact forward", 2, [&] { ops::gelu_forward(gate, Gelu::exact, y, s); });
  on.measure("gelu exact backward", 3,
             [&] { ops::gelu_backward(dy, gate, Gelu::exact, dgate, {}, s); });
  on.measure("gelu tanh forward", 2, [&] { ops::gelu_forward(gate, Gelu::tanh, y, s); });
  on.measure("gelu tanh backward", 3,
             [&] { ops::gelu_backward(dy, gate, Gelu::tanh, dgate, {}, s); });
}

void bench_elementwise(OpsBench& bench) {
  const RowBench on(bench, bench.sizes.rows, bench.sizes.width);
  const Tensor a = on.tensor(), b = on.tensor(), y = on.tensor();
  const Tensor bias = on.row(), gradient = on.gradient();
  Stream& s = bench.stream();
  on.measure("add", 3, [&] { ops::add(a, b, y, s); });
  on.measure("accumulate", 3, [&] { ops::accumulate(a, y, s); });
  on.measure("scale", 2, [&] { ops::scale(y, 1.0, s); });
  on.measure("fill", 1, [&] { ops::fill(y, 0.0, s); });
  on.measure("add_bias", 2, [&] { ops::add_bias(a, bias, s); });
  on.measure("bias_backward", 1, [&] { ops::bias_backward(b, gradient, s); });
}

void bench_tokens(OpsBench& bench) {
  const OpSizes& sizes = bench.sizes;
  const std::int64_t tokens = sizes.wide_rows, width = sizes.wide, words = sizes.wide_vocabulary;
  const RowBench on(bench, tokens, width);
  const Tensor x = on.tensor();
  Stream& s = bench.stream();
  // Rows of the table that are met travel once; those of the gradient are read and written, in f32.
  const auto of_tokens =
      static_cast<double>(tokens * width * static_cast<std::int64_t>(size_of(bench.dtype())));
  const auto of_rows = static_cast<double>(std::min(tokens, words) * width);
  const std::string size = fmt::format("{}x{}", tokens, width);
  if (bench.wants("embedding forward")) {
    const Tensor table = bench.tensor({words, width}), ids = bench.ids({tokens}, words);
    bench.against_copy("embedding forward", size,
                       of_tokens + of_rows * static_cast<double>(size_of(bench.dtype())),
                       [&] { ops::embedding_forward(ids, table, x, s); });
  }
  if (bench.wants("embedding backward")) {
    const Tensor dtable = bench.precise({words, width}), ids = bench.ids({tokens}, words);
    bench.against_copy("embedding backward", size, of_tokens + of_rows * 8.0,
                       [&] { ops::embedding_backward(ids, x, dtable, s); });
  }
  const std::int64_t head_dim = width / sizes.heads, sequences = tokens / sizes.seq;
  const Tensor by_head = x.view({sequences, sizes.seq, sizes.heads, head_dim});
  const Tensor cosine = bench.precise({sizes.seq, head_dim / 2}),
               sine = bench.precise({sizes.seq, head_dim / 2});
  ops::fill(cosine, 1.0, s);
  ops::fill(sine, 0.0, s);
  const Tensor positions = bench.ids({sequences, sizes.seq}, sizes.seq);
  on.measure("rope", 2, [&] {
    ops::rope(by_head, positions, cosine, sine, ops::RopePairs::halves, false, s);
  });
}

void bench_flat(OpsBench& bench) {
  Stream& s = bench.stream();
  const std::int64_t count = bench.sizes.flat;
  const auto measure = [&](const std::string& name, int bytes, const std::function<void()>& run) {
    bench.against_copy(name, fmt::format("{}", count), bytes * static_cast<double>(count), run);
  };
  if (bench.wants("adamw")) {
    const Tensor p = bench.precise({count}), g = bench.precise({count});
    const Tensor m = bench.precise({count}), v = bench.precise({count});
    ops::AdamWArgs args{.lr = 1e-4, .step = 10};
    measure("adamw", 28, [&] { ops::adamw(p, g, m, v, args, s); });
    args.p_low = bench.tensor({count}, DType::bf16);
    measure("adamw with bf16 copy", 30, [&] { ops::adamw(p, g, m, v, args, s); });
  }
  const Tensor x = bench.precise({count}), sum = bench.tensor({1}, DType::f64);
  measure("sum_of_squares", 4, [&] { ops::add_sum_of_squares(x, sum, s); });
  measure("first_non_finite", 4, [&] { ops::first_non_finite(x, s); });
  for (const DType narrow : {DType::bf16, DType::f16}) {
    const Tensor y = bench.tensor({count}, narrow);
    measure(fmt::format("cast to {}", name_of(narrow)), 6, [&] { ops::cast(x, y, s); });
    measure(fmt::format("cast from {}", name_of(narrow)), 6, [&] { ops::cast(y, x, s); });
  }
  measure("fill_normal (arithmetic)", 4, [&] { ops::fill_normal(x, 1, 0, 1.0, s); });
}

struct AttentionSize {
  std::int64_t batch, heads, groups, seq, head_dim;
  std::vector<std::int64_t> documents = {};  ///< their lengths; none: no mask
};

/// `count` of them.
std::vector<std::int64_t> documents_of(std::int64_t length, std::int64_t count) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(count), length);
}

void bench_attention(OpsBench& bench, const AttentionSize& of) {
  const auto& [batch, heads, groups, seq, head_dim, documents] = of;
  const std::string kind = documents.empty() ? "" : ", documents";
  const std::string forward_name = "attention forward" + kind,
                    backward_name = "attention backward" + kind;
  if (!bench.wants(forward_name) && !bench.wants(backward_name)) return;
  const Shape queries{batch, seq, heads, head_dim}, keys{batch, seq, groups, head_dim};
  const auto count = static_cast<std::int64_t>(documents.size());
  const bool are_alike =
      std::ranges::adjacent_find(documents, std::ranges::not_equal_to{}) == documents.end();
  const std::string positions =
      documents.empty() ? fmt::format("{}", seq)
                        : fmt::format("{}*{}{}", count, are_alike ? "" : "~", seq / count);
  const std::string size = fmt::format("{}x{}x{}/{}x{}", batch, positions, heads, groups, head_dim);
  // Two products of the pairs that see each other forward, five backward.
  std::int64_t squares = documents.empty() ? seq * seq : 0;
  for (const std::int64_t length : documents) squares += length * length;
  const double product = 2.0 * static_cast<double>(batch * heads * squares * head_dim) / 2.0;
  const Tensor q = bench.tensor(queries), k = bench.tensor(keys), v = bench.tensor(keys);
  const Tensor out = bench.tensor(queries), lse = bench.precise({batch, heads, seq});
  ops::AttentionMask mask;
  if (!documents.empty()) {
    std::vector<std::int64_t> first_keys;
    for (const std::int64_t length : documents) {
      first_keys.insert(first_keys.end(), static_cast<std::size_t>(length), std::ssize(first_keys));
    }
    mask.first_key_BS = bench.integers(
        {batch, seq}, [&](auto i) { return first_keys[static_cast<std::size_t>(i % of.seq)]; });
  }
  Stream& s = bench.stream();
  constexpr double kScale = 0.125;
  const auto forward = [&] { ops::attention_forward(q, k, v, mask, kScale, out, lse, s); };
  constexpr auto kApart = OpsBench::Sharing::apart;
  bench.against_gemm(forward_name, size, 2.0 * product, forward, kApart);
  if (!bench.wants(backward_name)) return;
  const Tensor dq = bench.tensor(queries), dk = bench.tensor(keys), dv = bench.tensor(keys);
  const Tensor delta = bench.precise({batch, heads, seq});
  forward();
  const auto backward = [&] {
    ops::attention_backward(out, q, k, v, out, lse, mask, kScale, dq, dk, dv, delta, s);
  };
  bench.against_gemm(backward_name, size, 5.0 * product, backward, kApart);
  if (!bench.is_on_gpu() || !documents.empty()) return;
  s.set_deterministic(true);
  bench.against_gemm("attention backward, fixed order", size, 5.0 * product, backward, kApart);
  s.set_deterministic(false);
}

/// Causal attention on a sequence that is cut into runs, as ranks in a ring do it: the pairs of
/// runs that see each other, a call each. Without runs, queries that see all of as many keys before
/// them.
void bench_attention_blocks(OpsBench& bench, const AttentionSize& of, std::int64_t runs_or_none) {
  const auto& [batch, heads, groups, seq, head_dim, documents] = of;
  const bool sees_all = runs_or_none == 0;
  const std::int64_t runs = std::max<std::int64_t>(1, runs_or_none);
  const std::string kind = sees_all    ? ", a block that sees all"
                           : runs == 1 ? ", as a block"
                                       : ", in blocks";
  const std::string forward_name = "attention forward" + kind,
                    backward_name = "attention backward" + kind;
  if (!bench.wants(forward_name) && !bench.wants(backward_name)) return;
  const Shape queries{batch, seq, heads, head_dim}, keys{batch, seq, groups, head_dim};
  const std::int64_t length = seq / runs;
  const std::string size =
      fmt::format("{}x{}x{}/{}x{}", batch,
                  runs == 1 ? fmt::format("{}", seq) : fmt::format("{}*{}", runs, length), heads,
                  groups, head_dim);
  const double product =
      2.0 * static_cast<double>(batch * heads * seq * seq * head_dim) / (sees_all ? 1.0 : 2.0);
  const Tensor q = bench.tensor(queries), k = bench.tensor(keys), v = bench.tensor(keys);
  const Tensor out = bench.precise(queries), lse = bench.precise({batch, heads, seq});
  Stream& s = bench.stream();
  constexpr double kScale = 0.125;
  const auto run_of = [&, length](const Tensor& t, std::int64_t i, int dim = 1) {
    return t.slice(dim, i * length, (i + 1) * length);
  };
  const auto for_pairs = [&, runs, length](const auto& body) {
    for (std::int64_t i = 0; i < runs; ++i) {
      for (std::int64_t j = i; j >= 0; --j) {
        body(i, j,
             ops::AttentionMask{.query_offset = sees_all ? length : i * length,
                                .first_key_BS = {},
                                .key_offset = j * length});
      }
    }
  };
  const auto forward_from = [&](ops::KeyBlock first) {
    for_pairs([&](std::int64_t i, std::int64_t j, const ops::AttentionMask& mask) {
      ops::attention_block_forward(run_of(q, i), run_of(k, j), run_of(v, j), mask, kScale,
                                   i == j ? first : ops::KeyBlock::further, run_of(out, i),
                                   run_of(lse, i, 2), s);
    });
  };
  forward_from(ops::KeyBlock::first);
  const ops::KeyBlock first = sees_all ? ops::KeyBlock::further : ops::KeyBlock::first;
  constexpr auto kApart = OpsBench::Sharing::apart;
  bench.against_gemm(
      forward_name, size, 2.0 * product, [&] { forward_from(first); }, kApart);
  if (!bench.wants(backward_name)) return;
  const Tensor dq = bench.precise(queries), dk = bench.precise(keys), dv = bench.precise(keys);
  const Tensor dout = bench.tensor(queries), delta = bench.precise({batch, heads, seq});
  const auto backward = [&] {
    ops::attention_delta(dout, out, delta, s);
    for_pairs([&](std::int64_t i, std::int64_t j, const ops::AttentionMask& mask) {
      ops::attention_block_backward(run_of(dout, i), run_of(q, i), run_of(k, j), run_of(v, j),
                                    run_of(lse, i, 2), run_of(delta, i, 2), mask, kScale,
                                    run_of(dq, i), run_of(dk, j), run_of(dv, j), s);
    });
  };
  bench.against_gemm(backward_name, size, 5.0 * product, backward, kApart);
}

void bench_attention(OpsBench& bench) {
  if (!bench.is_on_gpu()) return bench_attention(bench, {4, 12, 12, 512, 64});
  // Of gpt2-124m, tinyllama-1.1b, llama3.2-1b and llama3-8b; one document of all is the plain
  // causal mask, by another way.
  for (const AttentionSize& size :
       {AttentionSize{32, 12, 12, 1024, 64}, AttentionSize{8, 32, 4, 2048, 64},
        AttentionSize{4, 32, 8, 4096, 64}, AttentionSize{2, 32, 8, 4096, 128},
        AttentionSize{8, 32, 4, 2048, 64, documents_of(512, 4)},
        AttentionSize{4, 32, 8, 4096, 64, documents_of(512, 8)},
        AttentionSize{4, 32, 8, 4096, 64, documents_of(4096, 1)},
        AttentionSize{2, 32, 8, 4096, 128, documents_of(512, 8)},
        AttentionSize{2, 32, 8, 4096, 128, documents_of(4096, 1)}}) {
    bench_attention(bench, size);
  }
  // Documents of 4096 tokens on average.
  const std::vector<std::int64_t> few = {2041, 6151};
  const std::vector<std::int64_t> many = {1531, 6661, 4096, 2048, 137, 8055, 6144, 4096};
  for (const std::int64_t head_dim : {64, 128}) {
    bench_attention(bench, {1, 32, 8, 8192, head_dim, few});
    bench_attention(bench, {1, 32, 8, 32768, head_dim, many});
  }
  // What ranks that share a long sequence of llama3 do, and the whole of it.
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t seq : {8192, 32768}) {
      const AttentionSize size{1, 32, 8, seq, head_dim};
      bench_attention(bench, size);
      bench_attention_blocks(bench, size, 1);
      bench_attention_blocks(bench, size, 4);
      bench_attention_blocks(bench, {1, 32, 8, seq / 4, head_dim}, 0);
    }
  }
}

void bench_cross_entropy(OpsBench& bench) {
  const std::int64_t rows = bench.sizes.loss_rows, words = bench.sizes.vocabulary;
  const RowBench on(bench, rows, words);
  const Tensor logits = on.tensor(), targets = bench.ids({rows}, words);
  const Tensor loss = bench.tensor({rows}, DType::f64);
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
  bench_windows(bench);
  bench_cross_entropy(bench);
  bench_norm(bench);
  bench_activation(bench);
  bench_elementwise(bench);
  bench_tokens(bench);
  bench_flat(bench);
  bench_experts(bench);
  if (bench.results().empty()) {
    throw Error(ErrorCode::usage, fmt::format("no operation matches \"{}\"", options.filter),
                "run `heddle bench ops` without --filter to see their names");
  }
  return bench.results();
}

}  // namespace heddle
