#pragma once

#include <cstdint>
#include <string_view>

namespace heddle {

/// CRC-32C (Castagnoli polynomial, reflected), as in iSCSI, ext4 and TFRecord files. Pass the
/// result of the previous piece as `crc` to go on.
std::uint32_t crc32c(std::string_view bytes, std::uint32_t crc = 0);

/// The same without the processor's instruction for it.
std::uint32_t crc32c_by_tables(std::string_view bytes, std::uint32_t crc = 0);

}  // namespace heddle
