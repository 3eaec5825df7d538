#include "data/formats/unpack_block.h"

#include <lz4.h>
#include <lz4frame.h>
#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include <limits>
#include <memory>

namespace heddle {
namespace {

/// No packing makes a byte of more than so many (zstd repeats a byte for a block of 128 KiB with
/// four): a piece that promises more is damaged, and would take the memory all the same.
constexpr std::size_t kMostPerByte = std::size_t{64} << 10;

bool unpack_gzip(std::string_view packed, std::string& out) {
  z_stream zlib{};
  if (inflateInit2(&zlib, 15 + 32) != Z_OK) return false;
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  zlib.avail_in = static_cast<uInt>(packed.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  const int status = inflate(&zlib, Z_FINISH);
  inflateEnd(&zlib);
  return status == Z_STREAM_END && zlib.avail_out == 0;
}

bool unpack_lz4_frame(std::string_view packed, std::string& out) {
  LZ4F_dctx* made = nullptr;
  if (LZ4F_isError(LZ4F_createDecompressionContext(&made, LZ4F_VERSION)) != 0) return false;
  const std::unique_ptr<LZ4F_dctx, LZ4F_errorCode_t (*)(LZ4F_dctx*)> context(
      made, LZ4F_freeDecompressionContext);
  std::size_t read = 0, written = 0;
  while (true) {
    std::size_t in = packed.size() - read, room = out.size() - written;
    const std::size_t left = LZ4F_decompress(context.get(), out.data() + written, &room,
                                             packed.data() + read, &in, nullptr);
    if (LZ4F_isError(left) != 0) return false;
    read += in;
    written += room;
    if (left == 0) return written == out.size();
    if (in == 0 && room == 0) return false;
  }
}

}  // namespace

bool unpack_block(BlockPacking packing, std::string_view packed, std::size_t size,
                  std::string& out) {
  constexpr std::size_t kMost = std::numeric_limits<int>::max();
  if (packed.size() > kMost || size > kMost || size / kMostPerByte > packed.size()) return false;
  if (packing == BlockPacking::none) {
    out = packed;
    return packed.size() == size;
  }
  out.resize(size);
  const int packed_size = static_cast<int>(packed.size()), room = static_cast<int>(size);
  switch (packing) {
    case BlockPacking::none: break;
    case BlockPacking::snappy: {
      std::size_t promised = 0;
      return snappy::GetUncompressedLength(packed.data(), packed.size(), &promised) &&
             promised == size && snappy::RawUncompress(packed.data(), packed.size(), out.data());
    }
    case BlockPacking::gzip: return unpack_gzip(packed, out);
    case BlockPacking::zstd:
      return ZSTD_decompress(out.data(), size, packed.data(), packed.size()) == size;
    case BlockPacking::lz4_raw:
      return LZ4_decompress_safe(packed.data(), out.data(), packed_size, room) == room;
    case BlockPacking::lz4_frame: return unpack_lz4_frame(packed, out);
  }
  return false;
}

}  // namespace heddle
