#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/json_value.h"
#include "comm/world.h"
#include "model/parallel_plan.h"
#include "model/spec.h"
#include "optim/optimizer.h"
#include "planner/machine.h"

namespace heddle {

struct TrainBenchOptions {
  std::int64_t batch = 4, seq = 512, steps = 10;  ///< sequences of a step over all ranks
  int microbatches = 1;                           ///< into which each replica cuts its sequences
  int threads = 0;     ///< of each rank; set by the caller: a benchmark of one thread must be meant
  Device device = {};  ///< of this rank
  DType dtype = DType::f32;
  std::int64_t loss_chunk = 0;  ///< 0: what suits the device
  bool recompute = false;
  bool deterministic = false;  ///< only kernels that give the same bits every time
  ParallelRequest parallel = {};
  Compression compress = {};
  OptimizerConfig optimizer = {};
  std::shared_ptr<const planner::Machine> machine = {};  ///< to predict the step's time by
};

/// Throughput of the whole training step (forward, backward, clipping, update) on random tokens.
struct TrainBenchResult {
  double tokens_per_second = 0;
  double step_seconds_median = 0;
  double step_seconds_spread = 0;                     ///< interquartile range over median
  std::optional<double> predicted_step_seconds = {};  ///< where a machine was given
  double model_tflops = 0;
  double gemm_tflops_measured = 0;  ///< a large square product between the steps, median
  std::int64_t gemm_size = 0;       ///< its side
  std::size_t peak_memory_bytes =
      0;  ///< the process's resident set, or all that is taken of the GPU
  std::size_t predicted_memory_bytes = 0;
  std::size_t tagged_memory_bytes = 0;    ///< what our own ledger counted at its peak
  std::size_t reserved_memory_bytes = 0;  ///< what it took for that; the rest is the libraries'
  std::int64_t parameters = 0;
  int threads = 0;  ///< of each rank
  int ranks = 1;
  std::string mesh;
  double loss = 0;

  double fraction_of_gemm() const { return model_tflops / gemm_tflops_measured; }
};

/// Called after every timed step with (step, seconds, loss).
using OnBenchStep = std::function<void(std::int64_t, double, double)>;

/// Two steps of warm-up come first and do not count, or one where it takes long. Every rank of
/// `world` calls it; bytes are of the process, which all ranks that are threads share, or of the
/// GPU, with what others have there.
TrainBenchResult bench_training(const ModelSpec& spec, const TrainBenchOptions& options,
                                World& world, const OnBenchStep& on_step);

JsonValue to_json(const TrainBenchResult& result);

}  // namespace heddle
