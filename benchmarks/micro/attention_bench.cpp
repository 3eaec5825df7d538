// Attention and cross entropy beside a large SGEMM of OpenBLAS, alternating in one run, so that
// `of_sgemm` means something on a busy machine too. FLOPs are those of the causal half only:
// 2 B H S S K forward, 2.5 times that backward.
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "ops/attention.h"
#include "ops/softmax_xent.h"

namespace heddle {
namespace {

/// Of one thread its own CPU time, which other programs on the machine disturb least; of several
/// the wall clock.
double seconds_of(int threads, const std::function<void()>& work) {
  const auto now = [clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC] {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Tensor normal(Memory& memory, const Shape& shape) {
  const Tensor t = memory.alloc(shape, DType::f32, MemoryTag::workspace);
  std::uint64_t index = 0;
  for (float& value : t.host<float>()) value = static_cast<float>(random_normal(1, index++));
  return t;
}

/// A square SGEMM, the measure of what the machine can do.
class Sgemm {
 public:
  explicit Sgemm(int threads)
      : a_(normal(memory_, {kSize, kSize})),
        b_(normal(memory_, {kSize, kSize})),
        c_(normal(memory_, {kSize, kSize})) {
    void* const library = dlopen("libopenblas.so.0", RTLD_NOW);
    if (library == nullptr) fail(ErrorCode::resources, "cannot load OpenBLAS: {}", dlerror());
    function_ = reinterpret_cast<Function>(dlsym(library, "cblas_sgemm"));
    reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"))(threads);
    run();
  }
  void run() {
    constexpr int kRowMajor = 101, kNoTranspose = 111, kN = kSize;
    function_(kRowMajor, kNoTranspose, kNoTranspose, kN, kN, kN, 1.0F, a_.data<float>(), kN,
              b_.data<float>(), kN, 0.0F, c_.data<float>(), kN);
  }
  static double flops() { return 2.0 * kSize * kSize * kSize; }

 private:
  static constexpr int kSize = 1024;
  using Function = void (*)(int, int, int, int, int, int, float, const float*, int, const float*,
                            int, float, float*, int);
  Memory memory_;
  Tensor a_, b_, c_;
  Function function_;
};

/// Alternates `work` and the SGEMM and reports medians.
void measure(benchmark::State& state, int threads, double flops,
             const std::function<void()>& work) {
  Sgemm sgemm(threads);
  work();
  std::vector<double> work_times, sgemm_times;
  for (auto _ : state) {
    sgemm_times.push_back(seconds_of(threads, [&] { sgemm.run(); }));
    work_times.push_back(seconds_of(threads, work));
    state.SetIterationTime(work_times.back());
  }
  const double rate = flops / median(work_times), peak = Sgemm::flops() / median(sgemm_times);
  state.counters["GFLOP/s"] = rate * 1e-9;
  state.counters["sgemm"] = peak * 1e-9;
  state.counters["of_sgemm"] = rate / peak;
}

struct Attention {
  Memory memory;
  ops::AttentionMask mask;
  Tensor q, k, v, out, lse, dout, dq, dk, dv, delta;
  double scale, forward_flops;

  explicit Attention(const benchmark::State& state) {
    const std::int64_t b = state.range(0), s = state.range(1), h = state.range(2),
                       g = state.range(3), width = state.range(4);
    scale = 1 / std::sqrt(static_cast<double>(width));
    forward_flops = 2.0 * static_cast<double>(b * h * s * s * width);
    const Tensor fused = normal(memory, {b, s, (h + 2 * g) * width});
    const Tensor gradient = normal(memory, {b, s, (h + 2 * g) * width});
    const auto part = [&](const Tensor& t, std::int64_t begin, std::int64_t heads) {
      return t.slice(2, begin * width, (begin + heads) * width).view({b, s, heads, width});
    };
    q = part(fused, 0, h), k = part(fused, h, g), v = part(fused, h + g, g);
    dq = part(gradient, 0, h), dk = part(gradient, h, g), dv = part(gradient, h + g, g);
    out = normal(memory, {b, s, h, width}), dout = normal(memory, {b, s, h, width});
    lse = normal(memory, {b, h, s}), delta = normal(memory, {b, h, s});
  }
  void forward(Stream& stream) { ops::attention_forward(q, k, v, mask, scale, out, lse, stream); }
  void backward(Stream& stream) {
    ops::attention_backward(dout, q, k, v, out, lse, mask, scale, dq, dk, dv, delta, stream);
  }
};

void attention_forward(benchmark::State& state) {
  Attention x(state);
  Stream stream(static_cast<int>(state.range(5)));
  measure(state, stream.threads(), x.forward_flops, [&] { x.forward(stream); });
}

void attention_backward(benchmark::State& state) {
  Attention x(state);
  Stream stream(static_cast<int>(state.range(5)));
  x.forward(stream);
  measure(state, stream.threads(), 2.5 * x.forward_flops, [&] { x.backward(stream); });
}

/// Causal attention on a sequence that is cut into kRuns runs, as ranks in a ring do it: the pairs
/// of runs that see each other, one call each. FLOPs are those of whole attention.
class BlockAttention {
 public:
  explicit BlockAttention(const benchmark::State& state) : x_(state) {
    for (Tensor* t : {&dq_, &dk_, &dv_}) {
      *t = normal(x_.memory, t == &dq_ ? x_.q.shape() : x_.k.shape());
    }
  }
  double forward_flops() const { return x_.forward_flops; }

  void forward(Stream& stream) {
    for (std::int64_t i = 0; i < kRuns; ++i) {
      for (std::int64_t j = i; j >= 0; --j) {
        ops::attention_block_forward(run(x_.q, i), run(x_.k, j), run(x_.v, j), mask(i, j), x_.scale,
                                     j == i ? ops::KeyBlock::first : ops::KeyBlock::further,
                                     run(x_.out, i), run(x_.lse, i, 2), stream);
      }
    }
  }
  void backward(Stream& stream) {
    ops::attention_delta(x_.dout, x_.out, x_.delta, stream);
    for (std::int64_t i = 0; i < kRuns; ++i) {
      for (std::int64_t j = i; j >= 0; --j) {
        ops::attention_block_backward(run(x_.dout, i), run(x_.q, i), run(x_.k, j), run(x_.v, j),
                                      run(x_.lse, i, 2), run(x_.delta, i, 2), mask(i, j), x_.scale,
                                      run(dq_, i), run(dk_, j), run(dv_, j), stream);
      }
    }
  }

 private:
  static constexpr std::int64_t kRuns = 4;
  std::int64_t run_length() const { return x_.q.size(1) / kRuns; }
  Tensor run(const Tensor& t, std::int64_t index, int dim = 1) const {
    return t.slice(dim, index * run_length(), (index + 1) * run_length());
  }
  ops::AttentionMask mask(std::int64_t i, std::int64_t j) const {
    return {.query_offset = i * run_length(), .first_key_BS = {}, .key_offset = j * run_length()};
  }

  Attention x_;
  Tensor dq_, dk_, dv_;
};

void attention_blocks_forward(benchmark::State& state) {
  BlockAttention x(state);
  Stream stream(static_cast<int>(state.range(5)));
  measure(state, stream.threads(), x.forward_flops(), [&] { x.forward(stream); });
}

void attention_blocks_backward(benchmark::State& state) {
  BlockAttention x(state);
  Stream stream(static_cast<int>(state.range(5)));
  x.forward(stream);
  measure(state, stream.threads(), 2.5 * x.forward_flops(), [&] { x.backward(stream); });
}

/// One query against a cache of keys: bytes of the cache per second.
void attention_decode(benchmark::State& state) {
  const std::int64_t keys = state.range(0), h = state.range(1), g = state.range(2), width = 64;
  Memory memory;
  Stream stream(static_cast<int>(state.range(3)));
  const Tensor q = normal(memory, {1, 1, h, width}), k = normal(memory, {1, keys, g, width});
  const Tensor v = normal(memory, {1, keys, g, width}), out = normal(memory, {1, 1, h, width});
  const Tensor lse = normal(memory, {1, h, 1});
  ops::AttentionMask mask;
  mask.query_offset = keys - 1;
  for (auto _ : state) ops::attention_forward(q, k, v, mask, 0.125, out, lse, stream);
  state.SetBytesProcessed(state.iterations() * 8 * keys * g * width);
}

void cross_entropy(benchmark::State& state) {
  const std::int64_t rows = state.range(0), vocabulary = state.range(1);
  Memory memory;
  Stream stream(static_cast<int>(state.range(2)));
  const Tensor logits = normal(memory, {rows, vocabulary});
  const Tensor targets = memory.zeros({rows}, DType::i32, MemoryTag::workspace);
  const Tensor loss = memory.zeros({rows}, DType::f64, MemoryTag::workspace);
  for (auto _ : state) {
    ops::cross_entropy_forward_backward(logits, targets, 1.0, loss, stream);
  }
  state.SetBytesProcessed(state.iterations() * 8 * rows * vocabulary);  // read and written
}

void attention_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"B", "S", "H", "G", "K", "threads"})->UseManualTime()->Unit(benchmark::kMillisecond);
  for (const int threads : {1, 2}) {
    b->Args({4, 512, 12, 12, 64, threads});
    b->Args({4, 256, 12, 12, 64, threads});
    b->Args({1, 2048, 32, 4, 64, threads});
  }
}

BENCHMARK(attention_forward)->Apply(attention_shapes);
BENCHMARK(attention_backward)->Apply(attention_shapes);
BENCHMARK(attention_blocks_forward)->Apply(attention_shapes);
BENCHMARK(attention_blocks_backward)->Apply(attention_shapes);
BENCHMARK(attention_decode)
    ->ArgNames({"T", "H", "G", "threads"})
    ->Args({1024, 12, 12, 1})
    ->Args({2048, 32, 4, 1})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(cross_entropy)
    ->ArgNames({"T", "V", "threads"})
    ->ArgsProduct({{256}, {32000, 50257}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  // Debian's OpenBLAS takes newer CPUs for very old ones and would be a baseline too easy to beat.
  setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
