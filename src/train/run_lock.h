#pragma once

#include <filesystem>
#include <string>

namespace heddle {

inline constexpr const char* kRunLockFile = "heddle.lock";

/// Keeps a run folder for one process while it lives: the file heddle.lock in it is locked, and
/// says who holds it for people and for file systems that do not carry locks between machines.
/// A lock whose holder is gone is taken over, with a line about it.
class RunLock {
 public:
  /// Makes the folder where there is none. Throws Error(resources) that names the holder.
  explicit RunLock(const std::filesystem::path& folder);
  /// Removes the file; and the folder, if it was made here and is empty.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  const std::filesystem::path folder_, file_;
  bool has_made_folder_ = false;
  int descriptor_ = -1;
};

}  // namespace heddle
