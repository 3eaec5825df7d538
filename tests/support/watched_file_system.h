#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include "base/file_system.h"

namespace heddle {

/// The real file system; `on_write` is called before bytes are written to a place of a file, and
/// may wait or throw.
class WatchedFileSystem : public FileSystem {
 public:
  using OnWrite = std::function<void(const std::filesystem::path& path, std::size_t bytes)>;
  explicit WatchedFileSystem(OnWrite on_write) : on_write_(std::move(on_write)) {}

  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override {
    return real_.create(path);
  }
  std::unique_ptr<WritableFile> open(const std::filesystem::path& path) override {
    return std::make_unique<File>(real_.open(path), path, on_write_);
  }
  void create_directories(const std::filesystem::path& path) override {
    real_.create_directories(path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    real_.rename(from, to);
  }
  void remove_all(const std::filesystem::path& path) override { real_.remove_all(path); }
  void sync_directory(const std::filesystem::path& path) override { real_.sync_directory(path); }
  std::uint64_t free_bytes(const std::filesystem::path& path) override {
    return real_.free_bytes(path);
  }

 private:
  class File : public WritableFile {
   public:
    File(std::unique_ptr<WritableFile> file, std::filesystem::path path, const OnWrite& on_write)
        : file_(std::move(file)), path_(std::move(path)), on_write_(on_write) {}
    void append(std::span<const std::byte> bytes) override { file_->append(bytes); }
    void write_at(std::uint64_t at, std::span<const std::byte> bytes) override {
      on_write_(path_, bytes.size());
      file_->write_at(at, bytes);
    }
    void sync() override { file_->sync(); }
    void close() override { file_->close(); }

   private:
    std::unique_ptr<WritableFile> file_;
    std::filesystem::path path_;
    const OnWrite& on_write_;
  };

  FileSystem& real_ = real_file_system();
  OnWrite on_write_;
};

}  // namespace heddle
