#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace heddle {

/// How pieces inside a file are compressed.
enum class BlockPacking { none, snappy, gzip, zstd, lz4_raw, lz4_frame };

/// The piece unpacked, which must give exactly `size` bytes: absent when it does not. Memory is
/// taken only for what the piece may really hold.
bool unpack_block(BlockPacking packing, std::string_view packed, std::size_t size,
                  std::string& out);

}  // namespace heddle
