#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenize.h"

namespace heddle {

/// Bytes [begin, end) of one input; whole documents.
struct InputSegment {
  InputFile file;
  std::size_t begin = 0, end = 0;
};

/// What one thread does at a time.
struct TokenizePart {
  std::vector<InputSegment> segments;
  std::size_t bytes = 0;
  /// Hash of everything the part's tokens depend on.
  std::string key;
};

/// Cuts the inputs into parts whose size depends on the inputs alone.
std::vector<TokenizePart> plan_parts(const std::vector<InputFile>& inputs,
                                     const TokenizeOptions& options);

/// What is kept about finished work, in `part-NNNNNN.json` and `OUT.json`.
struct TokenizeRecord {
  std::string key;
  std::int64_t documents = 0, tokens = 0, skipped = 0, empty = 0;
  std::uint64_t checksum = 0;  ///< of the token file it speaks of
  std::string tokenizer = {};  ///< path; in OUT.json only
};
void write_record(FileSystem& files, const std::filesystem::path& path,
                  const TokenizeRecord& record);
/// Whether write_record may have written this file.
bool is_record(const std::filesystem::path& path);
/// Absent when there is no readable record, or one with another key, or when `token_file` is not
/// whole and the one that the record speaks of.
std::optional<TokenizeRecord> find_record(const std::filesystem::path& path,
                                          const std::filesystem::path& token_file,
                                          const std::string& key);

}  // namespace heddle
