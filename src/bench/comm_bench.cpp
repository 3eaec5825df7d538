#include "bench/comm_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/quantile.h"
#include "codec/registry.h"
#include "parallel/exchange/compressed_sum.h"

namespace heddle {
namespace {

/// Times one thing in turns with another on all ranks.
class CommBench {
 public:
  CommBench(World& world, Device device, const CommBenchOptions& options)
      : all_(world.all()),
        options_(options),
        memory_(Memory::Mode::real, device),
        stream_(1, device) {}

  /// Tensors of so many bytes for what comes next, all zeros.
  void make_tensors(std::int64_t bytes) {
    const std::int64_t shard_count = std::max<std::int64_t>(1, bytes / 4 / all_.size());
    whole = memory_.zeros({shard_count * all_.size()}, DType::f32, MemoryTag::communication);
    shard = memory_.zeros({shard_count}, DType::f32, MemoryTag::communication);
  }

  template <class Ours, class Theirs>
  CommBenchResult measure(CommOp op, const Ours& ours, const Theirs& theirs) {
    ours();
    theirs();
    // One number for all ranks: what the slowest would choose.
    const double once = slowest(seconds_of(ours, 3) / 3 + seconds_of(theirs, 3) / 3);
    const int in_a_row = std::clamp(static_cast<int>(1e-3 / once), 1, 100);
    const int pairs =
        std::clamp(static_cast<int>(options_.seconds / (once * in_a_row) / 2), 9, 501);
    std::vector<double> own, bound, fraction_first, fraction_second;
    for (int pair = 0; pair < pairs; ++pair) {
      // Who goes second finds other caches, so each goes first as often as the other.
      const double ours_first = seconds_of(ours, in_a_row),
                   theirs_second = seconds_of(theirs, in_a_row);
      const double theirs_first = seconds_of(theirs, in_a_row),
                   ours_second = seconds_of(ours, in_a_row);
      own.insert(own.end(), {ours_first / in_a_row, ours_second / in_a_row});
      bound.insert(bound.end(), {theirs_first / in_a_row, theirs_second / in_a_row});
      fraction_first.push_back(theirs_second / ours_first);
      fraction_second.push_back(theirs_first / ours_second);
    }
    return {.op = op,
            .bytes = static_cast<std::int64_t>(whole.size_bytes()),
            .seconds = quantile(own, 0.5),
            .bound_seconds = quantile(bound, 0.5),
            .fraction = std::sqrt(quantile(fraction_first, 0.5) * quantile(fraction_second, 0.5))};
  }

  void call(CommOp op) {
    switch (op) {
      case CommOp::all_reduce: return all_.all_reduce(whole, ReduceOp::sum, stream_).wait(stream_);
      case CommOp::all_gather: return all_.all_gather(shard, whole, stream_).wait(stream_);
      default: return all_.reduce_scatter(whole, shard, ReduceOp::sum, stream_).wait(stream_);
    }
  }

  Communicator& ranks() { return all_; }
  Memory& memory() { return memory_; }
  Stream& stream() { return stream_; }

  Tensor whole, shard;

 private:
  template <class Body>
  double seconds_of(const Body& body, int times) {
    stream_.synchronize();
    all_.barrier();
    const Stopwatch watch;
    for (int i = 0; i < times; ++i) body();
    stream_.synchronize();
    return watch.seconds();
  }

  double slowest(double seconds) {
    const Tensor value = Memory().alloc({1}, DType::f64, MemoryTag::communication);
    *value.data<double>() = seconds;
    Stream host(1);
    all_.all_reduce(value, ReduceOp::max, host).wait(host);
    return *value.data<double>();
  }

  Communicator& all_;
  const CommBenchOptions& options_;
  Memory memory_;
  Stream stream_;
};

}  // namespace

std::vector<CommBenchResult> bench_comm(World& world, const CommBound& bound,
                                        const CommBenchOptions& options) {
  std::vector<CommBenchResult> results;
  CommBench bench(world, Device(), options);
  for (const CommOp op : {CommOp::all_reduce, CommOp::all_gather, CommOp::reduce_scatter}) {
    for (std::int64_t bytes = options.smallest_bytes; bytes <= options.largest_bytes; bytes *= 4) {
      bench.make_tensors(bytes);
      results.push_back(bench.measure(
          op, [&] { bench.call(op); }, [&] { bound(op, bench.whole, bench.shard); }));
    }
  }
  return results;
}

std::vector<CommBenchResult> bench_compressed_sum(World& world, Device device,
                                                  const codec::Codec& codec,
                                                  const CommBenchOptions& options) {
  std::vector<CommBenchResult> results;
  CommBench bench(world, device, options);
  const CompressedSum exchange(codec::make_codec(codec.name()), bench.ranks(), bench.memory());
  const Tensor bad = bench.memory().zeros({1}, DType::i64, MemoryTag::communication);
  for (std::int64_t bytes = options.smallest_bytes; bytes <= options.largest_bytes; bytes *= 4) {
    bench.make_tensors(bytes);
    const auto ours = [&] {
      exchange.sum(bench.whole, {.bad = bad}, {.bad = bad}, bench.stream()).end(bench.stream());
    };
    results.push_back(
        bench.measure(CommOp::all_reduce, ours, [&] { bench.call(CommOp::all_reduce); }));
  }
  return results;
}

CommBound copy_bound(Memory& memory) {
  return [&memory, copy = Tensor()](CommOp, const Tensor& whole, const Tensor&) mutable {
    if (!copy.defined() || copy.count() != whole.count()) {
      copy = memory.zeros(whole.shape(), whole.dtype(), MemoryTag::communication);
    }
    std::memcpy(copy.bytes(), whole.bytes(), whole.size_bytes());
  };
}

}  // namespace heddle
