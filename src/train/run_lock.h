#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace heddle {

inline constexpr const char* kRunLockFile = "heddle.lock";

/// Keeps a run folder for one process while it lives: the file heddle.lock in it is locked, and
/// says who holds it for people and for file systems that do not carry locks between machines.
/// A lock whose holder is gone is taken over, with a line about it.
class RunLock {
 public:
  /// Makes the folder where there is none. Throws Error(resources) that names the holder. A lock
  /// with one of the texts `of_this_run` is of a process that keeps the folder no more, because
  /// this run goes on without it or it only waits: it is taken over whatever that process does.
  explicit RunLock(const std::filesystem::path& folder,
                   const std::set<std::string>& of_this_run = {});
  /// Removes the file, unless another has taken it over; and the folder, if it was made here and is
  /// empty.
  ~RunLock();
  /// What it wrote into the file; no other lock has the same.
  const std::string& text() const { return text_; }

  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  const std::filesystem::path folder_, file_;
  std::string text_;
  bool has_made_folder_ = false;
  int descriptor_ = -1;
};

/// What the lock of a folder says; empty where this process sees none.
std::string lock_text(const std::filesystem::path& folder);

}  // namespace heddle
