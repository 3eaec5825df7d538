#include "infer/chat_prompt.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/chat/chat_template.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

ChatTemplate template_in(const fs::path& folder) {
  auto found = ChatTemplate::find(folder);
  if (!found) {
    throw Error(ErrorCode::usage, fmt::format("{} has no chat template", folder.string()),
                "put its chat_template.jinja there, or give the whole text as --prompt");
  }
  return *found;
}

void check_messages(const Json& messages, const fs::path& file) {
  const bool is_list = messages.is_array() && !messages.empty();
  if (!is_list || !std::all_of(messages.begin(), messages.end(), [](const Json& message) {
        return message.is_object() && message.contains("role") && message["role"].is_string();
      })) {
    throw Error(ErrorCode::data, fmt::format("{} is no list of messages", file.string()),
                R"(write [{"role": "user", "content": "..."}, ...], or an object with "messages")");
  }
}

}  // namespace

std::string chat_prompt(const fs::path& folder, const std::string& message) {
  const Json messages = Json::array({{{"role", "user"}, {"content", message}}});
  return template_in(folder).render(messages, Json::object(), {});
}

std::string chat_prompt_of_file(const fs::path& folder, const fs::path& file) {
  const Json content = read_json_file(file);
  Json others = content.is_object() ? content : Json::object();
  const Json messages = content.is_object() ? content.value("messages", Json()) : content;
  check_messages(messages, file);
  others.erase("messages");
  const ChatTemplate form = template_in(folder);
  try {
    return form.render(messages, others, {});
  } catch (const Error& error) {
    throw error.within(file.string());
  }
}

}  // namespace heddle
