#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/json_value.h"
#include "base/strings.h"
#include "bench/comm_bench.h"
#include "cli/compute_choice.h"
#include "cli/launcher.h"
#include "cli/ranks.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "codec/registry.h"
#include "comm/mpi/mpi_world.h"
#include "comm/threads/thread_world.h"

namespace heddle::cli {
namespace {

struct BenchCommOptions {
  CommBenchOptions bench;
  int ranks = 0;
  bool json = false;
  std::string codec;  ///< empty: collectives as they are
  std::string device = "cpu";
};

struct CommBenchReport {
  std::string backend;
  const char* bound;
  int ranks;
  std::vector<CommBenchResult> results;
};

void print_json(const CommBenchReport& report) {
  JsonValue list = JsonValue::array();
  for (const CommBenchResult& r : report.results) {
    list.push_back({{"name", name_of(r.op)},
                    {"bytes", r.bytes},
                    {"seconds", r.seconds},
                    {"rate", r.rate()},
                    {"unit", "GB/s"},
                    {"bound", report.bound},
                    {"bound_rate", r.bound_rate()},
                    {"fraction", r.fraction}});
  }
  const JsonValue json = {
      {"backend", report.backend}, {"ranks", report.ranks}, {"collectives", list}};
  fmt::print("{}\n", json.dump(2));
}

void print_table(const CommBenchReport& report) {
  fmt::print("{} ranks over {}, beside {}\n", report.ranks, report.backend, report.bound);
  fmt::print("{:<16}{:>12}{:>12}{:>9} {:<6}{:>9} {:<6}{:>8}\n", "operation", "size", "ms", "rate",
             "", "bound", "", "of it");
  for (const CommBenchResult& r : report.results) {
    fmt::print("{:<16}{:>12}{:>12.3f}{:>9.2f} {:<6}{:>9.2f} {:<6}{:>7.0f}%\n", name_of(r.op),
               format_bytes(static_cast<double>(r.bytes)), r.seconds * 1e3, r.rate(), "GB/s",
               r.bound_rate(), "GB/s", 100 * r.fraction);
  }
}

void print(const BenchCommOptions& options, const CommBenchReport& report) {
  options.json ? print_json(report) : print_table(report);
}

void require_success(int code, const char* call) {
  if (code != 0) fail(ErrorCode::peer, "{} failed with code {}", call, code);
}

CommBound raw_mpi_bound(const RawMpi& raw) {
  return [&raw](CommOp op, const Tensor& whole, const Tensor& shard) {
    const auto shard_count = static_cast<int>(shard.count());
    switch (op) {
      case CommOp::all_reduce:
        return require_success(
            raw.mpi.all_reduce(raw.comm, whole.bytes(), static_cast<int>(whole.count()),
                               heddle_mpi_f32, heddle_mpi_sum),
            "MPI_Allreduce");
      case CommOp::all_gather:
        return require_success(
            raw.mpi.all_gather(raw.comm, shard.bytes(), whole.bytes(), shard_count, 4),
            "MPI_Allgather");
      default:
        return require_success(raw.mpi.reduce_scatter(raw.comm, whole.bytes(), shard.bytes(),
                                                      shard_count, heddle_mpi_f32, heddle_mpi_sum),
                               "MPI_Reduce_scatter_block");
    }
  };
}

void run_under_mpi(const BenchCommOptions& options) {
  const auto library = mpi_library_beside(std::filesystem::read_symlink("/proc/self/exe"));
  run_mpi_rank_raw(library, [&](World& world, const RawMpi& raw) {
    const auto results = bench_comm(world, raw_mpi_bound(raw), options.bench);
    if (world.rank() == 0) print(options, {"mpi", "MPI itself", world.size(), results});
  });
}

void run_threads(const BenchCommOptions& options) {
  run_ranks(options.ranks == 0 ? 2 : options.ranks, [&](World& world) {
    Memory memory;
    const auto results = bench_comm(world, copy_bound(memory), options.bench);
    if (world.rank() == 0) print(options, {"threads", "memory copy", world.size(), results});
  });
}

void run_over_tcp(const BenchCommOptions& options, int ranks) {
  run_on_ranks(ranks, [&](World& world) {
    Memory memory;
    const auto results = bench_comm(world, copy_bound(memory), options.bench);
    if (world.rank() == 0) print(options, {"tcp", "memory copy", world.size(), results});
  });
}

void run_with_codec(const BenchCommOptions& options) {
  std::unique_ptr<const codec::Codec> codec;
  ComputeChoice choice;
  int ranks = 0;
  prepare_on_ranks([&] {
    codec = codec::make_codec(options.codec);
    if (codec->is_lossless()) {
      throw Error(ErrorCode::usage, "sums by a lossless codec have no size that is known before",
                  "give one that loses something, as int8");
    }
    choice = compute_choice(options.device, "f32");
    ranks = several_ranks(options.ranks);
  });
  run_on_devices(choice.device.kind, ranks, [&](World& world, Device device) {
    const auto results = bench_compressed_sum(world, device, *codec, options.bench);
    if (world.rank() != 0) return;
    print(options, {fmt::format("{} on {}", codec->name(), options.device), "all_reduce of float32",
                    world.size(), results});
  });
}

void run(const BenchCommOptions& options) {
  if (!options.codec.empty()) return run_with_codec(options);
  if (options.device != "cpu") {
    throw Error(ErrorCode::usage, "--device is for --codec; collectives are timed on CPUs",
                "leave it out, or give a codec");
  }
  const Launcher launcher = detect_launcher(process_environment);
  if (launcher.size == 1 && !launcher.joins_by_mpi) return run_threads(options);
  if (options.ranks != 0 && options.ranks != launcher.size) {
    throw Error(ErrorCode::usage,
                fmt::format("--ranks {} but {} started {} ranks", options.ranks, launcher.name,
                            launcher.size),
                "leave --ranks out under a launcher");
  }
  launcher.joins_by_mpi ? run_under_mpi(options) : run_over_tcp(options, launcher.size);
}

}  // namespace

void add_bench_comm(Verb bench) {
  const auto options = std::make_shared<BenchCommOptions>();
  Verb verb = bench.add_verb(
      "comm", "time the collectives beside MPI itself (under mpirun) or a memory copy");
  verb.add_option("--ranks", options->ranks, "ranks as threads of this process; 0: two")
      .range(0, 1024);
  verb.add_option("--seconds", options->bench.seconds, "shortest time spent on one size")
      .range(0.0, 3600.0)
      .show_default();
  verb.add_option("--smallest", options->bench.smallest_bytes, "bytes of the first tensor")
      .positive()
      .show_default();
  verb.add_option("--codec", options->codec,
                  "instead: sums of which only this codec's bytes travel, beside all_reduce");
  verb.add_option("--device", options->device, "cpu or cuda, for --codec").show_default();
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
