#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"

namespace heddle {

/// XXH64 with seed 0, fed in pieces. It finds accidents (torn writes, rot), not forgeries.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void update(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::uint64_t checksum_of(std::span<const std::byte> bytes);
/// Sixteen lower-case hexadecimal digits.
std::string checksum_text(std::uint64_t checksum);

/// A part of a file that one writer wrote: `count` runs of `run` bytes, the first at `at`, each
/// `stride` bytes behind the one before. The checksum is of the runs in this order.
struct FilePart {
  std::uint64_t at = 0, run = 0, count = 1, stride = 0;
  std::uint64_t checksum = 0;
};

/// What was written to one file.
struct FileRecord {
  std::string path;  ///< relative to the folder it belongs to, with '/'
  std::uint64_t size_bytes = 0;
  std::uint64_t checksum = 0;        ///< of the whole file, where it was written in one piece
  std::vector<FilePart> parts = {};  ///< of one that was not: they cover it
};

/// Writes one new file and keeps its size and checksum.
class HashingFile {
 public:
  HashingFile(FileSystem& files, const std::filesystem::path& path);
  void append(std::span<const std::byte> bytes);
  /// Makes the content durable and closes. The record's path is the file's name.
  FileRecord finish();

 private:
  std::unique_ptr<WritableFile> file_;
  Checksum checksum_;
  FileRecord record_;
};

/// Writes a small file whole and makes its content durable.
FileRecord write_durable_file(FileSystem& files, const std::filesystem::path& path,
                              std::string_view content);

}  // namespace heddle
