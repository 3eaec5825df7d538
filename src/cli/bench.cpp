#include <iostream>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/strings.h"
#include "bench/train_bench.h"
#include "cli/compute_choice.h"
#include "cli/ranks.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "config/load.h"
#include "planner/machine.h"
#include "train/model_setup.h"

namespace heddle::cli {
namespace {

struct BenchTrainArguments {
  std::string model, device = "cpu", dtype = "f32";
  std::filesystem::path system;
  TrainBenchOptions bench;
  int ranks = 1;
  std::vector<std::string> overrides;
  bool json = false;
};

void print_result(const TrainBenchResult& result) {
  log_info("tokens/s     {:.0f} ({:.3f} s a step, spread {:.1f} %)", result.tokens_per_second,
           result.step_seconds_median, 100 * result.step_seconds_spread);
  log_info("rate         {:.3f} TFLOP/s, {:.1f} % of a {}^3 product at {:.3f} TFLOP/s",
           result.model_tflops, 100 * result.fraction_of_gemm(), result.gemm_size,
           result.gemm_tflops_measured);
  if (result.predicted_step_seconds) {
    log_info("prediction   {:.3f} s a step ({:+.1f} %)", *result.predicted_step_seconds,
             100 * (*result.predicted_step_seconds / result.step_seconds_median - 1));
  }
  const auto peak = static_cast<double>(result.peak_memory_bytes);
  const auto predicted = static_cast<double>(result.predicted_memory_bytes);
  log_info("memory       {} at the peak, {} predicted ({:+.1f} %)", format_bytes(peak),
           format_bytes(predicted), 100 * (predicted / peak - 1));
  log_info("parameters   {} on {} x {} threads, {}", format_thousands(result.parameters),
           result.ranks, result.threads, result.mesh);
}

void run(const BenchTrainArguments& arguments) {
  const int ranks = rank_count(arguments.ranks);
  TrainBenchOptions options = arguments.bench;
  options.threads = thread_count(options.threads, ranks);
  ComputeChoice choice;
  ModelSpec spec;
  prepare_on_ranks([&] {
    choice = compute_choice(arguments.device, arguments.dtype);
    const config::RunConfig settings = config::parse_settings(arguments.overrides);
    options.parallel = settings.parallel;
    options.compress = settings.compress;
    options.optimizer = optimizer_config(settings.optim);
    spec = named_model(arguments.model);
    if (arguments.system.empty()) return;
    options.machine = std::make_shared<planner::Machine>(planner::read_machine(arguments.system));
  });
  TrainBenchResult result;
  run_on_devices(choice.device.kind, ranks, [&](World& world, Device device) {
    TrainBenchOptions own_options = options;
    own_options.dtype = choice.dtype;
    own_options.device = device;
    const auto own = bench_training(
        spec, own_options, world, [&](std::int64_t step, double seconds, double loss) {
          log_info("step {}/{} | {:.3f} s | loss {:.3f}", step, options.steps, seconds, loss);
        });
    if (world.rank() == 0) result = own;
  });
  if (!is_first_process()) return;
  print_result(result);
  if (arguments.json) std::cout << to_json(result).dump() << "\n";
}

}  // namespace

void add_bench(Verb app) {
  Verb bench = app.add_verb("bench", "measure throughput against the machine's own bounds");
  bench.require_verb();
  Verb train = bench.add_verb("train", "throughput of a training step on random tokens");
  auto arguments = std::make_shared<BenchTrainArguments>();
  train.add_option("--model", arguments->model, "preset, config.json or model folder").required();
  train.add_option("--device", arguments->device, "cpu or cuda").show_default();
  train.add_option("--dtype", arguments->dtype, "f32, or bf16 on cuda").show_default();
  train.add_option("--batch", arguments->bench.batch, "sequences a step").show_default().positive();
  train.add_option("--seq", arguments->bench.seq, "tokens a sequence").show_default().positive();
  train.add_option("--steps", arguments->bench.steps, "timed steps").show_default().positive();
  train.add_option("--threads", arguments->bench.threads, "0: all cores").range(0, 1024);
  train
      .add_option("--loss-chunk", arguments->bench.loss_chunk,
                  "tokens a chunk of the output projection; 0: what suits the device")
      .show_default()
      .not_negative();
  train.add_option("--system", arguments->system,
                   "machine file by which the step's time is predicted, beside the measured one");
  train.add_option("--ranks", arguments->ranks, "local ranks to start").positive();
  train
      .add_option("--microbatches", arguments->bench.microbatches,
                  "micro-batches a step on each replica")
      .show_default()
      .positive();
  train
      .add_option("--set", arguments->overrides,
                  "parallel.key=value or optim.key=value (repeatable)")
      .one_at_a_time();
  train.add_flag("--recompute", arguments->bench.recompute, "recompute activations in backward");
  train.add_flag("--deterministic", arguments->bench.deterministic,
                 "only kernels that give the same bits every time");
  train.add_flag("--json", arguments->json, "print one JSON object");
  train.callback([arguments] { run(*arguments); });
  add_bench_ops(bench);
  add_bench_codec(bench);
  add_bench_comm(bench);
  add_bench_context(bench);
  add_bench_decode(bench);
  add_bench_link(bench);
}

}  // namespace heddle::cli
