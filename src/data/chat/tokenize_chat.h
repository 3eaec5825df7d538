#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "base/file_system.h"
#include "data/chat/conversation.h"
#include "data/tokenize.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace heddle {

struct TokenizeChatOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path out;
  std::filesystem::path tokenizer = {};  ///< kept in the record, for who reads the tokens
  ChatFields fields = {};
  std::optional<InputKind> kind = {};  ///< of all inputs; absent: recognised file by file
  int threads = 1;
};

/// Turns conversations (data/formats) into the token file `options.out`, a document each, with
/// their answers. The template writes all marks, so nothing is put around it. `OUT.json` records
/// what it was made of; when that still holds, nothing is done. Throws Error(data) for the first
/// record that is none, with its place. The tokens of all records are in memory meanwhile.
/// `progress`, which may be absent, is called on the calling thread after every few records.
TokenizeResult tokenize_chat(FileSystem& files, const TokenizeChatOptions& options,
                             const ChatTemplate& form, const Tokenizer& tokenizer,
                             const std::function<void(const TokenizeProgress&)>& progress = {});

}  // namespace heddle
