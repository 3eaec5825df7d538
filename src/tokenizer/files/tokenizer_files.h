#pragma once

#include <filesystem>
#include <string>

namespace heddle {

/// A tokenizer in the form of tokenizer.json, whatever form its files have.
struct TokenizerText {
  std::filesystem::path path;  ///< the file it was read from
  std::string json;
};

/// Reads a tokenizer.json, a SentencePiece model (tokenizer.model), or a vocab.json beside its
/// merges.txt; of a folder, the first of these that it has. Throws Error(data) that names the file.
TokenizerText read_tokenizer(const std::filesystem::path& path);

/// Whether read_tokenizer finds something in the folder.
bool has_tokenizer(const std::filesystem::path& folder);

}  // namespace heddle
