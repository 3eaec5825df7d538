#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::parquet {

// Encodings of Parquet that store differences. Every fault is an Error(data).

/// Whole numbers (DELTA_BINARY_PACKED).
std::vector<std::int64_t> decode_deltas(std::string_view bytes, const std::string& name);
/// Texts, lengths first (DELTA_LENGTH_BYTE_ARRAY).
std::vector<std::string> decode_delta_lengths(std::string_view bytes, const std::string& name);
/// Texts that begin as the one before does (DELTA_BYTE_ARRAY).
std::vector<std::string> decode_delta_texts(std::string_view bytes, const std::string& name);

}  // namespace heddle::parquet
