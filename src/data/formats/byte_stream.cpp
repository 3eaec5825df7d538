#include "data/formats/byte_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace heddle {
namespace {

constexpr std::size_t kChunk = std::size_t{256} << 10;

[[noreturn]] void damaged(const InputFile& file, const char* packing, const std::string& what) {
  throw Error(
      ErrorCode::data,
      fmt::format("{} is compressed by {} and damaged: {}", file.path.string(), packing, what),
      "get it again; what it should be can be checked with gzip -t or zstd -t");
}

/// A file as it is, or standard input.
class RawBytes : public ByteStream {
 public:
  explicit RawBytes(const InputFile& file) : file_(file) {
    if (file.is_standard_input()) {
      descriptor_ = STDIN_FILENO;
      head_ = file.head;
      return;
    }
    descriptor_ = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) refuse();
  }
  ~RawBytes() override {
    if (!file_.is_standard_input()) ::close(descriptor_);
  }
  RawBytes(const RawBytes&) = delete;
  RawBytes& operator=(const RawBytes&) = delete;

  std::size_t read(std::span<char> out) override {
    const std::size_t from_head = std::min(out.size(), head_.size());
    std::copy_n(head_.begin(), from_head, out.begin());
    head_.remove_prefix(from_head);
    std::size_t filled = from_head;
    while (filled < out.size()) {
      const ssize_t got = ::read(descriptor_, out.data() + filled, out.size() - filled);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) refuse();
      if (got == 0) break;
      filled += static_cast<std::size_t>(got);
    }
    position_ += filled;
    return filled;
  }
  std::uint64_t position() const override { return position_; }

 private:
  [[noreturn]] void refuse() const {
    fail(ErrorCode::data, "cannot read {}: {}", file_.path.string(), std::strerror(errno));
  }

  const InputFile file_;
  int descriptor_ = -1;
  std::string_view head_;  // of file_
  std::uint64_t position_ = 0;
};

/// Packed bytes from another stream, a chunk at a time.
class PackedBytes : public ByteStream {
 public:
  PackedBytes(const InputFile& file, std::unique_ptr<ByteStream> packed)
      : file_(file), packed_(std::move(packed)), chunk_(kChunk) {}
  std::uint64_t position() const override { return packed_->position() - left_; }

  std::size_t read(std::span<char> out) override {
    std::size_t filled = 0;
    while (filled < out.size()) {
      if (left_ == 0) {
        left_ = packed_->read(chunk_);
        next_ = chunk_.data();
        if (left_ == 0) {
          end();
          break;
        }
      }
      filled += unpack(out.subspan(filled));
    }
    return filled;
  }

 protected:
  /// Turns bytes at next_ into bytes of `out`; says how many.
  virtual std::size_t unpack(std::span<char> out) = 0;
  /// The packed bytes have ended; throws when something is missing.
  virtual void end() = 0;

  const InputFile file_;
  std::unique_ptr<ByteStream> packed_;
  std::vector<char> chunk_;
  char* next_ = nullptr;
  std::size_t left_ = 0;
};

class GzipBytes : public PackedBytes {
 public:
  GzipBytes(const InputFile& file, std::unique_ptr<ByteStream> packed)
      : PackedBytes(file, std::move(packed)) {
    if (inflateInit2(&zlib_, 15 + 16) != Z_OK) fail(ErrorCode::resources, "zlib has no memory");
  }
  ~GzipBytes() override { inflateEnd(&zlib_); }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;

 private:
  std::size_t unpack(std::span<char> out) override {
    if (at_end_) {
      if (is_padding()) return 0;
      inflateReset(&zlib_);  // a file may hold several members, one after another
      at_end_ = false;
    }
    const auto room = static_cast<uInt>(std::min(out.size(), kChunk));
    zlib_.next_in = reinterpret_cast<Bytef*>(next_);
    zlib_.avail_in = static_cast<uInt>(left_);
    zlib_.next_out = reinterpret_cast<Bytef*>(out.data());
    zlib_.avail_out = room;
    const int status = inflate(&zlib_, Z_NO_FLUSH);
    next_ += left_ - zlib_.avail_in;
    left_ = zlib_.avail_in;
    if (status == Z_STREAM_END) {
      at_end_ = true;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      damaged(file_, "gzip", zlib_.msg != nullptr ? zlib_.msg : "not a gzip stream");
    }
    return room - zlib_.avail_out;
  }
  /// Zeros after the last member, which tapes and some tools leave, are skipped as gzip does.
  bool is_padding() {
    char* const end = next_ + left_;
    char* const other = std::find_if(next_, end, [](char c) { return c != '\0'; });
    if (other == next_) return false;
    next_ = other;
    left_ = static_cast<std::size_t>(end - other);
    return true;
  }
  void end() override {
    if (!at_end_) damaged(file_, "gzip", "its end is missing");
  }

  z_stream zlib_{};
  bool at_end_ = false;
};

class ZstdBytes : public PackedBytes {
 public:
  ZstdBytes(const InputFile& file, std::unique_ptr<ByteStream> packed)
      : PackedBytes(file, std::move(packed)), zstd_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (!zstd_) fail(ErrorCode::resources, "zstd has no memory");
    // As wide as `zstd --long=31` writes; the memory is taken only where a file needs it.
    ZSTD_DCtx_setParameter(zstd_.get(), ZSTD_d_windowLogMax, 31);
  }

 private:
  std::size_t unpack(std::span<char> out) override {
    ZSTD_inBuffer in{next_, left_, 0};
    ZSTD_outBuffer room{out.data(), out.size(), 0};
    const std::size_t status = ZSTD_decompressStream(zstd_.get(), &room, &in);
    if (ZSTD_isError(status)) damaged(file_, "zstd", ZSTD_getErrorName(status));
    next_ += in.pos;
    left_ -= in.pos;
    is_inside_ = status != 0;
    return room.pos;
  }
  void end() override {
    if (is_inside_) damaged(file_, "zstd", "its end is missing");
  }

  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> zstd_;
  bool is_inside_ = true;  // of a frame
};

/// Bytes that are there already.
class HeadBytes : public ByteStream {
 public:
  explicit HeadBytes(std::string_view bytes) : bytes_(bytes) {}
  std::size_t read(std::span<char> out) override {
    const std::size_t count = std::min(out.size(), bytes_.size());
    std::copy_n(bytes_.begin(), count, out.begin());
    bytes_.remove_prefix(count);
    return count;
  }
  std::uint64_t position() const override { return 0; }

 private:
  std::string_view bytes_;
};

/// A stream without the byte order mark at its beginning.
class Unmarked : public ByteStream {
 public:
  explicit Unmarked(std::unique_ptr<ByteStream> bytes) : bytes_(std::move(bytes)) {
    first_.resize(bytes_->read({first_.data(), kByteOrderMark.size()}));
    if (first_ == kByteOrderMark) first_.clear();
  }
  std::size_t read(std::span<char> out) override {
    const std::size_t count = std::min(out.size(), first_.size());
    std::copy_n(first_.begin(), count, out.begin());
    first_.erase(0, count);
    return count + bytes_->read(out.subspan(count));
  }
  std::uint64_t position() const override { return bytes_->position(); }

 private:
  std::unique_ptr<ByteStream> bytes_;
  std::string first_ = std::string(kByteOrderMark.size(), '\0');
};

std::unique_ptr<ByteStream> unpacked(const InputFile& file, std::unique_ptr<ByteStream> bytes) {
  switch (file.packing) {
    case Packing::none: break;
    case Packing::gzip: return std::make_unique<GzipBytes>(file, std::move(bytes));
    case Packing::zstd: return std::make_unique<ZstdBytes>(file, std::move(bytes));
  }
  return bytes;
}

}  // namespace

std::unique_ptr<ByteStream> open_bytes(const InputFile& file) {
  return std::make_unique<Unmarked>(unpacked(file, std::make_unique<RawBytes>(file)));
}

std::string unpack_head(std::string_view head, Packing packing) {
  if (packing == Packing::none) return std::string(head);
  std::string content;
  try {
    const auto bytes =
        unpacked({.path = "", .packing = packing}, std::make_unique<HeadBytes>(head));
    std::array<char, 1024> some{};  // little at a time, because the last read meets the cut
    while (content.size() < kHeadBytes) {
      const std::size_t got = bytes->read(some);
      content.append(some.data(), got);
      if (got < some.size()) break;
    }
  } catch (const Error&) {  // where it is cut, or damaged: who reads all of it will say
  }
  return content;
}

bool LookAhead::more() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const std::size_t before = buffer_.size();
  // Twice as much each time, so that a long record is not searched and moved again and again.
  const std::size_t wanted = std::max(kChunk, before);
  buffer_.resize(before + wanted);
  const std::size_t got = bytes_->read(std::span(buffer_).subspan(before));
  buffer_.resize(before + got);
  return got > 0;
}

void require_record_fits(std::size_t bytes, const InputFile& file, std::int64_t number) {
  if (bytes <= kLargestRecord) return;
  throw Error(ErrorCode::data,
              fmt::format("{}: the record that begins there is longer than {} MiB",
                          place_of(file, number), kLargestRecord >> 20),
              "check that the file is what it is taken for, or cut it");
}

}  // namespace heddle
