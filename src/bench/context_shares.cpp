#include "bench/context_shares.h"

#include <map>

#include "base/clock.h"
#include "base/quantile.h"
#include "bench/attention_case.h"
#include "comm/record/record_communicator.h"
#include "ops/elementwise.h"
#include "ops/random.h"

namespace heddle {
namespace {

/// A rank whose peers do not exist. Messages come at once, with random numbers: how long kernels
/// take on a GPU depends on what they multiply, by the clocks that its power allows.
class RandomMessages final : public CommBackend {
 public:
  RandomMessages(int rank, int size, Stream& stream, Memory& memory)
      : CommBackend(rank, RecordCommunicator(rank, size).backend()->group()),
        stream_(stream),
        memory_(memory) {}

  void start_message(const Message& message, std::shared_ptr<WorkState> done) override {
    if (message.op == CommOp::recv) {
      ops::copy(numbers(message.data.count(), message.data.dtype()), message.data, stream_);
    }
    done->finish();
  }
  void run(const Collective&) override {}
  void send(const Tensor&, int, int, std::shared_ptr<WorkState>) override {}
  void recv(const Tensor&, int, int, std::shared_ptr<WorkState>) override {}
  std::shared_ptr<CommBackend> split(int, int, std::int64_t) override { return nullptr; }
  void abort(std::string_view) noexcept override {}

 private:
  /// Made once.
  Tensor numbers(std::int64_t count, DType dtype) {
    Tensor& kept = kept_[dtype];
    if (!kept.defined() || kept.count() < count) {
      kept = memory_.alloc({count}, dtype, MemoryTag::activations);
      ops::fill_normal(kept, 2, 0, 1.0, stream_);
    }
    return kept.slice(0, 0, count);
  }

  Stream& stream_;
  Memory& memory_;
  std::map<DType, Tensor> kept_;
};

/// One rank's attention.
struct Share {
  Share(const ContextShape& shape, int rank, Stream& stream, Memory& memory, DType dtype)
      : ranks(std::make_shared<RandomMessages>(rank, shape.ranks, stream, memory),
              std::make_shared<FlightRecorder>(rank), "shares"),
        attention(shape, ranks, stream, memory, dtype) {}

  Communicator ranks;
  ComputedCase attention;
};

}  // namespace

ContextSharesReport bench_context_shares(int ranks, Stream& stream,
                                         const ContextBenchOptions& options) {
  Memory memory(stream.device());
  const auto timed = [&](const auto& work) {
    stream.synchronize();
    const Stopwatch watch;
    work();
    stream.synchronize();
    return watch.seconds();
  };
  ContextShape whole_shape = shapes_of(options, ranks).front();
  whole_shape.ranks = 1;
  Share whole(whole_shape, 0, stream, memory, options.dtype);
  ContextSharesReport report;
  for (const ContextShape& shape : shapes_of(options, ranks)) {
    std::vector<std::unique_ptr<Share>> shares;
    for (int rank = 0; rank < ranks; ++rank) {
      shares.push_back(std::make_unique<Share>(shape, rank, stream, memory, options.dtype));
    }
    std::vector<double> forward, backward;
    for (int round = -1; round < options.rounds; ++round) {  // the first one warms up
      const auto keep = [&](std::vector<double>& to, double seconds) {
        if (round >= 0) to.push_back(seconds);
      };
      keep(whole.attention.forward_seconds, timed([&] { whole.attention.forward(); }));
      keep(whole.attention.backward_seconds, timed([&] { whole.attention.backward(); }));
      const auto all = [&](void (ComputedCase::*pass)()) {
        return timed([&] {
          for (const auto& share : shares) (share->attention.*pass)();
        });
      };
      keep(forward, all(&ComputedCase::forward));
      keep(backward, all(&ComputedCase::backward));
    }
    report.methods.push_back({.shape = shape,
                              .forward_seconds = quantile(forward, 0.5),
                              .backward_seconds = quantile(backward, 0.5)});
  }
  report.whole_forward = quantile(whole.attention.forward_seconds, 0.5);
  report.whole_backward = quantile(whole.attention.backward_seconds, 0.5);
  return report;
}

}  // namespace heddle
