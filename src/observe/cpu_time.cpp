#include "observe/cpu_time.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace heddle::observe {
namespace {

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

double own_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double busy_seconds(const std::vector<int>& cores, const std::filesystem::path& root) {
  std::ifstream file(root / "proc/stat");
  double ticks = 0;
  bool found = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (!name.starts_with("cpu") || name.size() == 3) continue;
    if (std::ranges::find(cores, std::atoi(name.c_str() + 3)) == cores.end()) continue;
    double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, soft = 0, stolen = 0;
    words >> user >> nice >> system >> idle >> waiting >> irq >> soft >> stolen;
    ticks += user + nice + system + irq + soft + stolen;
    found = true;
  }
  return found ? ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)) : -1.0;
}

CpuShare::CpuShare()
    : cores_(usable_cores()),
      busy_(busy_seconds(cores_)),
      own_(own_seconds()),
      clock_(clock_seconds()) {}

double CpuShare::of_others() const {
  const double passed = (clock_seconds() - clock_) * static_cast<double>(cores_.size());
  if (busy_ < 0 || passed <= 0) return 0.0;
  const double others = busy_seconds(cores_) - busy_ - (own_seconds() - own_);
  return std::clamp(others / passed, 0.0, 1.0);
}

double load_average() {
  double last_minute = 0;
  return ::getloadavg(&last_minute, 1) == 1 ? last_minute : 0.0;
}

}  // namespace heddle::observe
