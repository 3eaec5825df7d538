#include "train/run_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>
#include <random>

#include "base/error.h"
#include "base/file_system.h"
#include "base/log.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

struct Holder {
  pid_t process = 0;
  std::string host;
  std::string text;  // "process 1234 on HOST since 2026-01-31 12:00:00 UTC"
};

/// A line for people, and one that no other lock has: containers may agree in all of the first.
std::string own_text() {
  std::random_device random;
  return fmt::format("process {} on {} since {:%Y-%m-%d %H:%M:%S} UTC\n{:08x}{:08x}\n", ::getpid(),
                     host_name(), fmt::gmtime(std::time(nullptr)), random(), random());
}

/// Who wrote the file; nothing when it is empty: made, but not yet written.
std::optional<Holder> read_holder(int descriptor, const fs::path& file) {
  std::array<char, 512> content{};
  const ssize_t size = ::pread(descriptor, content.data(), content.size() - 1, 0);
  if (size <= 0) return std::nullopt;
  std::string text(content.data(), static_cast<std::size_t>(size));
  text.erase(std::min(text.find('\n'), text.size()));
  long process = 0;
  char host[256] = {};
  if (std::sscanf(text.c_str(), "process %ld on %255s since ", &process, host) != 2) {
    throw Error(ErrorCode::resources,
                fmt::format("{} is not a lock that heddle wrote", file.string()),
                "move it away, or set run.dir");
  }
  return Holder{static_cast<pid_t>(process), host, text};
}

[[noreturn]] void refuse_held(const fs::path& folder, const std::optional<Holder>& holder) {
  throw Error(
      ErrorCode::resources,
      fmt::format("{} is in use by {}", folder.string(), holder ? holder->text : "another process"),
      "wait for it, stop it, or set run.dir");
}

/// Whether the open file is still the one with this name: a holder removes it when it ends.
bool is_still(int descriptor, const fs::path& file) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(file.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

enum class Grip { taken, held_by_other, no_locks };

Grip grip(int descriptor) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Grip::held_by_other;
    if (errno != EINTR) return Grip::no_locks;  // the file system has none
  }
  return Grip::taken;
}

int open_file(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    throw Error(ErrorCode::resources,
                fmt::format("cannot create {}: {}", file.string(), std::strerror(errno)),
                "choose a run folder you may write to");
  }
  return descriptor;
}

/// Error when the one who left its line in the file may still be at work.
void judge_left_line(const fs::path& folder, const fs::path& file, const Holder& holder,
                     Grip grip) {
  if (holder.host == host_name()) {
    const bool is_gone = grip == Grip::taken || (::kill(holder.process, 0) != 0 && errno == ESRCH);
    if (!is_gone) refuse_held(folder, holder);
    log_info("took over {} from {}, which is gone", folder.string(), holder.text);
    return;
  }
  throw Error(
      ErrorCode::resources,
      fmt::format("{} was left in use by {}; whether it is still running cannot be seen "
                  "from {}",
                  folder.string(), holder.text, host_name()),
      fmt::format("if it is gone, remove {}; else wait for it, or set run.dir", file.string()));
}

}  // namespace

RunLock::RunLock(const fs::path& folder, const std::set<std::string>& of_this_run)
    : folder_(folder), file_(folder / kRunLockFile) {
  std::error_code error;
  has_made_folder_ = !fs::exists(folder, error) && !error;
  real_file_system().create_directories(folder_);
  while (true) {
    const int descriptor = open_file(file_);
    try {
      const Grip found = grip(descriptor);
      const auto holder = read_holder(descriptor, file_);
      if (of_this_run.contains(lock_text(folder_))) {
        ::unlink(file_.c_str());
        ::close(descriptor);
        continue;
      }
      if (found == Grip::held_by_other) refuse_held(folder_, holder);
      if (!is_still(descriptor, file_)) {
        ::close(descriptor);
        continue;
      }
      if (holder) judge_left_line(folder_, file_, *holder, found);
      text_ = own_text();
      if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, text_.data(), text_.size(), 0) !=
                                                 static_cast<ssize_t>(text_.size())) {
        fail(ErrorCode::resources, "cannot write {}: {}", file_.string(), std::strerror(errno));
      }
    } catch (...) {
      ::close(descriptor);
      throw;
    }
    descriptor_ = descriptor;
    return;
  }
}

RunLock::~RunLock() {
  // The name goes first: who opens the file before finds it locked, who opens it later a new one.
  if (is_still(descriptor_, file_)) ::unlink(file_.c_str());
  ::close(descriptor_);
  if (has_made_folder_) ::rmdir(folder_.c_str());
}

std::string lock_text(const fs::path& folder) {
  std::error_code error;
  const fs::path file = folder / kRunLockFile;
  return fs::exists(file, error) ? read_text_file(file) : "";
}

}  // namespace heddle
