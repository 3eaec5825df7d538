#include "observe/machine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace heddle::observe {
namespace {

constexpr std::uint64_t kGib = std::uint64_t{1} << 30;

// A made-up /proc and /sys.
class FakeRoot {
 public:
  FakeRoot() {
    write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Loom 9000 @ 3 GHz\nflags\t\t: fpu\n");
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n");
  }
  void write(const std::string& path, const std::string& content) {
    const auto full = folder_.path() / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << content;
  }
  Machine inspect() const { return inspect_machine(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

TEST(InspectMachine, ReadsModelAndMemory) {
  const Machine machine = FakeRoot().inspect();
  EXPECT_EQ(machine.cpu_model, "Loom 9000 @ 3 GHz");
  EXPECT_EQ(machine.memory_total_bytes, 16 * kGib);
  EXPECT_EQ(machine.memory_free_bytes, 8 * kGib);
  EXPECT_FALSE(machine.memory_is_limited);
  EXPECT_EQ(machine.cpu_quota, 0);
  EXPECT_GE(machine.cores_usable, 1);
  EXPECT_LE(machine.cores_usable, machine.cores_present);
}

TEST(InspectMachine, ObeysTheTightestLimitAboveOurControlGroup) {
  FakeRoot root;
  root.write("proc/self/cgroup", "0::/batch/job7\n");
  root.write("sys/fs/cgroup/batch/cpu.max", "50000 100000\n");
  root.write("sys/fs/cgroup/batch/memory.max", "4294967296\n");
  root.write("sys/fs/cgroup/batch/memory.current", "3221225472\n");
  root.write("sys/fs/cgroup/batch/memory.stat", "anon 5\ninactive_file 1073741824\n");
  root.write("sys/fs/cgroup/batch/job7/cpu.max", "max 100000\n");
  root.write("sys/fs/cgroup/batch/job7/memory.max", "max\n");
  const Machine machine = root.inspect();
  EXPECT_EQ(machine.cpu_quota, 0.5);
  EXPECT_EQ(machine.cores_usable, 1);
  EXPECT_TRUE(machine.memory_is_limited);
  EXPECT_EQ(machine.memory_total_bytes, 4 * kGib);
  EXPECT_EQ(machine.memory_free_bytes, 2 * kGib);
}

TEST(InspectMachine, ObeysVersionOneControlGroups) {
  FakeRoot root;
  root.write("proc/self/cgroup", "7:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
  const Machine machine = root.inspect();
  EXPECT_EQ(machine.cpu_quota, 1);
  EXPECT_EQ(machine.memory_total_bytes, 2 * kGib);
  EXPECT_EQ(machine.memory_free_bytes, 1 * kGib);
}

TEST(InspectMachine, TakesAnUnlimitedGroupForNoLimit) {
  FakeRoot root;
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const Machine machine = root.inspect();
  EXPECT_EQ(machine.cpu_quota, 0);
  EXPECT_FALSE(machine.memory_is_limited);
}

TEST(InspectMachine, LeavesUnknownWhatCannotBeRead) {
  const TemporaryFolder empty;
  const Machine machine = inspect_machine(empty.path());
  EXPECT_EQ(machine.cpu_model, "");
  EXPECT_EQ(machine.memory_total_bytes, 0u);
  EXPECT_GE(machine.cores_usable, 1);
}

TEST(MeasureDisk, GivesSpeedAndFreeSpaceAndLeavesNothingBehind) {
  const TemporaryFolder folder;
  const DiskReport report = measure_disk(folder.path(), 100000);
  EXPECT_GT(report.free_bytes, 0u);
  EXPECT_GT(report.write_bytes_per_second, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THROW(measure_disk("/nonexistent-folder", 1), Error);
}

TEST(ProcessMemory, PeakSeesMemoryThatIsGoneAndCanBeReset) {
  if (process_peak_bytes() == 0) GTEST_SKIP() << "the system does not tell VmHWM";
  constexpr std::size_t kBlock = std::size_t{256} << 20;  // large enough to be its own mapping
  {
    const auto block = std::make_unique<char[]>(kBlock);
    std::memset(block.get(), 1, kBlock);
    EXPECT_GE(process_resident_bytes(), kBlock);
  }
  EXPECT_GE(process_peak_bytes(), kBlock);
  if (!reset_process_peak()) GTEST_SKIP() << "the system does not allow resetting the peak";
  EXPECT_LT(process_peak_bytes(), kBlock);
}

}  // namespace
}  // namespace heddle::observe
