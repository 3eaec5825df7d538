#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace heddle {

/// A file being written. Every call throws Error(resources), which names the path and the system's
/// reason.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void append(std::span<const std::byte> bytes) = 0;
  /// At a place counted from the file's beginning, which append does not mind.
  virtual void write_at(std::uint64_t at, std::span<const std::byte> bytes) = 0;
  /// Returns once the content is on stable storage.
  virtual void sync() = 0;
  virtual void close() = 0;
};

/// The seam through which everything durable is written, so that tests can drop what was not
/// synced, fill the disk, or stop between any two calls. Reading uses MappedFile and read_text_file
/// directly.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// Creates or truncates.
  virtual std::unique_ptr<WritableFile> create(const std::filesystem::path& path) = 0;
  /// A file that exists, to write at places of it; others, also on other machines, may write to
  /// other places at the same time.
  virtual std::unique_ptr<WritableFile> open(const std::filesystem::path& path) = 0;
  virtual void create_directories(const std::filesystem::path& path) = 0;
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual void remove_all(const std::filesystem::path& path) = 0;
  /// Makes the directory's entries (creations, renames) durable.
  virtual void sync_directory(const std::filesystem::path& path) = 0;
  virtual std::uint64_t free_bytes(const std::filesystem::path& path) = 0;
};

/// The operating system's file system. Stateless and thread-safe.
FileSystem& real_file_system();

/// Writes `path` whole or not at all: makes its folder, and a file there, synced, then renamed.
void write_file_atomically(FileSystem& files, const std::filesystem::path& path,
                           std::string_view content);

/// Throws Error(data) that names the path when it cannot be read.
std::string read_text_file(const std::filesystem::path& path);

/// A read-only memory map. The bytes stay valid while the object lives; an empty file gives an
/// empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace heddle
