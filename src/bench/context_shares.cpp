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
      const auto size = std::pair(message.data.count(), message.data.dtype());
      received_.push_back(size);
      ops::copy(numbers(numbers_, size, 2), message.data, stream_);
    }
    done->finish();
  }

  /// Copies as much once more, and nothing else; forgets it.
  void copy_again() {
    for (const auto& size : std::exchange(received_, {})) {
      ops::copy(numbers(numbers_, size, 2), numbers(copies_, size, 3), stream_);
    }
  }

  void run(const Collective&) override {}
  void send(const Tensor&, int, int, std::shared_ptr<WorkState>) override {}
  void recv(const Tensor&, int, int, std::shared_ptr<WorkState>) override {}
  std::shared_ptr<CommBackend> split(int, int, std::int64_t) override { return nullptr; }
  void abort(std::string_view) noexcept override {}

 private:
  using Size = std::pair<std::int64_t, DType>;
  using Kept = std::map<DType, Tensor>;

  /// Made once.
  Tensor numbers(Kept& all, const Size& size, int seed) {
    const auto& [count, dtype] = size;
    Tensor& kept = all[dtype];
    if (!kept.defined() || kept.count() < count) {
      kept = memory_.alloc({count}, dtype, MemoryTag::activations);
      ops::fill_normal(kept, static_cast<std::uint64_t>(seed), 0, 1.0, stream_);
    }
    return kept.slice(0, 0, count);
  }

  Stream& stream_;
  Memory& memory_;
  Kept numbers_, copies_;
  std::vector<Size> received_;
};

/// One rank's attention.
struct Share {
  Share(const ContextShape& shape, int rank, Stream& stream, Memory& memory, DType dtype)
      : messages(std::make_shared<RandomMessages>(rank, shape.ranks, stream, memory)),
        ranks(messages, std::make_shared<FlightRecorder>(rank), "shares"),
        attention(shape, ranks, stream, memory, dtype) {}

  std::shared_ptr<RandomMessages> messages;
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
    std::vector<double> forward, backward, messages;
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
      const auto copies = [&] {
        return timed([&] {
          for (const auto& share : shares) share->messages->copy_again();
        });
      };
      const double there = all(&ComputedCase::forward), copied_there = copies();
      const double back = all(&ComputedCase::backward), copied_back = copies();
      keep(forward, there - copied_there);
      keep(backward, back - copied_back);
      keep(messages, copied_there + copied_back);
    }
    report.methods.push_back({.shape = shape,
                              .forward_seconds = quantile(forward, 0.5),
                              .backward_seconds = quantile(backward, 0.5),
                              .message_seconds = quantile(messages, 0.5)});
  }
  report.whole_forward = quantile(whole.attention.forward_seconds, 0.5);
  report.whole_backward = quantile(whole.attention.backward_seconds, 0.5);
  return report;
}

}  // namespace heddle
