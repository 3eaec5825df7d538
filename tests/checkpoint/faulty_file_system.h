#pragma once

#include <filesystem>
#include <map>
#include <stdexcept>
#include <vector>

#include "base/file_system.h"

namespace heddle::testing_support {

/// Thrown in place of the end of the process.
struct Killed : std::runtime_error {
  Killed() : std::runtime_error("killed") {}
};

/// What a crash takes with it.
enum class Loss {
  nothing,            ///< the process died, the system lives
  unsynced_data,      ///< names survive, content that was not synced does not
  unsynced_anything,  ///< also creations and renames in folders that were not synced are undone
};

/// Works on the real file system, remembers what is not synced, and can stop the writer at any call
/// or run out of space. Nothing is really synced, so it is also the fast file system of tests.
class FaultyFileSystem : public FileSystem {
 public:
  /// Throws Killed at the n-th call from now, in the middle of what it does.
  void kill_at(int call) { calls_left_ = call; }
  /// Writing fails with Error(resources) after this many bytes.
  void fill_disk_after(std::uint64_t bytes) { bytes_left_ = bytes; }
  void report_free_bytes(std::uint64_t bytes) { free_bytes_ = bytes; }
  /// Ends the simulated machine's life.
  void crash(Loss loss);

  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override;
  std::unique_ptr<WritableFile> open(const std::filesystem::path& path) override;
  void create_directories(const std::filesystem::path& path) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove_all(const std::filesystem::path& path) override;
  void sync_directory(const std::filesystem::path& path) override;
  std::uint64_t free_bytes(const std::filesystem::path& path) override;

 private:
  class File;
  struct Change {
    std::filesystem::path from, to;  // from is empty for a creation
  };
  /// True when this call is the last one.
  bool dies_here();
  void follow_rename(const std::filesystem::path& from, const std::filesystem::path& to);

  int calls_left_ = -1;
  bool is_dead_ = false;
  std::uint64_t bytes_left_ = ~std::uint64_t{0};
  std::uint64_t free_bytes_ = ~std::uint64_t{0};
  struct Stretch {
    std::uint64_t begin, end;
  };
  std::map<std::filesystem::path, std::uint64_t> synced_bytes_;     // of files created here
  std::map<std::filesystem::path, std::vector<Stretch>> unsynced_;  // written at places of them
  std::vector<Change> unsynced_changes_;
};

}  // namespace heddle::testing_support
