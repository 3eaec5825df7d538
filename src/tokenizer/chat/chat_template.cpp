#include "tokenizer/chat/chat_template.h"

#include <array>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"
#include "tokenizer/chat/syntax.h"
#include "tokenizer/files/kinds.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// A folder's templates: the usual one, and one for conversations with tools.
struct Sources {
  std::optional<std::string> usual = {}, with_tools = {};
  fs::path file = {};
};

/// `chat_template`: a text, or a list of named ones.
Sources sources_of_config(const Json& config, const fs::path& file) {
  Sources found{.file = file};
  const auto at = config.find("chat_template");
  if (at == config.end() || at->is_null()) return found;
  if (at->is_string()) found.usual = at->get<std::string>();
  if (at->is_array()) {
    for (const Json& one : *at) {
      const std::string name = configured_text(one, "name"),
                        text = configured_text(one, "template");
      if (name == "default" && !text.empty()) found.usual = text;
      if (name == "tool_use" && !text.empty()) found.with_tools = text;
    }
  }
  if (found.usual) return found;
  fail(ErrorCode::data, "{}: chat_template is no text, and no list with one that is named default",
       file.string());
}

Sources sources_in(const fs::path& folder, const Json& config, const fs::path& config_file) {
  const fs::path own = folder / "chat_template.jinja",
                 with_tools = folder / "additional_chat_templates" / "tool_use.jinja";
  if (!fs::exists(own)) return sources_of_config(config, config_file);
  Sources found{.usual = read_text_file(own), .file = own};
  if (fs::exists(with_tools)) found.with_tools = read_text_file(with_tools);
  return found;
}

/// Messages call a model's thoughts by several names; templates look for the first two.
Json with_thoughts(const Json& messages) {
  if (!messages.is_array()) return messages;
  Json all = Json::array();
  for (const Json& message : messages) {
    all.push_back(message);
    if (!message.is_object()) continue;
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      const auto at = message.find(name);
      if (at == message.end() || at->is_null()) continue;
      all.back() = {{"thinking", *at}};
      all.back().update(message);
      all.back()["reasoning_content"] = *at;
      break;
    }
  }
  return all;
}

std::string formatted_time(const std::string& format, const std::optional<std::tm>& given) {
  std::tm time{};
  if (given) {
    time = *given;
  } else {
    const std::time_t now = std::time(nullptr);
    localtime_r(&now, &time);
  }
  std::array<char, 1024> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format.c_str(), &time)};
}

}  // namespace

struct ChatTemplate::Parts {
  std::string source;
  chat::Body body;
  std::optional<chat::Body> body_with_tools;
  chat::Dict tokens;
};

ChatTemplate::ChatTemplate(const std::string& source) {
  auto parts = std::make_shared<Parts>();
  parts->source = source;
  parts->body = chat::parse_template(source);
  parts_ = std::move(parts);
}

std::optional<ChatTemplate> ChatTemplate::find(const fs::path& folder) {
  const fs::path config_file = folder / "tokenizer_config.json";
  const Json config = json_beside(config_file, "tokenizer_config.json");
  const Sources sources = sources_in(folder, config, config_file);
  if (!sources.usual) return std::nullopt;
  auto parts = std::make_shared<Parts>();
  try {
    parts->source = *sources.usual + sources.with_tools.value_or("");
    parts->body = chat::parse_template(*sources.usual);
    if (sources.with_tools) parts->body_with_tools = chat::parse_template(*sources.with_tools);
  } catch (const Error& error) {
    throw error.within(sources.file.string());
  }
  for (const auto& [name, token] : tokens_named_beside(config_file, config)) {
    parts->tokens.set(name, token);
  }
  ChatTemplate found{""};
  found.parts_ = std::move(parts);
  return found;
}

bool ChatTemplate::marks_answers() const {
  return parts_->source.find("endgeneration") != std::string::npos;
}

const std::string& ChatTemplate::source() const { return parts_->source; }

ChatTemplate::Rendered ChatTemplate::render_marked(const Json& messages, const Json& others,
                                                   const Options& options) const {
  chat::Dict names = chat::builtin_functions();
  const auto now = options.now;
  names.set("strftime_now", chat::Function([now](const chat::Arguments& given) -> chat::Value {
              given.check("strftime_now", "format");
              const chat::Value* format = given.find(0, "format");
              if (format == nullptr) chat::template_error("strftime_now needs a format");
              return formatted_time(format->text(), now);
            }));
  for (const auto& [name, value] : parts_->tokens.items()) names.set(name, value);
  const chat::Value said = chat::Value::from_json(with_thoughts(messages));
  names.set("messages", said);
  names.set("add_generation_prompt", options.add_generation_prompt);
  for (const auto& [name, value] : others.items()) names.set(name, chat::Value::from_json(value));
  // Known to templates even where nothing was given.
  for (const char* name : {"tools", "documents"}) {
    if (names.find(name) == nullptr) names.set(name, chat::Value::None{});
  }
  chat::Scope scope(std::move(names));
  Rendered rendered;
  scope.watch(rendered.text);
  if (const chat::List* list = said.list()) scope.follow(*list);
  const bool has_tools = others.contains("tools") && !others["tools"].is_null();
  chat::run_body(has_tools && parts_->body_with_tools ? *parts_->body_with_tools : parts_->body,
                 scope, rendered.text);
  for (const auto& [begin, end] : scope.marks()) rendered.marked.push_back({begin, end});
  for (const auto& rounds : scope.rounds()) {
    auto& turn = rendered.turns.emplace_back();
    if (rounds.size() == 1) turn = {rounds.front().begin, rounds.front().end};
  }
  return rendered;
}

}  // namespace heddle
