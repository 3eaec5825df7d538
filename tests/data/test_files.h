#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/token_file.h"
#include "support/temporary_folder.h"

namespace heddle {

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Documents of the given lengths; token i of the file is i % vocab_size.
inline std::filesystem::path write_counting_file(const std::filesystem::path& path,
                                                 const std::vector<std::int64_t>& lengths,
                                                 std::int64_t vocab_size = 1000,
                                                 std::uint64_t fingerprint = 7) {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> starts;
  for (const std::int64_t length : lengths) {
    starts.push_back(static_cast<std::int64_t>(tokens.size()));
    for (std::int64_t i = 0; i < length; ++i) {
      tokens.push_back(
          static_cast<std::int32_t>(static_cast<std::int64_t>(tokens.size()) % vocab_size));
    }
  }
  write_token_file(real_file_system(), path, {vocab_size, fingerprint}, tokens, starts);
  return path;
}

/// The error that `call` throws; fails the caller's expectations by an internal one when it throws
/// none.
inline Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e;
  }
  return Error(ErrorCode::internal, "nothing was thrown");
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace heddle
