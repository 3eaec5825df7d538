#include "data/chat/conversation.h"

#include <fmt/format.h>

#include "base/error.h"

namespace heddle {
namespace {

[[noreturn]] void refuse_record(const std::string& place, const std::string& what,
                                const std::string& hint = "") {
  throw Error(ErrorCode::data, fmt::format("{}: {}", place, what), hint);
}

Json checked_messages(const Json& messages, const std::string& field, const std::string& place) {
  if (!messages.is_array() || messages.empty()) {
    refuse_record(place, fmt::format("field \"{}\" is no list of messages", field));
  }
  for (const Json& message : messages) {
    const bool has_role =
        message.is_object() && message.contains("role") && message["role"].is_string();
    if (!has_role || !(message.contains("content") || message.contains("tool_calls"))) {
      refuse_record(place,
                    fmt::format("field \"{}\" has a message without role and content", field),
                    R"(a message is {"role": "user", "content": "..."})");
    }
  }
  return messages;
}

/// A text is a message of `role`; a list is messages already.
Json as_messages(const Json& value, const char* role, const std::string& field,
                 const std::string& place) {
  if (!value.is_string()) return checked_messages(value, field, place);
  return Json::array({{{"role", role}, {"content", value}}});
}

}  // namespace

bool Conversation::is_answer(std::size_t message) const {
  return message >= first && messages[message]["role"] == "assistant";
}

Conversation conversation_of(const Json& record, const ChatFields& fields,
                             const std::string& place) {
  Conversation made{.messages = Json::array(), .others = Json::object()};
  for (const char* name : {"tools", "documents"}) {
    if (record.contains(name)) made.others[name] = record[name];
  }
  if (record.contains(fields.messages)) {
    made.messages = checked_messages(record[fields.messages], fields.messages, place);
  } else if (record.contains(fields.prompt) && record.contains(fields.answer)) {
    made.messages = as_messages(record[fields.prompt], "user", fields.prompt, place);
    made.first = made.messages.size();
    for (const Json& message :
         as_messages(record[fields.answer], "assistant", fields.answer, place)) {
      made.messages.push_back(message);
    }
  } else {
    refuse_record(
        place,
        fmt::format("the record has neither \"{}\" nor \"{}\" and \"{}\"", fields.messages,
                    fields.prompt, fields.answer),
        "name its fields with data.messages_field, or data.prompt_field and data.answer_field");
  }
  for (std::size_t i = 0; i < made.messages.size(); ++i) {
    if (made.is_answer(i)) return made;
  }
  refuse_record(place, "the conversation has no answer: no message of role \"assistant\"",
                "leave such records out");
}

}  // namespace heddle
