#include "bench/context_bench.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/quantile.h"
#include "bench/attention_case.h"
#include "bench/timed_walk.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "simulator/play_context.h"

namespace heddle {
namespace {

/// Its rounds, with waits in place of blocks.
class EmulatedCase final : public AttentionCase {
 public:
  EmulatedCase(const ContextShape& shape, World& world, Stream& stream, Memory& memory,
               const ContextTimes& times)
      : AttentionCase(shape, world.rank()),
        world_(world),
        stream_(stream),
        memory_(memory),
        times_(times) {}

  void forward() override { run(context_->forward, ContextPassKind::forward, 1.0); }
  void backward() override { run(context_->backward, ContextPassKind::backward, times_.backward); }

 private:
  void run(const ContextProgram& program, ContextPassKind kind, double factor) {
    Ctx ctx{.stream = stream_, .memory = memory_, .batch = nothing_};
    TimedPass(program, kind, plan().shape)
        .run(factor * times_.pair / plan().shape.heads, world_, ctx);
  }

  World& world_;
  Stream& stream_;
  Memory& memory_;
  const ContextTimes times_;
  const MicroBatch nothing_ = {};
};

/// What a rank computes and sends in a second while all others do the same.
class Rates {
 public:
  Rates(World& world, Stream& stream, Memory& memory, const ContextBenchOptions& options)
      : all_(world.all()), stream_(stream) {
    const std::int64_t tokens = std::max<std::int64_t>(1, options.tokens / world.size());
    const auto tensor = [&](std::int64_t heads, DType dtype) {
      const Tensor made =
          memory.alloc({1, tokens, heads, options.head_dim}, dtype, MemoryTag::activations);
      ops::fill(made, 0.01, stream);
      return made;
    };
    const DType wide = statistics_of(options.dtype);
    q_ = tensor(options.heads, options.dtype);
    dout_ = tensor(options.heads, options.dtype);
    k_ = tensor(options.key_heads, options.dtype);
    v_ = tensor(options.key_heads, options.dtype);
    received_ = tensor(options.key_heads, options.dtype);
    out_ = tensor(options.heads, wide);
    dk_ = tensor(options.key_heads, wide);
    dv_ = tensor(options.key_heads, wide);
    lse_ = memory.alloc({1, options.heads, tokens}, wide, MemoryTag::activations);
    ops::fill(lse_, 0.0, stream);
    pairs_ = static_cast<double>(tokens) * static_cast<double>(tokens);
  }

  /// A block of queries behind all its keys, as most blocks are.
  void forward() {
    ops::attention_block_forward(q_, k_, v_, {.query_offset = k_.size(1), .first_key_BS = {}},
                                 0.125, ops::KeyBlock::first, out_, lse_, stream_);
  }
  void backward() {
    ops::attention_block_backward(dout_, q_, k_, v_, lse_, lse_,
                                  {.query_offset = k_.size(1), .first_key_BS = {}}, 0.125, out_,
                                  dk_, dv_, stream_);
  }
  /// K goes to the next rank while so many blocks are computed.
  void send_on(int blocks = 0) {
    const int next = (all_.rank() + 1) % all_.size();
    const int before = (all_.rank() + all_.size() - 1) % all_.size();
    all_.begin_group();
    const Work in = all_.recv(received_, before, stream_), out = all_.send(k_, next, stream_);
    all_.end_group();
    for (int block = 0; block < blocks; ++block) forward();
    in.wait(stream_);
    out.wait(stream_);
  }
  double pairs() const { return pairs_; }
  double bytes() const { return static_cast<double>(k_.size_bytes()); }

 private:
  Communicator& all_;
  Stream& stream_;
  Tensor q_, k_, v_, dout_, received_, out_, dk_, dv_, lse_;
  double pairs_ = 0;
};

ContextBenchResult result_of(const AttentionCase& timed, const ContextTimes& times) {
  const ContextPlan& plan = timed.plan();
  ContextBenchResult result{.shape = plan.shape,
                            .forward_seconds = quantile(timed.forward_seconds, 0.5),
                            .backward_seconds = quantile(timed.backward_seconds, 0.5)};
  result.predicted_seconds =
      play_forward(plan, times).makespan + play_backward(plan, times).makespan;
  const auto forward = count_by_rank(plan.forward, plan.shape);
  const auto backward = count_by_rank(plan.backward, plan.shape);
  for (std::size_t rank = 0; rank < forward.size(); ++rank) {
    result.sent_bytes = std::max(result.sent_bytes, bytes_of(forward[rank].sent, times.sizes) +
                                                        bytes_of(backward[rank].sent, times.sizes));
  }
  return result;
}

}  // namespace

std::vector<ContextShape> shapes_of(const ContextBenchOptions& options, int ranks) {
  std::vector<ContextShape> shapes;
  const auto add = [&](ContextMethod method, ContextOrder order) {
    const ContextShape shape{.method = method,
                             .order = order,
                             .ranks = ranks,
                             .tokens = options.tokens,
                             .documents = options.documents,
                             .heads = options.heads,
                             .key_heads = options.key_heads,
                             .head_dim = options.head_dim};
    if (problems_of(shape).empty()) shapes.push_back(resolved(shape));
  };
  for (const ContextOrder order :
       {ContextOrder::zigzag, ContextOrder::contiguous, ContextOrder::striped}) {
    add(ContextMethod::ring, order);
  }
  for (const ContextMethod method :
       {ContextMethod::gather, ContextMethod::ulysses, ContextMethod::usp, ContextMethod::lightseq,
        ContextMethod::tokenring}) {
    add(method, ContextOrder::automatic);
  }
  return shapes;
}

ContextBenchReport bench_context(World& world, Stream& stream, const ContextBenchOptions& options) {
  wake_in_time();
  Memory memory(stream.device());
  Communicator& all = world.all();
  const bool is_emulated = options.emulated_flops_per_second > 0.0;
  const auto value = static_cast<int>(size_of(options.dtype));
  ContextTimes times{.sizes = {.value = value, .partial = std::max(value, 4)}};
  if (is_emulated) {
    times.pair = 4.0 * options.heads * options.head_dim / options.emulated_flops_per_second;
  }
  std::vector<std::unique_ptr<AttentionCase>> cases;
  for (const ContextShape& shape : shapes_of(options, world.size())) {
    if (is_emulated) {
      cases.push_back(std::make_unique<EmulatedCase>(shape, world, stream, memory, times));
    } else {
      cases.push_back(
          std::make_unique<ComputedCase>(shape, world.all(), stream, memory, options.dtype));
    }
  }
  const auto timed = [&](const auto& work) {
    stream.synchronize();
    all.barrier();
    const Stopwatch watch;
    work();
    stream.synchronize();
    return all.combine(watch.seconds(), ReduceOp::max);
  };
  Rates rates(world, stream, memory, options);
  std::vector<double> forward, backward, link, slower;
  for (int round = -1; round < options.rounds; ++round) {  // the first one warms up
    if (round == 0) all.connect_groups();
    const auto keep = [&](std::vector<double>& to, double seconds) {
      if (round >= 0) to.push_back(seconds);
    };
    const double sent = timed([&] { rates.send_on(); });
    keep(link, sent);
    if (!is_emulated) {
      const double block = timed([&] { rates.forward(); });
      keep(forward, block);
      keep(backward, timed([&] { rates.backward(); }));
      const int blocks = std::clamp(static_cast<int>(std::ceil(1.5 * sent / block)), 1, 100);
      keep(slower, timed([&] { rates.send_on(blocks); }) - blocks * block);
    }
    for (const auto& one : cases) {
      keep(one->forward_seconds, timed([&] { one->forward(); }));
      keep(one->backward_seconds, timed([&] { one->backward(); }));
    }
  }
  times.byte = quantile(link, 0.5) / rates.bytes();
  if (!is_emulated) {
    times.pair = quantile(forward, 0.5) / rates.pairs();
    times.backward = quantile(backward, 0.5) / quantile(forward, 0.5);
    // As much comes as goes.
    times.busy_byte = std::max(0.0, quantile(slower, 0.5) / (2.0 * rates.bytes()));
  }
  ContextBenchReport report{.pairs_per_second = 1.0 / times.pair,
                            .backward_factor = times.backward,
                            .link_bytes_per_second = 1.0 / times.byte,
                            .busy_seconds_per_byte = times.busy_byte,
                            .results = {}};
  for (const auto& one : cases) report.results.push_back(result_of(*one, times));
  return report;
}

}  // namespace heddle
