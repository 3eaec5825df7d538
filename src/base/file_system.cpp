#include "base/file_system.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail_errno(const char* what, const fs::path& path, int error) {
  std::string hint;
  if (error == ENOSPC || error == EDQUOT) hint = "free disk space or choose another folder";
  if (error == EROFS || error == EACCES || error == EPERM)
    hint = "choose a folder you may write to";
  throw Error(ErrorCode::resources,
              fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(error)), hint);
}

class PosixWritableFile : public WritableFile {
 public:
  /// `how`: O_CREAT and the like.
  PosixWritableFile(fs::path path, int how, const char* what) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | how, 0644);
    if (fd_ < 0) fail_errno(what, path_, errno);
  }
  ~PosixWritableFile() override {
    if (fd_ >= 0) ::close(fd_);
  }
  void append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0) {
        if (errno == EINTR) continue;
        fail_errno("write", path_, errno);
      }
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void write_at(std::uint64_t at, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
      if (written < 0) {
        if (errno == EINTR) continue;
        fail_errno("write", path_, errno);
      }
      at += static_cast<std::uint64_t>(written);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void sync() override {
    if (::fsync(fd_) != 0) fail_errno("sync", path_, errno);
  }
  void close() override {
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0) fail_errno("close", path_, errno);
  }

 private:
  fs::path path_;
  int fd_ = -1;
};

class PosixFileSystem : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const fs::path& path) override {
    return std::make_unique<PosixWritableFile>(path, O_CREAT | O_TRUNC, "create");
  }
  std::unique_ptr<WritableFile> open(const fs::path& path) override {
    return std::make_unique<PosixWritableFile>(path, 0, "open");
  }
  void create_directories(const fs::path& path) override {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) fail_errno("create folder", path, error.value());
  }
  void rename(const fs::path& from, const fs::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail_errno("rename to", to, errno);
  }
  void remove_all(const fs::path& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail_errno("remove", path, error.value());
  }
  void sync_directory(const fs::path& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) fail_errno("open folder", path, errno);
    const int status = ::fsync(fd);
    const int error = errno;
    ::close(fd);
    if (status != 0) fail_errno("sync folder", path, error);
  }
  std::uint64_t free_bytes(const fs::path& path) override {
    struct statvfs info {};
    if (::statvfs(path.c_str(), &info) != 0) fail_errno("query free space of", path, errno);
    return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  }
};

}  // namespace

FileSystem& real_file_system() {
  static PosixFileSystem instance;
  return instance;
}

void write_file_atomically(FileSystem& files, const fs::path& path, std::string_view content) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const fs::path beside = path.string() + ".tmp";
  files.create_directories(folder);
  auto file = files.create(beside);
  file->append(std::as_bytes(std::span(content)));
  file->sync();
  file->close();
  files.rename(beside, path);
  files.sync_directory(folder);
}

std::string read_text_file(const fs::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(ErrorCode::data, "cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    fail(ErrorCode::data, "cannot read {}: not a regular file", path.string());
  }
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ > 0) {
    void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    ::close(fd);
    if (data == MAP_FAILED)
      fail(ErrorCode::data, "cannot map {}: {}", path.string(), std::strerror(error));
    data_ = static_cast<const std::byte*>(data);
  } else {
    ::close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace heddle
