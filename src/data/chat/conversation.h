#pragma once

#include <cstddef>
#include <string>

#include "base/json.h"

namespace heddle {

/// Where records of conversations have what.
struct ChatFields {
  std::string messages = "messages", prompt = "prompt", answer = "completion";
  bool operator==(const ChatFields&) const = default;
};

/// What is said, in turns, and which of it is to be learnt.
struct Conversation {
  Json messages;          ///< a list of objects with role and content
  Json others;            ///< an object of what else a template may use: tools, documents
  std::size_t first = 0;  ///< answers before this message are given, not learnt

  /// Whether a message is one that a model would have said.
  bool is_answer(std::size_t message) const;
};

/// A record as a conversation: its messages, or a prompt and its answer, each a text or a list of
/// messages. Throws Error(data) that begins with `place` where it has neither, or no answer.
Conversation conversation_of(const Json& record, const ChatFields& fields,
                             const std::string& place);

}  // namespace heddle
