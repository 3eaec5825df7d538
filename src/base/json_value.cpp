#include "base/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/strings.h"

namespace heddle {
namespace {

std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    for (const char c : text.substr(0, valid)) {
      switch (c) {
        case '"': out += "\\\""; break;
        case '\\': out += "\\\\"; break;
        case '\b': out += "\\b"; break;
        case '\f': out += "\\f"; break;
        case '\n': out += "\\n"; break;
        case '\r': out += "\\r"; break;
        case '\t': out += "\\t"; break;
        default:
          if (static_cast<unsigned char>(c) < 0x20) {
            out += fmt::format("\\u{:04x}", static_cast<int>(c));
          } else {
            out += c;
          }
      }
    }
    text.remove_prefix(valid);
    if (text.empty()) break;
    out += "\xEF\xBF\xBD";
    text.remove_prefix(1);
  }
  return out + "\"";
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  std::string text = fmt::format("{}", value);
  // So that a reader takes it for a floating-point number.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

JsonValue::JsonValue(bool value) : text_(value ? "true" : "false") {}
JsonValue::JsonValue(std::int64_t value) : text_(fmt::format("{}", value)) {}
JsonValue::JsonValue(std::uint64_t value) : text_(fmt::format("{}", value)) {}
JsonValue::JsonValue(double value) : text_(number(value)) {}
JsonValue::JsonValue(std::string_view text) : text_(json_string(text)) {}

JsonValue::JsonValue(std::initializer_list<std::pair<std::string_view, JsonValue>> members)
    : kind_(Kind::object) {
  for (const auto& [key, value] : members) {
    keys_.emplace_back(key);
    children_.push_back(value);
  }
}

JsonValue JsonValue::array() {
  JsonValue made;
  made.kind_ = Kind::array;
  return made;
}

JsonValue JsonValue::object() {
  JsonValue made;
  made.kind_ = Kind::object;
  return made;
}

void JsonValue::push_back(JsonValue value) {
  HEDDLE_CHECK(kind_ == Kind::array, "an element for JSON that is no array");
  children_.push_back(std::move(value));
}

JsonValue& JsonValue::operator[](std::string_view key) {
  if (kind_ == Kind::scalar && text_ == "null") kind_ = Kind::object;
  HEDDLE_CHECK(kind_ == Kind::object, "member \"{}\" of JSON that is no object", key);
  const auto found = std::find(keys_.begin(), keys_.end(), key);
  if (found != keys_.end()) return children_[static_cast<std::size_t>(found - keys_.begin())];
  keys_.emplace_back(key);
  return children_.emplace_back();
}

std::string JsonValue::dump(int indent) const {
  std::string text;
  append_to(text, indent, 0);
  return text;
}

void JsonValue::append_to(std::string& text, int indent, int level) const {
  if (kind_ == Kind::scalar) {
    text += text_;
    return;
  }
  const bool is_object = kind_ == Kind::object;
  const auto new_line = [&](int at) {
    if (indent >= 0) text += "\n" + std::string(static_cast<std::size_t>(indent * at), ' ');
  };
  text += is_object ? '{' : '[';
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (i > 0) text += ',';
    new_line(level + 1);
    if (is_object) text += json_string(keys_[i]) + (indent >= 0 ? ": " : ":");
    children_[i].append_to(text, indent, level + 1);
  }
  if (!children_.empty()) new_line(level);
  text += is_object ? '}' : ']';
}

}  // namespace heddle
