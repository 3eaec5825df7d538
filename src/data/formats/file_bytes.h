#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/formats/inputs.h"

namespace heddle {

/// A file that is read at any place. What is read is not kept, so that memory does not grow with
/// the file, as that of a map seems to.
class FileBytes {
 public:
  explicit FileBytes(const std::filesystem::path& path);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  std::uint64_t size() const { return size_; }
  /// Bytes [at, at + size), which must lie in the file: whoever calls has checked. Throws
  /// Error(data) when they cannot be read.
  std::string read(std::uint64_t at, std::size_t size) const;
  void read_into(std::uint64_t at, std::span<char> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// Little-endian values of a piece of a binary file, one after another. What would lie outside is
/// an Error(data) that says `name` and `what`.
class ByteCursor {
 public:
  ByteCursor(std::string_view bytes, const std::string& name, const char* what)
      : bytes_(bytes), name_(name), what_(what) {}

  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view take_bytes(std::uint64_t count) {
    if (count > bytes_.size()) refuse("it ends too early");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  std::string_view left() const { return bytes_; }
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  std::string_view bytes_;
  const std::string& name_;
  const char* what_;
};

/// Throws the Error(data) for a file that is not what its first bytes promise: "x.parquet: damaged
/// Parquet file: why".
[[noreturn]] void refuse_damaged(const std::string& name, const char* format,
                                 const std::string& why);

}  // namespace heddle
