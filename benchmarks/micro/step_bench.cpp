#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "planner/measured_rows.h"
#include "planner/simulated_step.h"

namespace heddle::planner {
namespace {

/// Largest resident memory of the process so far.
double peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

/// One step of a GPT of 1T parameters on 3,072 GPUs: tp 8, pp 64, dp 6, 512 micro-batches.
void simulate_trillion(benchmark::State& state, bool varies) {
  const Machine machine =
      read_machine(std::string(HEDDLE_SOURCE_DIR) + "/configs/systems/h200-hgx-ndr.toml");
  const Job job{.spec = gpt_spec(25600, 160, 128, 2048),
                .seq_len = 2048,
                .batch = 3072,
                .stack = Stack::heddle(DType::bf16)};
  const Candidate plan{{.dp = 6, .tp = 8, .pp = 64}, Recompute::full};
  const StepOptions options{.variation = varies ? 0.01 : 0.0};
  for (auto _ : state) {
    const SimulatedStep step = simulate_step(machine, job, plan, options);
    state.counters["ranks"] = static_cast<double>(step.ranks.size());
    state.counters["transfers"] = static_cast<double>(step.transfers);
    state.counters["spans"] = static_cast<double>(step.spans.size());
  }
  state.counters["peak_MiB"] = peak_bytes() / (1 << 20);
}

BENCHMARK_CAPTURE(simulate_trillion, equal_replicas, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate_trillion, six_different_replicas, true)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace heddle::planner

BENCHMARK_MAIN();
