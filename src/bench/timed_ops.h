#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/quantile.h"
#include "bench/ops_bench.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/random.h"
#include "tensor/memory.h"
#include "tensor/stream.h"

namespace heddle {

/// The sizes of a step: of a 110M-parameter model on a CPU, of gpt2-124m with 32 sequences on a
/// GPU. There, what only moves bytes has tensors of 200 MB and more, and rows of llama3.2-1b too:
/// less stays in the cache.
struct OpSizes {
  std::int64_t tokens, width, feed_forward, vocabulary, loss_rows, flat;
  std::int64_t rows;                                          ///< of `width`, where only bytes move
  std::int64_t wide_rows, wide, heads, seq, wide_vocabulary;  ///< longer rows
  std::int64_t product;  ///< side of the square product that bounds
};
inline constexpr OpSizes kOnCpu{.tokens = 2048,
                                .width = 768,
                                .feed_forward = 2048,
                                .vocabulary = 32000,
                                .loss_rows = 512,
                                .flat = 50'000'000,
                                .rows = 2048,
                                .wide_rows = 2048,
                                .wide = 768,
                                .heads = 12,
                                .seq = 512,
                                .wide_vocabulary = 32000,
                                .product = 2048};
inline constexpr OpSizes kOnGpu{.tokens = 32768,
                                .width = 768,
                                .feed_forward = 3072,
                                .vocabulary = 50304,
                                .loss_rows = 4096,
                                .flat = 200'000'000,
                                .rows = 131072,
                                .wide_rows = 131072,
                                .wide = 2048,
                                .heads = 32,
                                .seq = 4096,
                                .wide_vocabulary = 128256,
                                .product = 8192};

/// Runs operations in turns with what bounds them, so that both meet the same state of the machine,
/// and keeps the results.
class OpsBench {
 public:
  explicit OpsBench(const OpsBenchOptions& options)
      : sizes(options.device.kind == Device::Kind::cuda ? kOnGpu : kOnCpu),
        options_(options),
        stream_(options.threads, options.device),
        memory_(options.device) {
    stream_.set_deterministic(false);  // as training runs unless it is told otherwise
  }

  const OpSizes sizes;

  Stream& stream() { return stream_; }
  bool is_on_gpu() const { return stream_.device().kind == Device::Kind::cuda; }
  DType dtype() const { return options_.dtype; }
  const std::vector<OpBenchResult>& results() const { return results_; }

  Tensor tensor(const Shape& shape, DType dtype) {
    const Tensor t = memory_.alloc(shape, dtype, MemoryTag::workspace);
    if (is_on_gpu() || dtype == DType::f32) {
      ops::fill(t, dtype == DType::f32 || dtype == DType::bf16 ? 0.5 : 0.0, stream_);
    } else {
      std::fill_n(t.bytes(), t.size_bytes(), std::byte{0});
    }
    return t;
  }
  /// Of the type that is benched. On a GPU the values are random: it multiplies equal ones faster.
  Tensor tensor(const Shape& shape) {
    const Tensor t = tensor(shape, options_.dtype);
    if (is_on_gpu()) ops::fill_normal(t.view({t.count()}), 1, 0, 1.0, stream_);
    return t;
  }
  /// A gradient of a parameter, or a statistic.
  Tensor precise(const Shape& shape) { return tensor(shape, DType::f32); }
  /// `value` of each element's number.
  Tensor integers(const Shape& shape, const std::function<std::int64_t(std::int64_t)>& value) {
    const Tensor host = Memory().alloc(shape, DType::i32, MemoryTag::workspace);
    std::int64_t i = 0;
    for (auto& element : host.host<std::int32_t>()) {
      element = static_cast<std::int32_t>(value(i++));
    }
    const Tensor t = memory_.alloc(shape, DType::i32, MemoryTag::workspace);
    ops::copy(host, t, stream_);
    return t;
  }
  Tensor ids(const Shape& shape, std::int64_t below) {
    return integers(shape, [below](std::int64_t i) { return i * 7919 % below; });
  }

  bool wants(const std::string& name) const {
    return name.find(options_.filter) != std::string::npos;
  }

  /// `bytes`: what one call must read and write. The bound is a copy that moves as many (up to half
  /// a GiB, far beyond the caches).
  void against_copy(const std::string& name, const std::string& size, double bytes,
                    const std::function<void()>& run) {
    if (!wants(name)) return;
    const double copied = std::min(bytes, 512.0 * (1 << 20));
    const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(copied / 8));
    const Tensor from = precise({count}), to = precise({count});
    const auto [time, limit] = in_turns(run, [&] { ops::copy(from, to, stream_); });
    results_.push_back({name, size, Bound::copy, time, bytes / time / 1e9, copied / limit / 1e9});
  }

  /// How an operation and its bound share the machine: in turns, or one after the other, rested. A
  /// product brings a GPU to the limit of its power, where what runs between products is slower
  /// than it is by itself.
  enum class Sharing { in_turns, apart };

  void against_gemm(const std::string& name, const std::string& size, double flops,
                    const std::function<void()>& run, Sharing sharing = Sharing::in_turns) {
    if (!wants(name)) return;
    const std::int64_t side = sizes.product;
    const Tensor a = tensor({side, side}), b = tensor({side, side}), c = tensor({side, side});
    const auto bound = [&] {
      ops::gemm(a, ops::Transpose::no, b, ops::Transpose::no, c, {}, stream_);
    };
    const auto [time, limit] =
        sharing == Sharing::apart && is_on_gpu() ? apart(run, bound) : in_turns(run, bound);
    const auto cube = static_cast<double>(side * side * side);
    results_.push_back(
        {name, size, Bound::gemm, time, flops / time / 1e9, 2.0 * cube / limit / 1e9});
  }

  /// The bound is `dense`, which does as much arithmetic.
  void against_dense(const std::string& name, const std::string& size, double flops,
                     const std::function<void()>& run, const std::function<void()>& dense) {
    if (!wants(name)) return;
    const auto [time, limit] = in_turns(run, dense);
    results_.push_back({name, size, Bound::dense, time, flops / time / 1e9, flops / limit / 1e9});
  }

  /// The bound is `causal`, which does so much arithmetic; both alone and rested.
  void against_causal(const std::string& name, const std::string& size, double flops,
                      const std::function<void()>& run, double causal_flops,
                      const std::function<void()>& causal) {
    if (!wants(name)) return;
    const auto [time, limit] = apart(run, causal);
    results_.push_back(
        {name, size, Bound::causal, time, flops / time / 1e9, causal_flops / limit / 1e9});
  }

 private:
  std::pair<double, double> in_turns(const std::function<void()>& run,
                                     const std::function<void()>& bound) {
    std::vector<double> times, limits;
    run();
    bound();
    const Stopwatch total;
    while (times.size() < 5 || total.seconds() < options_.seconds) {
      times.push_back(timed(run));
      limits.push_back(timed(bound));
    }
    return {quantile(times, 0.5), quantile(limits, 0.5)};
  }

  std::pair<double, double> apart(const std::function<void()>& run,
                                  const std::function<void()>& bound) {
    const auto alone = [&](const std::function<void()>& what) {
      what();
      stream_.synchronize();
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      std::vector<double> times;
      const Stopwatch total;
      while (times.size() < 5 || total.seconds() < options_.seconds) times.push_back(timed(what));
      return quantile(times, 0.5);
    };
    return {alone(run), alone(bound)};
  }

  /// Once for nothing, because the other operation has left its own data in the caches. On a GPU a
  /// call only starts the work: several in a row, so that the wait for the last does not count.
  double timed(const std::function<void()>& run) {
    const double once = seconds_of(run, 1);
    if (!is_on_gpu()) return seconds_of(run, 1);
    return seconds_of(run, static_cast<int>(std::clamp(5e-3 / once, 1.0, 100.0)));
  }
  double seconds_of(const std::function<void()>& run, int repeats) {
    stream_.synchronize();
    const Stopwatch watch;
    for (int i = 0; i < repeats; ++i) run();
    stream_.synchronize();
    return watch.seconds() / repeats;
  }

  OpsBenchOptions options_;
  Stream stream_;
  Memory memory_;
  std::vector<OpBenchResult> results_;
};

}  // namespace heddle
