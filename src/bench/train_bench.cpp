#include "bench/train_bench.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json_value.h"
#include "base/quantile.h"
#include "base/rng.h"
#include "engine/memory_plan.h"
#include "engine/train_step.h"
#include "observe/machine.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/random.h"
#include "planner/predicted_step.h"
#include "tensor/device_runtime.h"

namespace heddle {
namespace {

/// A large square product, timed: the rate everything else is compared with.
class GemmProbe {
 public:
  GemmProbe(DType dtype, Stream& stream, Memory& memory)
      : size_(stream.device().kind == Device::Kind::cpu ? 2048 : 8192), stream_(stream) {
    a_ = memory.alloc({size_, size_}, dtype, MemoryTag::workspace);
    c_ = memory.alloc({size_, size_}, dtype, MemoryTag::workspace);
    // Not all alike: a GPU multiplies those faster than any real matrix.
    ops::fill_normal(a_.view({size_ * size_}), 1, 0, 1.0, stream);
    time_tflops();
  }

  std::int64_t size() const { return size_; }

  /// Over several products: one alone is too short to see how fast a shared machine runs on the
  /// whole.
  double time_tflops() {
    constexpr int kRepeats = 4;
    stream_.synchronize();
    const Stopwatch watch;
    for (int i = 0; i < kRepeats; ++i) {
      ops::gemm(a_, ops::Transpose::no, a_, ops::Transpose::no, c_, {}, stream_);
    }
    stream_.synchronize();
    const double flops = 2.0 * std::pow(static_cast<double>(size_), 3);
    return kRepeats * flops / watch.seconds() * 1e-12;
  }

 private:
  const std::int64_t size_;
  Stream& stream_;
  Tensor a_, c_;
};

/// What is taken of the memory that a benchmark is about: by this process on CPU, by all on a GPU.
std::size_t memory_in_use(Device device) {
  if (device.kind == Device::Kind::cpu) return observe::process_resident_bytes();
  const auto memory = device_runtime::device_memory(device);
  return memory.total_bytes - memory.free_bytes;
}

/// Sequences of one micro-batch of one replica.
std::int64_t rows_of_microbatch(const TrainBenchOptions& options, int replicas) {
  const std::int64_t parts = std::int64_t{options.microbatches} * replicas;
  if (options.batch % parts != 0) {
    throw Error(ErrorCode::usage,
                fmt::format("--batch {} is not a multiple of {} micro-batches x {} replicas",
                            options.batch, options.microbatches, replicas),
                fmt::format("use a multiple of {}", parts));
  }
  return options.batch / parts;
}

/// The largest products of a step are those of the output projection: made once on a rank that has
/// it. Returns the bytes of their matrices.
std::size_t make_largest_products(const ModelSpec& spec, const TrainBenchOptions& options,
                                  const ParallelPlan& plan, Stream& stream) {
  using enum ops::Transpose;
  Memory memory(stream.device());
  const std::int64_t rows = rows_of_microbatch(options, plan.mesh.size(Axis::dp));
  const std::int64_t tokens = std::min(options.loss_chunk, rows * options.seq);
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
    const Tensor tensor = memory.alloc({rows, columns}, options.dtype, MemoryTag::workspace);
    ops::fill(tensor, 0.5, stream);
    return tensor;
  };
  const std::int64_t holders = plan.vocabulary == VocabularyPlacement::tensor     ? plan.tp
                               : plan.vocabulary == VocabularyPlacement::pipeline ? plan.pp
                                                                                  : 1;
  const std::int64_t multiple = holders * vocabulary_multiple(stream.device());
  const std::int64_t vocab = (spec.vocab + multiple - 1) / multiple * multiple / holders;
  const Tensor x = matrix(tokens, spec.hidden), weight = matrix(vocab, spec.hidden);
  const Tensor logits = matrix(tokens, vocab);
  ops::gemm(x, no, weight, yes, logits, {}, stream);
  ops::gemm(logits, no, weight, no, x, {}, stream);
  ops::gemm(logits, yes, x, no, weight, {.beta = 1.0}, stream);
  stream.synchronize();
  return memory.stats().peak;
}

/// What is taken before training, with what the product library takes beside tensors: some it keeps
/// from its first use on, some it gives back after every product. All ranks call it together, since
/// those that are threads share the process; nobody goes on before the others have looked.
std::size_t memory_before(const ModelSpec& spec, const TrainBenchOptions& options,
                          const ParallelPlan& plan, World& world, Stream& stream) {
  const bool is_gpu = options.device.kind != Device::Kind::cpu;
  const auto stages = plan.stages_of(plan.mesh.coord(Axis::pp, world.rank()));
  const bool has_head =
      plan.divides_vocabulary_over_pp() || std::ranges::count(stages, plan.stages() - 1) > 0;
  if (has_head) make_largest_products(spec, options, plan, stream);
  world.all().barrier();
  const bool sees_peak = !is_gpu && observe::reset_process_peak();
  world.all().barrier();
  const std::size_t own = has_head ? make_largest_products(spec, options, plan, stream) : 0;
  const auto matrices =
      static_cast<std::size_t>(world.all().combine(static_cast<double>(own), ReduceOp::sum));
  const std::size_t kept = memory_in_use(options.device);
  const std::size_t peak = sees_peak ? observe::process_peak_bytes() : 0;
  world.all().barrier();
  return std::max(kept, peak > matrices ? peak - matrices : 0);
}

MicroBatch random_batch(std::int64_t sequences, std::int64_t seq, std::int64_t vocab,
                        Memory& memory) {
  const auto random_ids = [&](std::uint64_t key) {
    const Tensor ids = memory.alloc({sequences, seq}, DType::i32, MemoryTag::data);
    std::uint64_t index = 0;
    for (auto& id : ids.host<std::int32_t>()) {
      id = static_cast<std::int32_t>(random_u64(key, index++) % static_cast<std::uint64_t>(vocab));
    }
    return ids;
  };
  return plain_batch(random_ids(1), random_ids(2), 0, memory);
}

/// Seconds. Behind so long a step the second one is as warm as any.
constexpr double kLongStep = 20.0;

}  // namespace

TrainBenchResult bench_training(const ModelSpec& spec, const TrainBenchOptions& given, World& world,
                                const OnBenchStep& on_step) {
  TrainBenchOptions options = given;
  const bool is_gpu = options.device.kind != Device::Kind::cpu;
  if (options.loss_chunk == 0) options.loss_chunk = usual_loss_chunk(spec, options.device);
  HEDDLE_CHECK(options.threads > 0, "a benchmark on {} threads", options.threads);
  const ParallelPlan plan = make_plan(spec, options.parallel, world.size(), options.seq,
                                      needs_whole_matrices(options.optimizer), options.compress);
  const std::int64_t rows = rows_of_microbatch(options, plan.mesh.size(Axis::dp));
  const Mesh mesh(plan.mesh, world.all());
  Stream stream(options.threads, options.device);
  stream.set_deterministic(options.deterministic);
  Memory memory(options.device), host = memory.for_host();
  GemmProbe probe(options.dtype, stream, memory);
  const BuildOptions build{.dtype = options.dtype,
                           .positions = options.seq,
                           .recompute_blocks = options.recompute,
                           .loss_chunk = options.loss_chunk};
  const StepPlan predicted =
      plan_step(spec, build, plan, world.rank(),
                {.sequences = rows, .seq_len = options.seq, .microbatches = options.microbatches},
                {.device = options.device,
                 .deterministic = options.deterministic,
                 .optimizer = options.optimizer});
  TrainBenchResult result;
  result.predicted_memory_bytes =
      memory_before(spec, options, plan, world, stream) +
      static_cast<std::size_t>(
          world.all().combine(static_cast<double>(predicted.memory.reserved), ReduceOp::sum));

  if (options.machine) {
    result.predicted_step_seconds =
        planner::predicted_step_seconds(*options.machine, spec, plan,
                                        {.sequences = rows,
                                         .seq_len = options.seq,
                                         .microbatches = options.microbatches,
                                         .recompute = options.recompute},
                                        options.dtype);
  }

  Model model(spec, build, plan, mesh, ParamStore::Purpose::training, memory);
  initialize(model.store(), 0, stream);
  const auto optimizer = make_optimizer(options.optimizer, model.store());
  TrainStep step(model, *optimizer, stream, memory);
  std::vector<MicroBatch> batches;
  for (int i = 0; i < options.microbatches; ++i) {
    batches.push_back(random_batch(rows, options.seq, spec.vocab, host));
  }
  std::int64_t warm_up = 2;
  std::vector<double> seconds, gemm;
  for (std::int64_t i = 1; i <= warm_up + options.steps; ++i) {
    world.all().barrier();
    const Stopwatch watch;
    const StepResult outcome = step.run(batches, {.lr = 1e-4, .step = i}, 1.0);
    world.all().barrier();
    const double elapsed = watch.seconds();
    if (i == 1 && world.all().combine(elapsed, ReduceOp::max) > kLongStep) warm_up = 1;
    if (i <= warm_up) continue;
    seconds.push_back(elapsed);
    gemm.push_back(world.all().combine(probe.time_tflops(), ReduceOp::sum));
    result.loss = outcome.loss;
    if (on_step && world.rank() == 0) on_step(i - warm_up, elapsed, outcome.loss);
  }
  const double median = quantile(seconds, 0.5);
  const auto tokens = static_cast<double>(options.batch * options.seq);
  result.step_seconds_median = median;
  result.step_seconds_spread = (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / median;
  result.tokens_per_second = tokens / median;
  result.model_tflops = training_flops_per_token(spec, options.seq) * tokens / median * 1e-12;
  result.gemm_tflops_measured = quantile(gemm, 0.5);
  result.gemm_size = probe.size();
  // What a GPU's memory gave is never given back, so the end is the peak.
  result.peak_memory_bytes = is_gpu ? memory_in_use(options.device) : observe::process_peak_bytes();
  result.tagged_memory_bytes = static_cast<std::size_t>(
      world.all().combine(static_cast<double>(memory.stats().peak), ReduceOp::sum));
  result.reserved_memory_bytes = static_cast<std::size_t>(
      world.all().combine(static_cast<double>(memory.stats().reserved), ReduceOp::sum));
  result.parameters = spec.parameter_count();
  result.threads = options.threads;
  result.ranks = world.size();
  result.mesh = plan.mesh.text();
  return result;
}

JsonValue to_json(const TrainBenchResult& result) {
  return {{"tokens_per_second", result.tokens_per_second},
          {"step_seconds_median", result.step_seconds_median},
          {"step_seconds_spread", result.step_seconds_spread},
          {"predicted_step_seconds", result.predicted_step_seconds},
          {"model_tflops", result.model_tflops},
          // CPUs are not in the table of dense peaks: the measured product stands in for the peak.
          {"mfu", result.fraction_of_gemm()},
          {"gemm_tflops_measured", result.gemm_tflops_measured},
          {"fraction_of_gemm", result.fraction_of_gemm()},
          {"peak_memory_bytes", result.peak_memory_bytes},
          {"predicted_memory_bytes", result.predicted_memory_bytes},
          {"tagged_memory_bytes", result.tagged_memory_bytes},
          {"reserved_memory_bytes", result.reserved_memory_bytes},
          {"parameters", result.parameters},
          {"threads", result.threads},
          {"ranks", result.ranks},
          {"mesh", result.mesh},
          {"loss", result.loss}};
}

}  // namespace heddle
