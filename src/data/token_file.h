#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "tensor/dtype.h"

namespace heddle {

/// What the header of a token file says (docs/formats/token-file.md).
struct TokenFileHeader {
  DType dtype = DType::u16;  ///< u16 or u32
  std::int64_t vocab_size = 0;
  std::int64_t token_count = 0;
  std::int64_t document_count = 0;
  std::uint64_t tokenizer_fingerprint = 0;  ///< content_hash of the tokenizer's file; 0: unknown
  std::uint64_t checksum = 0;               ///< content_hash of everything after the header
  bool has_answers = false;                 ///< it says which tokens are to be learnt
};

/// XXH64 with seed 0: the checksum of payloads and the fingerprint of tokenizer files.
std::uint64_t content_hash(std::span<const std::byte> bytes);

/// Whether it begins as a token file does, or is called like one (.tokens, .tok) and not a folder.
bool is_token_file(const std::filesystem::path& path);

/// Tokens of many documents, memory-mapped and read-only: nothing is loaded before it is asked for.
/// Cheap to copy (copies share the map) and thread-safe. Every fault of the content is an
/// Error(data) that names the file.
class TokenFile {
 public:
  /// What is believed before the first access. `structure` reads the header and the document index;
  /// `content` also reads every token: checksum and range.
  enum class Check { structure, content };

  static TokenFile open(const std::filesystem::path& path, Check check = Check::structure);
  /// The same over bytes in memory, which must outlive the object; `name` stands in messages.
  static TokenFile parse(std::span<const std::byte> bytes, const std::string& name,
                         Check check = Check::structure);

  const std::string& name() const { return name_; }
  const TokenFileHeader& header() const { return header_; }
  std::int64_t token_count() const { return header_.token_count; }
  std::int64_t document_count() const { return header_.document_count; }

  /// Copies tokens [begin, begin + out.size()); a token outside the vocabulary is an Error(data).
  void read(std::int64_t begin, std::span<std::int32_t> out) const;

  bool has_answers() const { return header_.has_answers; }
  /// Whether each of the tokens [begin, begin + out.size()) is to be learnt, in a file that has
  /// answers.
  void read_answers(std::int64_t begin, std::span<bool> out) const;

  /// First token of document `index`; token_count() for index == document_count().
  std::int64_t document_start(std::int64_t index) const;
  /// The document that holds `token`. O(log documents).
  std::int64_t document_of(std::int64_t token) const;

  /// The bytes of all tokens, little-endian, header().dtype each.
  std::span<const std::byte> token_bytes() const { return tokens_; }

 private:
  TokenFile() = default;
  void parse_header(std::span<const std::byte> bytes);
  void check_document_index() const;
  void check_content(std::span<const std::byte> payload) const;
  [[noreturn]] void refuse(const std::string& what) const;

  std::string name_;
  TokenFileHeader header_;
  std::shared_ptr<const MappedFile> map_;  // absent when parsed from memory
  std::span<const std::byte> tokens_, document_starts_, answers_;
};

/// Throws Error(data) when both files say which tokenizer made them and it was not the same, or
/// when their vocabularies differ.
void require_same_tokenizer(const TokenFile& a, const TokenFile& b);

/// Where the writing functions get a vocabulary and a fingerprint from.
struct TokenFileOrigin {
  std::int64_t vocab_size = 0;  ///< at most 65536: tokens take 2 bytes, otherwise 4
  std::uint64_t tokenizer_fingerprint = 0;
};

/// Writes `path` whole or not at all. Document i begins at document_starts[i]; starts ascend
/// strictly from 0, and tokens lie in the vocabulary (checked: our callers' bug otherwise).
/// `answers`: of each token, whether it is to be learnt; empty: the file does not say.
void write_token_file(FileSystem& files, const std::filesystem::path& path,
                      const TokenFileOrigin& origin, std::span<const std::int32_t> tokens,
                      std::span<const std::int64_t> document_starts,
                      const std::vector<bool>& answers = {});

struct TokenFilePart {
  std::filesystem::path file;
  bool continues = false;  ///< its first document is the rest of the last one before it
};
/// Writes the concatenation of `parts` (same vocabulary and fingerprint, without answers) to
/// `path`, whole or not at all, in constant memory. Returns the header written.
TokenFileHeader concatenate_token_files(FileSystem& files, const std::vector<TokenFilePart>& parts,
                                        const TokenFileOrigin& origin,
                                        const std::filesystem::path& path);

}  // namespace heddle
