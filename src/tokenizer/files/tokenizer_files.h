#pragma once

#include <filesystem>
#include <string>

#include "tokenizer/tokenizer.h"

namespace heddle {

/// A tokenizer in the form of tokenizer.json, whatever form its files have.
struct TokenizerText {
  std::filesystem::path path;  ///< the file it was read from
  std::string json;
  TokenRoles roles = {};  ///< of tokenizer_config.json beside it, or of special_tokens_map.json
};

/// Reads a tokenizer.json, a SentencePiece model (tokenizer.model), a vocab.json beside its
/// merges.txt, or a vocab.txt (WordPiece, of BERT's folders); of a folder, the first of these that
/// it has. Throws Error(data) that names the file.
TokenizerText read_tokenizer(const std::filesystem::path& path);

/// The file that read_tokenizer reads first: `path` itself, or that of the folder `path`.
std::filesystem::path tokenizer_file(const std::filesystem::path& path);

/// Whether read_tokenizer finds something in the folder.
bool has_tokenizer(const std::filesystem::path& folder);

}  // namespace heddle
