#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

/// 1536 -> "1.5 KiB".
std::string format_bytes(double bytes);
/// 124439808 -> "124.4M".
std::string format_count(double count);
/// 3725 -> "1h02m", 75 -> "1m15s", 4.2 -> "4.2s".
std::string format_duration(double seconds);
/// 1234567 -> "1,234,567".
std::string format_thousands(std::int64_t value);

/// The candidate nearest to `word` in edit distance, or "" when none is near enough to be a slip.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);

/// What a message shows of a text that may be long: all of it, or its beginning of `most` bytes and
/// how many there are.
std::string shortened(std::string_view text, std::size_t most = 80);

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);

/// Length of the longest prefix of `bytes` that is valid UTF-8 (equal to bytes.size() when all is
/// valid).
std::size_t valid_utf8_prefix(std::string_view bytes);

}  // namespace heddle
