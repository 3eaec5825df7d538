#include "observe/machine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/strings.h"

namespace heddle::observe {
namespace fs = std::filesystem;
namespace {

// Not read_text_file: files in /proc and /sys have no size and cannot be mapped.
std::string read_whole(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  text = trim(text);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

// The value after "key" and a colon: "MemTotal:  16 kB" -> "16 kB".
std::string_view field(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto colon = line.find(':');
    if (colon != std::string_view::npos && trim(line.substr(0, colon)) == key) {
      return trim(line.substr(colon + 1));
    }
  }
  return {};
}

std::uint64_t kilobytes(std::string_view text, std::string_view key) {
  return parse_number(field(text, key)).value_or(0) * 1024;
}

int cores_by_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on machines with more processors than the fixed set holds; then all of them count.
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

// The folder of our own group and every folder above it: a limit anywhere on the way holds. In a
// container the named folder often does not exist; the mount's top is then our group.
std::vector<fs::path> group_folders(const fs::path& mount, std::string_view group) {
  std::vector<fs::path> folders = {mount};
  fs::path folder = mount;
  for (const auto& part : split(group, '/')) {
    if (part.empty() || part == "..") continue;
    folder /= part;
    folders.push_back(folder);
  }
  return folders;
}

// "0::/user.slice" (version 2) or "4:memory:/job" (version 1) in /proc/self/cgroup.
std::string group_of(const std::string& listing, std::string_view controller) {
  for (const auto& line : split(listing, '\n')) {
    const auto parts = split(line, ':');
    if (parts.size() != 3) continue;
    const auto controllers = split(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      return parts[2];
    }
  }
  return {};
}

void narrow_memory(Machine& machine, std::optional<std::uint64_t> limit, std::uint64_t used) {
  if (!limit || *limit == 0 || *limit >= machine.memory_total_bytes) return;
  machine.memory_total_bytes = *limit;
  machine.memory_is_limited = true;
  machine.memory_free_bytes = std::min(machine.memory_free_bytes, *limit - std::min(used, *limit));
}

void narrow_cpu(Machine& machine, double quota) {
  if (quota > 0 && (machine.cpu_quota == 0 || quota < machine.cpu_quota)) machine.cpu_quota = quota;
}

// What the group uses without the file cache, which the system gives up on demand.
std::uint64_t used_without_cache(const fs::path& folder, const char* usage, const char* cache) {
  const std::uint64_t used = parse_number(read_whole(folder / usage)).value_or(0);
  for (const auto& line : split(read_whole(folder / "memory.stat"), '\n')) {
    if (line.rfind(cache, 0) == 0) {
      return used -
             std::min(used, parse_number(line.substr(std::string(cache).size())).value_or(0));
    }
  }
  return used;
}

void apply_group_v2(Machine& machine, const fs::path& mount, const std::string& listing) {
  for (const auto& folder : group_folders(mount, group_of(listing, ""))) {
    const auto cpu = split(read_whole(folder / "cpu.max"), ' ');  // "200000 100000" or "max 100000"
    if (cpu.size() == 2) {
      const auto quota = parse_number(cpu[0]), period = parse_number(cpu[1]);
      if (quota && period && *period > 0) {
        narrow_cpu(machine, static_cast<double>(*quota) / static_cast<double>(*period));
      }
    }
    narrow_memory(machine, parse_number(read_whole(folder / "memory.max")),
                  used_without_cache(folder, "memory.current", "inactive_file "));
  }
}

void apply_group_v1(Machine& machine, const fs::path& mount, const std::string& listing) {
  for (const auto& folder : group_folders(mount / "cpu", group_of(listing, "cpu"))) {
    const auto quota = parse_number(read_whole(folder / "cpu.cfs_quota_us"));
    const auto period = parse_number(read_whole(folder / "cpu.cfs_period_us"));
    if (quota && period && *period > 0) {
      narrow_cpu(machine, static_cast<double>(*quota) / static_cast<double>(*period));
    }
  }
  for (const auto& folder : group_folders(mount / "memory", group_of(listing, "memory"))) {
    narrow_memory(machine, parse_number(read_whole(folder / "memory.limit_in_bytes")),
                  used_without_cache(folder, "memory.usage_in_bytes", "total_inactive_file "));
  }
}

}  // namespace

Machine inspect_machine(const fs::path& root) {
  Machine machine;
  machine.cpu_model = field(read_whole(root / "proc/cpuinfo"), "model name");
  machine.cores_present = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
#if defined(__x86_64__)
  machine.has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  machine.has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512cd");
#endif
  const std::string memory = read_whole(root / "proc/meminfo");
  machine.memory_total_bytes = kilobytes(memory, "MemTotal");
  machine.memory_free_bytes = kilobytes(memory, "MemAvailable");
  const std::string groups = read_whole(root / "proc/self/cgroup");
  apply_group_v2(machine, root / "sys/fs/cgroup", groups);
  apply_group_v1(machine, root / "sys/fs/cgroup", groups);

  const int allowed = cores_by_affinity();
  machine.cores_usable = allowed > 0 ? allowed : machine.cores_present;
  if (machine.cpu_quota > 0) {
    const int granted = std::max(1, static_cast<int>(std::ceil(machine.cpu_quota)));
    machine.cores_usable = std::min(machine.cores_usable, granted);
  }
  return machine;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

DiskReport measure_disk(const fs::path& folder, std::size_t probe_bytes) {
  FileSystem& files = real_file_system();
  DiskReport report;
  report.free_bytes = files.free_bytes(folder);
  const fs::path path = folder / fmt::format(".heddle-disk-probe-{}", ::getpid());
  // Varied content: some file systems compress, and zeros would flatter them.
  std::vector<std::byte> block(std::size_t{1} << 20);
  std::uint32_t state = 1;
  for (auto& byte : block) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  try {
    const auto file = files.create(path);
    const Stopwatch watch;
    for (std::size_t left = probe_bytes; left > 0;) {
      const std::size_t size = std::min(left, block.size());
      file->append(std::span(block).first(size));
      left -= size;
    }
    file->sync();
    report.write_bytes_per_second = static_cast<double>(probe_bytes) / watch.seconds();
    file->close();
  } catch (...) {
    std::error_code ignored;
    fs::remove(path, ignored);
    throw;
  }
  files.remove_all(path);
  return report;
}

std::uint64_t process_peak_bytes() { return kilobytes(read_whole("/proc/self/status"), "VmHWM"); }

std::uint64_t process_resident_bytes() {
  return kilobytes(read_whole("/proc/self/status"), "VmRSS");
}

bool reset_process_peak() {
  const int fd = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = ::write(fd, "5", 1) == 1;
  return ::close(fd) == 0 && done;
}

}  // namespace heddle::observe
