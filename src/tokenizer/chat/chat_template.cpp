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

chat::Dict tokens_of_config(const Json& config) {
  chat::Dict tokens;
  for (const char* name : kTokenRoles) {
    if (std::string content = configured_token(config, name); !content.empty()) {
      tokens.set(name, content);
    }
  }
  return tokens;
}

/// `chat_template`: a text, or a list of named ones.
std::optional<std::string> template_of_config(const Json& config, const fs::path& file) {
  const auto at = config.find("chat_template");
  if (at == config.end() || at->is_null()) return std::nullopt;
  if (at->is_string()) return at->get<std::string>();
  if (at->is_array()) {
    for (const Json& one : *at) {
      if (configured_text(one, "name") != "default") continue;
      if (const std::string text = configured_text(one, "template"); !text.empty()) return text;
    }
  }
  fail(ErrorCode::data, "{}: chat_template is no text, and no list with one that is named default",
       file.string());
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
  chat::Dict tokens;
};

ChatTemplate::ChatTemplate(const std::string& source) {
  auto parts = std::make_shared<Parts>();
  parts->source = source;
  parts->body = chat::parse_template(source);
  parts_ = std::move(parts);
}

std::optional<ChatTemplate> ChatTemplate::find(const fs::path& folder) {
  const fs::path config_file = folder / "tokenizer_config.json",
                 own = folder / "chat_template.jinja";
  Json config = fs::exists(config_file) ? read_json_file(config_file) : Json::object();
  if (!config.is_object()) fail(ErrorCode::data, "{}: not an object", config_file.string());
  const auto source = fs::exists(own) ? std::optional(read_text_file(own))
                                      : template_of_config(config, config_file);
  if (!source) return std::nullopt;
  auto parts = std::make_shared<Parts>();
  try {
    parts->source = *source;
    parts->body = chat::parse_template(*source);
  } catch (const Error& error) {
    throw error.within((fs::exists(own) ? own : config_file).string());
  }
  parts->tokens = tokens_of_config(config);
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
  const chat::Value said = chat::Value::from_json(messages);
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
  chat::run_body(parts_->body, scope, rendered.text);
  for (const auto& [begin, end] : scope.marks()) rendered.marked.push_back({begin, end});
  for (const auto& rounds : scope.rounds()) {
    auto& turn = rendered.turns.emplace_back();
    if (rounds.size() == 1) turn = {rounds.front().begin, rounds.front().end};
  }
  return rendered;
}

}  // namespace heddle
