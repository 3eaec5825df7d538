#include <fmt/core.h>

#include <memory>

#include "base/json_value.h"
#include "bench/ops_bench.h"
#include "cli/compute_choice.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "ops/gemm.h"

namespace heddle::cli {
namespace {

struct BenchOpsOptions {
  OpsBenchOptions bench{.threads = 0};
  std::string device = "cpu", dtype;
  bool json = false;
};

const char* unit(Bound bound) { return bound == Bound::copy ? "GB/s" : "GFLOP/s"; }
const char* name_of_bound(const BenchOpsOptions& options, Bound bound) {
  if (bound == Bound::copy) return "copy";
  if (bound == Bound::dense) return "dense gemm";
  if (bound == Bound::causal) return "causal";
  return options.bench.device.kind == Device::Kind::cuda ? "gemm 8192^3" : "gemm 2048^3";
}
std::string place(const BenchOpsOptions& options) {
  const std::string backend = ops::gemm_backend(options.bench.device);
  if (options.bench.device.kind == Device::Kind::cuda) {
    return fmt::format("{}, {}", name_of(options.bench.dtype), backend);
  }
  return fmt::format("{} threads, {}", options.bench.threads, backend);
}

void print_json(const BenchOpsOptions& options, const std::vector<OpBenchResult>& results) {
  JsonValue list = JsonValue::array();
  for (const OpBenchResult& r : results) {
    list.push_back({{"name", r.name},
                    {"size", r.size},
                    {"seconds", r.seconds},
                    {"rate", r.rate},
                    {"unit", unit(r.bound)},
                    {"bound", name_of_bound(options, r.bound)},
                    {"bound_rate", r.limit},
                    {"fraction", r.fraction()}});
  }
  const JsonValue report = {{"device", options.device},
                            {"dtype", name_of(options.bench.dtype)},
                            {"threads", options.bench.threads},
                            {"gemm_backend", ops::gemm_backend(options.bench.device)},
                            {"ops", list}};
  fmt::print("{}\n", report.dump(2));
}

void print_table(const BenchOpsOptions& options, const std::vector<OpBenchResult>& results) {
  fmt::print("{}\n", place(options));
  fmt::print("{:<40}{:>18}{:>12}{:>10} {:<8}{:>9} {:<12}{:>8}\n", "operation", "size", "ms", "rate",
             "", "bound", "", "of it");
  for (const OpBenchResult& r : results) {
    fmt::print("{:<40}{:>18}{:>12.3f}{:>10.1f} {:<8}{:>9.1f} {:<12}{:>7.0f}%\n", r.name, r.size,
               r.seconds * 1e3, r.rate, unit(r.bound), r.limit, name_of_bound(options, r.bound),
               100.0 * r.fraction());
  }
}

void run(BenchOpsOptions options) {
  options.bench.threads = thread_count(options.bench.threads);
  if (options.dtype.empty()) options.dtype = options.device == "cuda" ? "bf16" : "f32";
  const ComputeChoice choice = compute_choice(options.device, options.dtype);
  options.bench.device = choice.device;
  options.bench.dtype = choice.dtype;
  const auto results = bench_ops(options.bench);
  if (options.json) {
    print_json(options, results);
  } else {
    print_table(options, results);
  }
}

}  // namespace

void add_bench_ops(Verb bench) {
  const auto options = std::make_shared<BenchOpsOptions>();
  Verb verb = bench.add_verb(
      "ops", "time every operation beside the copy or matrix product that bounds it");
  verb.add_option("--device", options->device, "cpu or cuda").show_default();
  verb.add_option("--dtype", options->dtype, "f32, or bf16 on cuda; absent: bf16 where it can be");
  verb.add_option("--threads", options->bench.threads, "size of the thread team; 0: all cores")
      .range(0, 4096);
  verb.add_option("--seconds", options->bench.seconds, "shortest time spent on one operation")
      .range(0.0, 3600.0)
      .show_default();
  verb.add_option("--filter", options->bench.filter, "only operations whose name contains this");
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
