#include "tokenizer/chat/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/unicode/characters.h"

namespace heddle::chat {
namespace {

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double size = std::fabs(value);
  if (size != 0 && (size < 1e-4 || size >= 1e16)) {
    std::string text = fmt::format("{}", value);  // 1e+16, as Python has it
    return text;
  }
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool is_printable(char32_t c) {
  const Category category = category_of(c);
  return c == ' ' || (category != Category::cn && category < Category::zs);
}

std::string quoted(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    const auto code = static_cast<std::uint32_t>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\\' || bytes == std::string_view(&quote, 1)) {
      out.append("\\").append(bytes);
    } else if (c == kInvalidCodePoint || is_printable(c)) {
      out += bytes;
    } else {
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
  });
  return out + quote;
}

/// What stands between the parts of a list or dict that is written out.
struct Layout {
  std::string separator, line, last_line;
};

template <class Items, class Write>
std::string joined(const Items& items, char open, char close, const Layout& layout, Write write) {
  if (items.empty()) return {open, close};
  std::string out(1, open);
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) out += layout.separator;
    is_first = false;
    out += layout.line + write(item);
  }
  return out + layout.last_line + close;
}

Layout layout_at(const JsonStyle& style, int depth) {
  Layout layout{style.item_separator, "", ""};
  if (!style.indent) return layout;
  layout.last_line = "\n";
  for (int i = 0; i < depth; ++i) layout.last_line += *style.indent;
  layout.line = layout.last_line + *style.indent;
  return layout;
}

Dict::Items items_of(const Dict& dict, const JsonStyle& style) {
  auto items = dict.items();
  if (style.sorts_keys) {
    std::sort(items.begin(), items.end(),
              [](const auto& a, const auto& b) { return less(a.first, b.first); });
  }
  return items;
}

std::string json_text(const Value& value, const JsonStyle& style, int depth);

/// What is no text is written as JSON has it, and that as a text.
std::string json_key(const Value& key, const JsonStyle& style) {
  return key.string() != nullptr ? json_text(key, style, 0) : '"' + json_text(key, style, 0) + '"';
}

std::string json_text(const Value& value, const JsonStyle& style, int depth) {
  if (value.is_none()) return "null";
  if (const bool* flag = value.boolean()) return *flag ? "true" : "false";
  if (const auto* text = value.string()) {
    return Json(*text).dump(-1, ' ', style.is_ascii, Json::error_handler_t::replace);
  }
  if (const List* list = value.list()) {
    return joined(*list, '[', ']', layout_at(style, depth),
                  [&](const Value& one) { return json_text(one, style, depth + 1); });
  }
  if (const Dict* dict = value.dict()) {
    return joined(items_of(*dict, style), '{', '}', layout_at(style, depth), [&](const auto& item) {
      return json_key(item.first, style) + style.key_separator +
             json_text(item.second, style, depth + 1);
    });
  }
  if (!value.is_number()) template_error(fmt::format("tojson of {}", value.kind()));
  return value.text();
}

}  // namespace

std::size_t Dict::size() const { return items_.size(); }

const Value* Dict::find(std::string_view key) const {
  const auto at = std::find_if(items_.begin(), items_.end(), [&](const auto& item) {
    return item.first.string() != nullptr && *item.first.string() == key;
  });
  return at == items_.end() ? nullptr : &at->second;
}

const Value* Dict::find_key(const Value& key) const {
  if (key.string() != nullptr) return find(std::string_view(*key.string()));
  const auto at = std::find_if(items_.begin(), items_.end(),
                               [&](const auto& item) { return equal(item.first, key); });
  return at == items_.end() ? nullptr : &at->second;
}

void Dict::set(const Value& key, Value value) {
  const auto at = std::find_if(items_.begin(), items_.end(),
                               [&](const auto& item) { return equal(item.first, key); });
  if (at == items_.end()) {
    items_.emplace_back(key, std::move(value));
  } else {
    at->second = std::move(value);
  }
}

const Value* Arguments::find(std::size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Arguments::check(std::string_view callee, std::string_view parameters) const {
  if (parameters == "**") return;
  std::vector<std::string_view> known;
  while (!parameters.empty()) {
    known.push_back(parameters.substr(0, parameters.find(' ')));
    parameters.remove_prefix(std::min(parameters.size(), known.back().size() + 1));
  }
  const bool takes_any = !known.empty() && known.back() == "*";
  if (!takes_any && positional.size() > known.size()) {
    template_error(fmt::format("{} with {} arguments is not supported; it takes at most {}", callee,
                               positional.size(), known.size()));
  }
  for (const auto& [name, value] : named) {
    const auto at = std::find(known.begin(), known.end(), name);
    if (at == known.end()) {
      template_error(fmt::format("{} with the argument {} is not supported", callee, name));
    }
    if (static_cast<std::size_t>(at - known.begin()) < positional.size()) {
      template_error(fmt::format("{} is given {} twice", callee, name));
    }
  }
}

Value Value::from_json(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean: return json.get<bool>();
    case Json::value_t::number_integer: return json.get<std::int64_t>();
    case Json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
        template_error(fmt::format("the number {} is too large", json.get<std::uint64_t>()));
      }
      return json.get<std::int64_t>();
    case Json::value_t::number_float: return json.get<double>();
    case Json::value_t::string: return json.get<std::string>();
    case Json::value_t::array: {
      List list;
      for (const Json& one : json) list.push_back(from_json(one));
      return list;
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, value] : json.items()) dict.set(key, from_json(value));
      return dict;
    }
    default: return None{};
  }
}

Value Value::tuple(List list) {
  Value value(std::move(list));
  value.kind_ = Kind::tuple;
  return value;
}

Value Value::safe(std::string text) {
  Value value(std::move(text));
  value.kind_ = Kind::safe;
  return value;
}

const Dict* Value::dict() const { return shared<Dict>(); }

Dict* Value::fields() const {
  const auto* space = get<Namespace>();
  return space == nullptr ? nullptr : space->fields.get();
}

double Value::number() const {
  if (const double* value = real()) return *value;
  return static_cast<double>(whole());
}

std::int64_t Value::whole() const {
  if (const auto* value = integer()) return *value;
  if (const bool* flag = boolean()) return *flag ? 1 : 0;
  template_error(fmt::format("{} where a whole number is needed", kind()));
}

bool Value::is_true() const {
  if (is_undefined() || is_none()) return false;
  if (const bool* flag = boolean()) return *flag;
  if (is_number()) return number() != 0;
  if (const auto* text = string()) return !text->empty();
  if (const List* values = list()) return !values->empty();
  if (const Dict* items = dict()) return items->size() > 0;
  return true;
}

std::string Value::kind() const {
  if (const auto* undefined = get<Undefined>()) {
    return undefined->name.empty() ? "an undefined value" : "undefined " + undefined->name;
  }
  if (is_none()) return "None";
  if (boolean() != nullptr) return "a boolean";
  if (is_number()) return "a number";
  if (string() != nullptr) return "a string";
  if (list() != nullptr) return is_tuple() ? "a tuple" : "a list";
  if (dict() != nullptr) return "a dict";
  return function() != nullptr ? "a function" : "a namespace";
}

std::string Value::text() const {
  if (is_undefined()) return "";
  const auto* value = string();
  return value == nullptr ? representation() : *value;
}

std::string Value::representation() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (const bool* flag = boolean()) return *flag ? "True" : "False";
  if (const auto* value = integer()) return std::to_string(*value);
  if (const double* value = real()) return real_text(*value);
  if (const auto* value = string()) return quoted(*value);
  if (const List* values = list()) {
    const char* const ends = !is_tuple() ? "[]" : "()";
    const Layout layout{", ", "", is_tuple() && values->size() == 1 ? "," : ""};
    return joined(*values, ends[0], ends[1], layout,
                  [](const Value& one) { return one.representation(); });
  }
  if (const Dict* items = dict()) {
    return joined(items->items(), '{', '}', {", ", "", ""}, [](const auto& item) {
      return item.first.representation() + ": " + item.second.representation();
    });
  }
  template_error(fmt::format("{} cannot be printed", kind()));
}

bool equal(const Value& a, const Value& b) {
  const bool are_numbers =
      (a.is_number() || a.boolean() != nullptr) && (b.is_number() || b.boolean() != nullptr);
  if (a.is_whole() && b.is_whole()) return a.whole() == b.whole();
  if (are_numbers) return a.number() == b.number();
  if (a.string() != nullptr && b.string() != nullptr) return *a.string() == *b.string();
  if (a.list() != nullptr && b.list() != nullptr) {
    return a.is_tuple() == b.is_tuple() && std::equal(a.list()->begin(), a.list()->end(),
                                                      b.list()->begin(), b.list()->end(), equal);
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->size() != b.dict()->size()) return false;
    return std::all_of(a.dict()->items().begin(), a.dict()->items().end(), [&](const auto& item) {
      const Value* other = b.dict()->find_key(item.first);
      return other != nullptr && equal(item.second, *other);
    });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
  const auto is_number = [](const Value& v) { return v.is_number() || v.boolean() != nullptr; };
  if (a.is_whole() && b.is_whole()) return a.whole() < b.whole();
  if (is_number(a) && is_number(b)) return a.number() < b.number();
  if (a.string() != nullptr && b.string() != nullptr) return *a.string() < *b.string();
  template_error(fmt::format("{} and {} have no order", a.kind(), b.kind()));
}

List elements(const Value& value) {
  if (value.is_undefined()) return {};
  if (const List* list = value.list()) return *list;
  List found;
  if (const Dict* dict = value.dict()) {
    for (const auto& item : dict->items()) found.emplace_back(item.first);
    return found;
  }
  if (const auto* text = value.string()) {
    for_each_character(*text,
                       [&](char32_t, std::string_view c) { found.emplace_back(std::string(c)); });
    return found;
  }
  template_error(fmt::format("{} has no elements to go through", value.kind()));
}

std::string to_json_text(const Value& value, const JsonStyle& style) {
  return json_text(value, style, 0);
}

void template_error(const std::string& what) {
  throw Error(ErrorCode::data, "the chat template: " + what, "");
}

}  // namespace heddle::chat
