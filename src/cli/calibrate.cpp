#include "cli/calibrate.h"

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <ctime>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/file_system.h"
#include "base/json_value.h"
#include "base/log.h"
#include "bench/machine_fit.h"
#include "bench/steady.h"
#include "cli/compute_choice.h"
#include "cli/launcher.h"
#include "cli/progress_line.h"
#include "cli/ranks.h"
#include "cli/threads.h"
#include "observe/cpu_time.h"
#include "observe/machine.h"
#include "ops/gemm.h"
#include "planner/linear_time.h"
#include "planner/machine_text.h"
#include "tensor/device_runtime.h"

namespace heddle::cli {
namespace {

namespace fs = std::filesystem;

/// Measuring takes minutes: whether what it finds can be written is known before.
void check_out(const char* option, const fs::path& out) {
  if (out.empty()) return;
  if (fs::is_directory(out)) {
    throw Error(ErrorCode::resources,
                fmt::format("{} {} cannot be written: it is a folder", option, out.string()),
                "give a file");
  }
  if (out.has_parent_path()) real_file_system().create_directories(out.parent_path());
}

/// How many ranks are measured together, one number after the other. Ranks that are processes are
/// all there from the start.
std::vector<int> rank_counts(const CalibrateOptions& options, Device::Kind kind) {
  const Launcher launcher = detect_launcher(process_environment);
  if (kind == Device::Kind::cuda) {
    const int ranks = rank_count(std::max(1, options.ranks)), devices = cuda_device_count();
    if (launcher.size == 1 && ranks > devices) {
      throw Error(ErrorCode::resources,
                  fmt::format("--ranks {}, but {} CUDA device{} found", ranks, devices,
                              devices == 1 ? " is" : "s are"),
                  "a rank needs a GPU of its own to be measured");
    }
    return {ranks};
  }
  if (launcher.size > 1) return {rank_count(options.ranks == 0 ? 1 : options.ranks)};
  const int most = options.ranks == 0 ? 2 : options.ranks;
  std::vector<int> counts;
  for (int ranks = 1; ranks < most; ranks *= 2) counts.push_back(ranks);
  counts.push_back(most);
  return counts;
}

constexpr std::size_t kMostPasses = 4;

/// The measurements of one world, again and again until two agree that nobody disturbed.
class Measuring {
 public:
  Measuring(Device::Kind kind, DType dtype, int ranks)
      : kind_(kind), ranks_(ranks), threads_(thread_count(0, ranks)), options_{.dtype = dtype} {
    options_.rounds = 4;  // of each pass
    size_ = fmt::format("{} rank{} x {} thread{}", ranks_, ranks_ == 1 ? "" : "s", threads_,
                        threads_ == 1 ? "" : "s");
  }

  void run(MachineSamples& samples) {
    run_on_devices(kind_, ranks_, [&](World& world, Device device) {
      Stream stream(threads_, device);
      std::vector<MeasuredPass> passes;
      std::optional<MeasuredPass> steady;
      while (!steady) {
        if (passes.size() == kMostPasses) refuse(passes);
        passes.push_back(measure(world, stream, passes.size() + 1));
        steady = steady_pass(passes);
        if (!steady && passes.size() > 1 && world.rank() == 0) {
          log_info("measuring again, not steady: {}", unsteadiness(passes));
        }
      }
      if (world.rank() != 0) return;
      samples.rates.push_back(steady->rates);
      if (world.size() > 1) samples.links.push_back(steady->links);
    });
  }

 private:
  MeasuredPass measure(World& world, Stream& stream, std::size_t pass) const {
    MachineBenchOptions options = options_;
    const auto line = [&](const char* what) {
      return progress_line(fmt::format("measuring {}, {}, pass {}", what, size_, pass),
                           "measurements");
    };
    const observe::CpuShare cores;
    options.progress = line("computation");
    MeasuredPass measured{.rates = measure_rates(world, stream, options)};
    options.progress = line("communication");
    measured.links = measure_links(world, stream, options);
    // A GPU is not shared with those who have the cores, and processes of one launch are not
    // others.
    const bool knows_others =
        kind_ == Device::Kind::cpu && detect_launcher(process_environment).size == 1;
    measured.others = world.all().combine(knows_others ? cores.of_others() : 0.0, ReduceOp::max);
    return measured;
  }

  [[noreturn]] void refuse(const std::vector<MeasuredPass>& passes) const {
    throw Error(ErrorCode::resources,
                fmt::format("the machine is not steady enough to be measured with {}: {}; the load "
                            "average is {:.1f}",
                            size_, unsteadiness(passes), observe::load_average()),
                "stop other work on this machine, or measure at another time; nothing was written");
  }

  const Device::Kind kind_;
  const int ranks_, threads_;
  MachineBenchOptions options_;
  std::string size_;
};

/// What was measured is not written where it cannot be true.
void check_figures(const MachineSamples& samples) {
  const std::vector<std::string> found = contradictions(samples);
  if (found.empty()) return;
  throw Error(ErrorCode::resources,
              fmt::format("what was measured contradicts itself: {}", fmt::join(found, "; ")),
              "stop other work on this machine and measure again; nothing was written");
}

/// What there is to say about the circumstances: a file of another day, or of a loaded machine, is
/// to be recognised.
std::vector<std::string> comments(const MachineSamples& samples, const planner::Machine& machine,
                                  double seconds) {
  std::vector<std::string> lines;
  lines.push_back(
      fmt::format("Measured by heddle {} doctor --calibrate on {:%F %H:%M} UTC in {:.0f} s.",
                  HEDDLE_VERSION, fmt::gmtime(std::time(nullptr)), seconds));
  lines.push_back(
      fmt::format("Products: {}.",
                  ops::gemm_backend(samples.is_gpu ? Device{Device::Kind::cuda, 0} : Device{})));
  for (std::size_t i = 0; i < samples.rates.size(); ++i) {
    const RankRates& rates = samples.rates[i];
    const planner::Device& device = i == 0 ? machine.device : machine.shared[i - 1].device;
    lines.push_back(fmt::format(
        "{} x {} threads: a large product at {:.4g} GFLOP/s a rank, spread {:.1f} %; {:.6g} GB/s "
        "between products, copies at {:.6g} GB/s; all products fitted to {:.1f} %.",
        rates.ranks, rates.threads, rates.product_flops * 1e-9, 100 * rates.product_spread,
        device.memory_bytes_per_s * 1e-9, rates.copy_bytes * 1e-9,
        100 * product_error(device, samples.dtype, rates)));
  }
  for (const LinkRates& links : samples.links) {
    for (const CollectiveSamples& table : links.collectives) {
      if (table.op != CommOp::all_to_all) continue;
      const planner::LinearFit line =
          planner::fit_linear_time(table.points, planner::FittedErrors::relative);
      lines.push_back(
          fmt::format("{} ranks: an all-to-all as a line, {:.4g} us + {:.4g} us for each MiB of a "
                      "rank, r2 {:.5f}.",
                      table.ranks, 1e6 * line.time.fixed,
                      1e6 * planner::kMib * line.time.per_element, line.r2));
    }
  }
  return lines;
}

}  // namespace

void calibrate(const CalibrateOptions& options) {
  check_out("--out", options.out);
  check_out("--samples", options.samples);
  const bool is_gpu = options.device == "cuda";
  const ComputeChoice choice = compute_choice(options.device, !options.dtype.empty() ? options.dtype
                                                              : is_gpu               ? "bf16"
                                                                                     : "f32");
  const std::vector<int> counts = rank_counts(options, choice.device.kind);
  const observe::Machine found = observe::inspect_machine();
  const Launcher launcher = detect_launcher(process_environment);
  MachineSamples samples{.dtype = choice.dtype, .is_gpu = is_gpu};
  // A launcher may have bound this process to some of the cores.
  samples.name = launcher.size > 1
                     ? fmt::format("{}, {} ranks", found.cpu_model, launcher.size)
                     : fmt::format("{}, {} cores", found.cpu_model, found.cores_usable);
  samples.link_name = launcher.size > 1 ? launcher.name : "threads of one process";
  samples.device_name = found.cpu_model.empty() ? "CPU" : found.cpu_model;
  samples.memory_bytes = static_cast<double>(found.memory_total_bytes);
  if (is_gpu) {
    const auto kind = device_runtime::device_model(choice.device);
    samples.device_name = kind.name;
    samples.processors = kind.processors;
    samples.memory_bytes =
        static_cast<double>(device_runtime::device_memory(choice.device).total_bytes);
  }
  const Stopwatch watch;
  for (const int ranks : counts) Measuring(choice.device.kind, choice.dtype, ranks).run(samples);
  if (!is_first_process()) return;
  check_figures(samples);
  const planner::Machine machine = fit_machine(samples);
  const std::string text =
      planner::machine_text(machine, comments(samples, machine, watch.seconds()));
  if (!options.samples.empty()) {
    write_file_atomically(real_file_system(), options.samples,
                          samples_json(samples, machine).dump(1) + "\n");
  }
  if (options.out.empty()) {
    fmt::print("{}", text);
    return;
  }
  write_file_atomically(real_file_system(), options.out, text);
  log_info("wrote {}", options.out.string());
}

}  // namespace heddle::cli
