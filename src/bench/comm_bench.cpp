#include "bench/comm_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/quantile.h"

namespace heddle {
namespace {

class CommBench {
 public:
  CommBench(World& world, const CommBound& bound, const CommBenchOptions& options)
      : all_(world.all()), bound_(bound), options_(options) {}

  CommBenchResult measure(CommOp op, std::int64_t bytes) {
    const std::int64_t shard_count = std::max<std::int64_t>(1, bytes / 4 / all_.size());
    whole_ = memory_.zeros({shard_count * all_.size()}, DType::f32, MemoryTag::communication);
    shard_ = memory_.zeros({shard_count}, DType::f32, MemoryTag::communication);
    const auto ours = [&] { call(op); };
    const auto theirs = [&] { bound_(op, whole_, shard_); };
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
            .bytes = static_cast<std::int64_t>(whole_.size_bytes()),
            .seconds = quantile(own, 0.5),
            .bound_seconds = quantile(bound, 0.5),
            .fraction = std::sqrt(quantile(fraction_first, 0.5) * quantile(fraction_second, 0.5))};
  }

 private:
  void call(CommOp op) {
    switch (op) {
      case CommOp::all_reduce: return all_.all_reduce(whole_, ReduceOp::sum, stream_).wait(stream_);
      case CommOp::all_gather: return all_.all_gather(shard_, whole_, stream_).wait(stream_);
      default: return all_.reduce_scatter(whole_, shard_, ReduceOp::sum, stream_).wait(stream_);
    }
  }

  template <class Body>
  double seconds_of(const Body& body, int times) {
    all_.barrier();
    const Stopwatch watch;
    for (int i = 0; i < times; ++i) body();
    return watch.seconds();
  }

  double slowest(double seconds) {
    const Tensor value = memory_.alloc({1}, DType::f64, MemoryTag::communication);
    *value.data<double>() = seconds;
    all_.all_reduce(value, ReduceOp::max, stream_).wait(stream_);
    return *value.data<double>();
  }

  Communicator& all_;
  const CommBound& bound_;
  const CommBenchOptions& options_;
  Memory memory_;
  Stream stream_{1};
  Tensor whole_, shard_;
};

}  // namespace

std::vector<CommBenchResult> bench_comm(World& world, const CommBound& bound,
                                        const CommBenchOptions& options) {
  std::vector<CommBenchResult> results;
  CommBench bench(world, bound, options);
  for (const CommOp op : {CommOp::all_reduce, CommOp::all_gather, CommOp::reduce_scatter}) {
    for (std::int64_t bytes = options.smallest_bytes; bytes <= options.largest_bytes; bytes *= 4) {
      results.push_back(bench.measure(op, bytes));
    }
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
