#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/input_blocks.h"
#include "data/tokenize.h"

namespace heddle {

/// Of everything the tokens of a call depend on, but the content of its files: of these path, size
/// and time of change. Files that are not known by these (standard input) give a key that no other
/// call has.
std::string call_key(const std::vector<InputFile>& inputs, const TokenizeOptions& options);
/// Of everything the tokens of a block depend on.
std::string block_key(const InputBlock& block, const TokenizeOptions& options);

/// What is kept about finished work, in `part-GROUP-BLOCK.json` and `OUT.json`.
struct TokenizeRecord {
  std::string key;
  std::int64_t documents = 0, tokens = 0, skipped = 0, empty = 0;
  std::uint64_t checksum = 0;  ///< of the token file it speaks of
  bool continues = false;      ///< which begins within a document of the part before it
  std::string tokenizer = {};  ///< path; in OUT.json only
};
void write_record(FileSystem& files, const std::filesystem::path& path,
                  const TokenizeRecord& record);
/// That a group was read to its end, and of how many blocks it was.
void write_group_end(FileSystem& files, const std::filesystem::path& path, std::size_t blocks);
std::optional<std::size_t> read_group_end(const std::filesystem::path& path);
/// Whether write_record may have written this file.
bool is_record(const std::filesystem::path& path);
/// Absent when there is no readable record, or one with another key, or when `token_file` is not
/// whole and the one that the record speaks of.
std::optional<TokenizeRecord> find_record(const std::filesystem::path& path,
                                          const std::filesystem::path& token_file,
                                          const std::string& key);

}  // namespace heddle
