#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "data/formats/inputs.h"

namespace heddle {

/// The content of a file from its beginning to its end, unpacked on the way, in bounded memory.
/// Every call throws Error(data), which names the file, when it cannot be read or is damaged.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Fills `out`; gives fewer bytes only at the end.
  virtual std::size_t read(std::span<char> out) = 0;
  /// Bytes of the file itself that were read so far: of a packed one, packed bytes.
  virtual std::uint64_t position() const = 0;
};

/// A byte order mark at the beginning is left out. Of standard input the beginning is in
/// `file.head`, since it was needed to recognise it.
std::unique_ptr<ByteStream> open_bytes(const InputFile& file);

/// What `head`, the first bytes of a file, unpacks to: the beginning of its content.
std::string unpack_head(std::string_view head, Packing packing);

/// The part of a stream that is in memory: what was read and not yet taken. Views are valid until
/// the next call of more().
class LookAhead {
 public:
  explicit LookAhead(std::unique_ptr<ByteStream> bytes) : bytes_(std::move(bytes)) {}

  std::string_view view() const { return std::string_view(buffer_).substr(begin_); }
  /// Reads further; false when there was nothing left to read.
  bool more();
  void take(std::size_t count) { begin_ += count; }
  std::uint64_t position() const { return bytes_->position(); }

 private:
  std::unique_ptr<ByteStream> bytes_;
  std::string buffer_;
  std::size_t begin_ = 0;
};

/// The longest record that is read from files which are cut into records: a limit on memory for
/// files that are not what they seem.
inline constexpr std::size_t kLargestRecord = std::size_t{1} << 30;

/// Throws the Error(data) for a record that exceeds it.
void require_record_fits(std::size_t bytes, const InputFile& file, std::int64_t number);

}  // namespace heddle
