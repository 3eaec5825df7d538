#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_value.h"
#include "base/quantile.h"
#include "base/strings.h"
#include "cli/calibrate.h"
#include "cli/launcher.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl_backend.h"
#include "observe/machine.h"
#include "observe/terminal.h"
#include "ops/gemm.h"
#include "tensor/device_runtime.h"
#include "tensor/memory.h"

namespace heddle::cli {
namespace {

/// One line of the examination. `low` works, but slower or smaller than one would wish.
struct Finding {
  enum class Status { ok, low, missing };
  std::string name;
  Status status;
  std::string found;
  std::string why;  ///< why it matters, or what to do
  bool is_required = false;
};
using Status = Finding::Status;

const char* text_of(Status status) {
  return status == Status::ok ? "ok" : status == Status::low ? "low" : "missing";
}

Finding processor(const observe::Machine& machine) {
  std::string found = machine.cpu_model.empty() ? "unknown model" : machine.cpu_model;
  found += fmt::format(", {} of {} cores usable", machine.cores_usable, machine.cores_present);
  if (machine.cpu_quota > 0) found += fmt::format(" (quota {:.2g})", machine.cpu_quota);
  return {"processor", Status::ok, found, "work is split over the usable cores"};
}

Finding vectors(const observe::Machine& machine) {
  const char* why = "kernels choose the widest vectors at run time";
  if (machine.has_avx512) return {"vectors", Status::ok, "AVX-512", why};
  if (machine.has_avx2) return {"vectors", Status::ok, "AVX2", why};
  return {"vectors", Status::low, "neither AVX2 nor AVX-512",
          "kernels fall back to narrow vectors, several times slower"};
}

Finding memory(const observe::Machine& machine) {
  // float32 weights, gradients and the two moments of AdamW.
  constexpr double kBytesPerParameter = 16;
  const double free = static_cast<double>(machine.memory_free_bytes);
  return {"memory", free < 1024.0 * 1024 * 1024 ? Status::low : Status::ok,
          fmt::format("{} free of {}{}", format_bytes(free),
                      format_bytes(static_cast<double>(machine.memory_total_bytes)),
                      machine.memory_is_limited ? " (limit of the control group)" : ""),
          fmt::format("room to train fewer than {} parameters: 16 bytes each, then activations",
                      format_count(free / kBytesPerParameter))};
}

/// Median rate of a square float32 product, in FLOP per second.
double measure_gemm(int threads) {
  constexpr std::int64_t kSize = 1024;
  constexpr int kRounds = 5;
  Memory memory;
  Stream stream(threads);
  const Shape shape = {kSize, kSize};
  const Tensor a = memory.zeros(shape, DType::f32, MemoryTag::workspace);
  const Tensor b = memory.zeros(shape, DType::f32, MemoryTag::workspace);
  const Tensor c = memory.zeros(shape, DType::f32, MemoryTag::workspace);
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    const Stopwatch watch;
    ops::gemm(a, ops::Transpose::no, b, ops::Transpose::no, c, {}, stream);
    if (round > 0) seconds.push_back(watch.seconds());  // the first one starts the threads
  }
  return 2.0 * kSize * kSize * kSize / quantile(seconds, 0.5);
}

Finding matrix_product(const observe::Machine& machine) {
  try {
    const std::string backend = ops::gemm_backend();
    const double rate = measure_gemm(machine.cores_usable);
    return {"gemm", Status::ok,
            fmt::format("{}, {:.0f} GFLOP/s in float32 on {} threads", backend, rate / 1e9,
                        machine.cores_usable),
            "nearly all time of training goes into matrix products", true};
  } catch (const Error& e) {
    return {"gemm", Status::missing, e.message(),
            "nothing can be trained without it; apt install libopenblas0-openmp", true};
  }
}

Finding disk() {
  constexpr std::size_t kProbeBytes = std::size_t{32} << 20;
  const char* why = "a checkpoint is 12 bytes per parameter, written and synced";
  try {
    const auto report = observe::measure_disk(std::filesystem::current_path(), kProbeBytes);
    const double free = static_cast<double>(report.free_bytes);
    const bool is_low = free < 1e9 || report.write_bytes_per_second < 30e6;
    return {"disk", is_low ? Status::low : Status::ok,
            fmt::format("{} free here, writes {}/s", format_bytes(free),
                        format_bytes(report.write_bytes_per_second)),
            why};
  } catch (const Error& e) {
    return {"disk", Status::missing, e.message(), "runs must write here or to another run.folder"};
  }
}

Finding terminal() {
  const auto terminal = observe::stderr_terminal(process_environment("NO_COLOR") != nullptr);
  if (!terminal.is_terminal) {
    return {"terminal", Status::ok, "none: plain lines",
            "progress is printed as lines, now and then"};
  }
  return {"terminal", Status::ok,
          fmt::format("{} columns{}", terminal.columns, terminal.colors ? "" : ", no colours"),
          "progress is one line, rewritten in place"};
}

Finding launcher() {
  const char* why = "torchrun, mpirun and srun start many ranks; --ranks N starts local ones";
  try {
    const Launcher found = detect_launcher(process_environment);
    if (found.name.empty()) return {"launcher", Status::ok, "none: a single process", why};
    return {"launcher", Status::ok,
            fmt::format("{}, rank {} of {}", found.name, found.rank, found.size), why};
  } catch (const Error& e) {
    return {"launcher", Status::low, e.message(), e.hint()};
  }
}

Finding gpus() {
  const char* why = "models above some 100M parameters want a GPU";
  const int count = cuda_device_count();
  if (count == 0) return {"CUDA", Status::missing, "no GPU, or not in this build", why};
  const Device first{Device::Kind::cuda, 0};
  const auto memory = device_runtime::device_memory(first);
  const std::string devices =
      fmt::format("{} device{}, {} free of {} on the first", count, count == 1 ? "" : "s",
                  format_bytes(static_cast<double>(memory.free_bytes)),
                  format_bytes(static_cast<double>(memory.total_bytes)));
  try {
    return {"CUDA", Status::ok, fmt::format("{}, {}", devices, ops::gemm_backend(first)), why};
  } catch (const Error& e) {  // a library that is opened at run time
    return {"CUDA", Status::missing, fmt::format("{}, but {}", devices, e.message()), e.hint()};
  }
}

Finding mpi() {
  const auto found = find_mpi(mpi_library_beside(std::filesystem::read_symlink("/proc/self/exe")));
  const char* const why =
      found.is_usable
          ? "joins machines under mpirun"
          : "mpirun needs it: install Open MPI (libopenmpi-dev, openmpi-bin) and build again; "
            "torchrun and srun do without";
  return {"MPI", found.is_usable ? Status::ok : Status::missing, found.text, why};
}

std::vector<Finding> examine() {
  const observe::Machine machine = observe::inspect_machine();
  return {processor(machine),
          vectors(machine),
          memory(machine),
          matrix_product(machine),
          disk(),
          terminal(),
          launcher(),
          gpus(),
          {"NCCL", has_nccl() ? Status::ok : Status::missing,
           has_nccl() ? "libnccl.so.2" : "not in this build, or its library is not found",
           "joins several GPUs"},
          mpi()};
}

void print_text(const std::vector<Finding>& findings) {
  fmt::print("heddle {}\n\n", HEDDLE_VERSION);
  for (const auto& finding : findings) {
    fmt::print("  {:<8} {:<10} {}\n", text_of(finding.status), finding.name, finding.found);
    fmt::print("  {:<8} {:<10} \xE2\x94\x94 {}\n", "", "", finding.why);
  }
}

void print_json(const std::vector<Finding>& findings, bool is_ready) {
  JsonValue list = JsonValue::array();
  for (const auto& finding : findings) {
    list.push_back({{"name", finding.name},
                    {"status", text_of(finding.status)},
                    {"found", finding.found},
                    {"why", finding.why}});
  }
  const JsonValue json = {
      {"version", HEDDLE_VERSION}, {"ok", is_ready}, {"findings", std::move(list)}};
  fmt::print("{}\n", json.dump(1));
}

void run_doctor(bool as_json) {
  const auto findings = examine();
  const bool is_ready = std::none_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.is_required && finding.status == Status::missing;
  });
  if (as_json) {
    print_json(findings, is_ready);
  } else {
    print_text(findings);
  }
  if (!is_ready) {
    throw Error(ErrorCode::resources, "something that training needs is missing",
                "install what is marked \"missing\" and required: make setup");
  }
}

}  // namespace

void add_doctor(Verb app) {
  struct DoctorOptions {
    bool as_json = false, calibrates = false;
    CalibrateOptions calibrate;
  };
  Verb verb = app.add_verb("doctor", "what was found on this machine, and why it matters");
  const auto options = std::make_shared<DoctorOptions>();
  verb.add_flag("--json", options->as_json, "one JSON object on standard output");
  verb.add_flag("--calibrate", options->calibrates,
                "measure this machine until it is steady, two minutes or more, and write a machine "
                "file for heddle plan");
  verb.add_option("--out", options->calibrate.out,
                  "of --calibrate: the machine file; standard output when absent");
  verb.add_option("--samples", options->calibrate.samples,
                  "of --calibrate: a file for what was measured, every product beside its fit, as "
                  "JSON; not written when absent");
  verb.add_option("--ranks", options->calibrate.ranks,
                  "of --calibrate: most ranks that share the machine; 0: two")
      .range(0, 1024);
  verb.add_option("--device", options->calibrate.device, "of --calibrate: cpu or cuda")
      .show_default();
  verb.add_option("--dtype", options->calibrate.dtype,
                  "of --calibrate; f32 on a CPU and bf16 on a GPU when absent");
  verb.callback([options] {
    options->calibrates ? calibrate(options->calibrate) : run_doctor(options->as_json);
  });
}

}  // namespace heddle::cli
