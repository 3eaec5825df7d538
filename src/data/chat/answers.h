#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/chat/conversation.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace heddle {

/// A conversation as one text, and where in it the answers stand.
struct ChatText {
  std::string text;
  std::vector<ChatTemplate::Stretch> answers;  ///< in order
};

/// Answers are what the template marks ({% generation %}); where it marks nothing, what it writes
/// from where it would let a model begin to the end of the message. Throws Error(data) that begins
/// with `place` where the template refuses the conversation or answers cannot be found in this way.
ChatText chat_text(const ChatTemplate& form, const Conversation& conversation,
                   const std::string& place);

struct ChatTokens {
  std::vector<std::int32_t> ids;
  std::vector<bool> are_answers;  ///< of each
};

/// The tokens of the whole text; those that have a byte of an answer are to be learnt.
ChatTokens chat_tokens(const Tokenizer& tokenizer, const ChatText& chat, EncodeCache& cache);

}  // namespace heddle
