#include "bench/windows_bench.h"

#include <fmt/core.h>

#include <algorithm>

#include "bench/timed_ops.h"
#include "ops/attention.h"

namespace heddle {
namespace {

constexpr std::int64_t kGroups = 8;
constexpr double kScale = 0.125, kCap = 50.0;

struct WindowSize {
  std::int64_t heads, seq, head_dim;
  std::int64_t window;  ///< of keys that a query sees; 0: all before it
  bool has_cap;

  std::string kind() const {
    const std::string of_window = window > 0 ? fmt::format(", window {}", window) : "";
    return of_window + (has_cap ? ", capped" : "");
  }
  std::string text() const { return fmt::format("1x{}x{}/{}x{}", seq, heads, kGroups, head_dim); }
  /// One product of all pairs of a query and a key that it sees; a query counts half of itself.
  double flops() const {
    const std::int64_t seen = window > 0 ? std::min(window, seq) : seq;
    const double pairs = static_cast<double>(seen * seq) - static_cast<double>(seen * seen) / 2.0;
    return 2.0 * static_cast<double>(heads * head_dim) * pairs;
  }
};

/// The tensors of a pass forward and backward, whatever its mask.
struct WindowPass {
  WindowPass(OpsBench& bench, const WindowSize& of)
      : stream(bench.stream()),
        q(bench.tensor({1, of.seq, of.heads, of.head_dim})),
        k(bench.tensor({1, of.seq, kGroups, of.head_dim})),
        v(bench.tensor(k.shape())),
        out(bench.tensor(q.shape())),
        dout(bench.tensor(q.shape())),
        dq(bench.tensor(q.shape())),
        dk(bench.tensor(k.shape())),
        dv(bench.tensor(k.shape())),
        lse(bench.precise({1, of.heads, of.seq})),
        delta(bench.precise(lse.shape())) {}

  void forward(const ops::AttentionMask& mask, const ops::ScoreRule& rule) {
    ops::attention_forward(q, k, v, mask, rule, out, lse, stream);
  }
  void backward(const ops::AttentionMask& mask, const ops::ScoreRule& rule) {
    ops::attention_backward(dout, q, k, v, out, lse, mask, rule, dq, dk, dv, delta, stream);
  }

  Stream& stream;
  Tensor q, k, v, out, dout, dq, dk, dv, lse, delta;
};

void bench_window(OpsBench& bench, const WindowSize& of) {
  const std::string forward_name = "attention forward" + of.kind(),
                    backward_name = "attention backward" + of.kind();
  if (!bench.wants(forward_name) && !bench.wants(backward_name)) return;
  WindowPass own(bench, of), whole(bench, of);
  ops::AttentionMask mask;
  if (of.window > 0) {
    const Tensor first_keys = bench.integers({1, of.seq}, [](std::int64_t) { return 0; });
    mask = ops::in_window({}, of.window, first_keys, bench.stream());
  }
  const ops::ScoreRule rule(kScale, of.has_cap ? kCap : 0.0), plain(kScale);
  WindowSize all = of;
  all.window = 0;
  bench.against_causal(
      forward_name, of.text(), 2.0 * of.flops(), [&] { own.forward(mask, rule); },
      2.0 * all.flops(), [&] { whole.forward({}, plain); });
  own.forward(mask, rule);
  whole.forward({}, plain);
  bench.against_causal(
      backward_name, of.text(), 5.0 * of.flops(), [&] { own.backward(mask, rule); },
      5.0 * all.flops(), [&] { whole.backward({}, plain); });
}

}  // namespace

void bench_windows(OpsBench& bench) {
  if (!bench.is_on_gpu()) return;
  // Heads as those of llama3.2-1b, mistral-7b or gemma2-27b, and gemma2-9b.
  for (const std::int64_t head_dim : {64, 128, 256}) {
    const std::int64_t heads = head_dim == 256 ? 16 : 32;
    for (const std::int64_t seq : {8192, 32768}) {
      for (const std::int64_t window : {1024, 4096}) {
        bench_window(bench, {heads, seq, head_dim, window, false});
      }
      bench_window(bench, {heads, seq, head_dim, 0, true});
      bench_window(bench, {heads, seq, head_dim, 4096, true});
    }
  }
}

}  // namespace heddle
