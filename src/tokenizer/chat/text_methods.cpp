#include "tokenizer/chat/text_methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "tokenizer/chat/syntax.h"
#include "tokenizer/unicode/characters.h"

namespace heddle::chat {
namespace {

using Method = Value (*)(const std::string& text, const Arguments& given);

std::string argument_text(const Arguments& given, std::size_t at, const char* method) {
  if (at >= given.positional.size() || given.positional[at].string() == nullptr) {
    template_error(fmt::format("{} needs a string", method));
  }
  return *given.positional[at].string();
}

bool is_stripped(std::string_view character, const std::string* characters) {
  return characters != nullptr ? characters->find(character) != std::string::npos
                               : is_space(character);
}

template <bool kLeft, bool kRight>
Value strip(const std::string& text, const Arguments& given) {
  const Value* which = given.find(0, "chars");
  const std::string* characters = which == nullptr ? nullptr : which->string();
  std::string_view rest = text;
  while (kLeft && !rest.empty()) {
    const auto length =
        static_cast<std::size_t>(decode_utf8(rest.data(), rest.data() + rest.size()).length);
    if (!is_stripped(rest.substr(0, length), characters)) break;
    rest.remove_prefix(length);
  }
  while (kRight && !rest.empty()) {
    const std::size_t start = last_character(rest);
    if (!is_stripped(rest.substr(start), characters)) break;
    rest = rest.substr(0, start);
  }
  return std::string(rest);
}

/// The parts of a text between blanks.
List words(const std::string& text, std::int64_t most) {
  List found;
  std::string word;
  std::size_t at = 0;
  for_each_character(text, [&](char32_t, std::string_view c) {
    at += c.size();
    const bool is_last = most >= 0 && static_cast<std::int64_t>(found.size()) == most;
    if (!is_space(c) || (is_last && !word.empty())) {
      word += c;
    } else if (!word.empty()) {
      found.emplace_back(std::exchange(word, {}));
    }
  });
  if (!word.empty()) found.emplace_back(word);
  return found;
}

Value split(const std::string& text, const Arguments& given) {
  const Value* by = given.find(0, "sep");
  const Value* limit = given.find(1, "maxsplit");
  const std::int64_t most = limit == nullptr ? -1 : limit->whole();
  if (by == nullptr || by->is_none()) return words(text, most);
  const std::string separator = by->text();
  if (separator.empty()) template_error("split by an empty string");
  List found;
  std::size_t at = 0;
  while (most < 0 || static_cast<std::int64_t>(found.size()) < most) {
    const std::size_t next = text.find(separator, at);
    if (next == std::string::npos) break;
    found.emplace_back(text.substr(at, next - at));
    at = next + separator.size();
  }
  found.emplace_back(text.substr(at));
  return found;
}

Value split_lines(const std::string& text, const Arguments& given) {
  const Value* keeps = given.find(0, "keepends");
  const bool keeps_ends = keeps != nullptr && keeps->is_true();
  List lines;
  std::size_t start = 0, end = 0;
  const auto put = [&](std::size_t next) {
    lines.emplace_back(text.substr(start, (keeps_ends ? next : end) - start));
    start = next;
  };
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    const auto at = static_cast<std::size_t>(bytes.data() - text.data());
    end = at;
    const bool is_line_end = (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                             c == 0x2028 || c == 0x2029;
    if (at < start || !is_line_end) return;
    put(at + (text.compare(at, 2, "\r\n") == 0 ? 2 : bytes.size()));
  });
  end = text.size();
  if (start < end) put(end);
  return lines;
}

/// A part of a text, and how many characters lie before it.
struct Part {
  std::string_view text;
  std::int64_t before;
};

/// What the second and third argument of `find` and its like leave to look at: the start and the
/// end in characters. Nothing where no text is between them.
std::optional<Part> part_of(const std::string& text, const Arguments& given) {
  if (given.positional.size() < 2) return Part{text, 0};
  std::vector<std::size_t> starts;
  std::size_t at = 0;
  for_each_character(text, [&](char32_t, std::string_view c) {
    starts.push_back(at);
    at += c.size();
  });
  starts.push_back(at);
  const auto size = static_cast<std::int64_t>(starts.size()) - 1;
  const auto place = [&](std::size_t which, std::int64_t otherwise) {
    const Value* value = given.find(which, "");
    if (value == nullptr || value->is_none()) return otherwise;
    const std::int64_t given_place = value->whole();
    return given_place < 0 ? std::max<std::int64_t>(0, given_place + size) : given_place;
  };
  const std::int64_t begin = place(1, 0), end = std::min(place(2, size), size);
  if (begin > end) return std::nullopt;
  const std::size_t from = starts[static_cast<std::size_t>(begin)];
  return Part{std::string_view(text).substr(from, starts[static_cast<std::size_t>(end)] - from),
              begin};
}

bool matches_end(const std::string& text, const Arguments& given, bool at_start) {
  if (given.positional.empty()) template_error("startswith and endswith need a string");
  const Value& which = given.positional.front();
  const auto whole = part_of(text, given);
  if (!whole) return false;
  const auto matches = [&](const Value& one) {
    const std::string part = one.text();
    return at_start ? whole->text.starts_with(part) : whole->text.ends_with(part);
  };
  if (which.list() == nullptr) return matches(which);
  return std::any_of(which.list()->begin(), which.list()->end(), matches);
}

Value replace(const std::string& text, const Arguments& given) {
  const std::string from = argument_text(given, 0, "replace"),
                    to = argument_text(given, 1, "replace");
  const Value* limit = given.find(2, "count");
  std::int64_t left = limit == nullptr || limit->is_none() || limit->whole() < 0
                          ? std::numeric_limits<std::int64_t>::max()
                          : limit->whole();
  if (from.empty()) template_error("replace of an empty string");
  std::string out;
  std::size_t at = 0;
  for (std::size_t next = text.find(from); next != std::string::npos && left > 0;
       next = text.find(from, at), --left) {
    out.append(text, at, next - at).append(to);
    at = next + from.size();
  }
  return out + text.substr(at);
}

/// Words with a capital first; `whole` takes all of the text for one word.
std::string capitalised(const std::string& text, bool whole) {
  std::string out;
  bool starts = true;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    const bool is_letter = class_of(c) == CharClass::letter;
    out += starts ? raised(bytes) : lowered(bytes);
    starts = whole ? false : !is_letter;
  });
  return out;
}

/// In characters, as Python counts; -1: nowhere.
std::int64_t find_in(const std::string& text, const Arguments& given, const char* method) {
  const std::string part = argument_text(given, 0, method);
  const auto whole = part_of(text, given);
  const std::size_t at = whole ? whole->text.find(part) : std::string::npos;
  if (at == std::string::npos) return -1;
  std::int64_t characters = whole->before;
  for_each_character(whole->text.substr(0, at), [&](char32_t, std::string_view) { ++characters; });
  return characters;
}

/// Python's format, of which templates use {}, {0} and {{ }}.
Value format(const std::string& text, const Arguments& given) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool is_double = text.compare(at, 2, "{{") == 0 || text.compare(at, 2, "}}") == 0;
    if (is_double || (text[at] != '{' && text[at] != '}')) {
      out += text[at];
      at += is_double ? 1 : 0;
      continue;
    }
    const std::size_t end = std::min(text.find('}', at), text.size() - 1);
    const std::string field = text.substr(at + 1, end - at - (end > at ? 1 : 0));
    const bool is_place = text[at] == '{' && text[end] == '}' && field.size() < 4 &&
                          field.find_first_not_of("0123456789") == std::string::npos;
    if (!is_place) template_error(fmt::format("format of {{{}}} is not supported", field));
    const std::size_t place = field.empty() ? next++ : std::stoul(field);
    if (place >= given.positional.size()) template_error("format lacks an argument");
    out += given.positional[place].text();
    at = end;
  }
  return out;
}

Value count(const std::string& text, const Arguments& given) {
  const std::string part = argument_text(given, 0, "count");
  if (part.empty()) template_error("count of an empty string");
  const auto whole = part_of(text, given);
  if (!whole) return std::int64_t{0};
  std::int64_t found = 0;
  for (std::size_t at = whole->text.find(part); at != std::string_view::npos;
       at = whole->text.find(part, at + part.size())) {
    ++found;
  }
  return found;
}

Value join(const std::string& text, const Arguments& given) {
  std::string out;
  bool is_first = true;
  if (given.positional.empty()) template_error("join needs a list");
  for (const Value& one : elements(given.positional.front())) {
    if (!is_first) out += text;
    is_first = false;
    out += one.text();
  }
  return out;
}

template <class Holds>
bool all_characters(const std::string& text, Holds holds) {
  bool all = !text.empty();
  for_each_character(text, [&](char32_t c, std::string_view) { all = all && holds(c); });
  return all;
}

struct MethodEntry {
  std::string_view name, parameters;
  Method method;
};

// clang-format off
constexpr std::array<MethodEntry, 23> kTextMethods = {{
    {"capitalize", "", [](const std::string& t, const Arguments&) -> Value { return capitalised(t, true); }},
    {"count", "/ / /", count},
    {"endswith", "/ / /", [](const std::string& t, const Arguments& a) -> Value { return matches_end(t, a, false); }},
    {"find", "/ / /", [](const std::string& t, const Arguments& a) -> Value { return find_in(t, a, "find"); }},
    {"format", "*", format},
    {"isalpha", "", [](const std::string& t, const Arguments&) -> Value {
       return all_characters(t, [](char32_t c) { return class_of(c) == CharClass::letter; });
     }},
    {"isdigit", "", [](const std::string& t, const Arguments&) -> Value {
       return all_characters(t, [](char32_t c) { return category_of(c) == Category::nd; });
     }},
    {"isspace", "", [](const std::string& t, const Arguments&) -> Value {
       return !t.empty() && leading_spaces(t) == t.size();
     }},
    {"join", "/", join},
    {"lower", "", [](const std::string& t, const Arguments&) -> Value { return lowered(t); }},
    {"lstrip", "chars", strip<true, false>},
    {"removeprefix", "/", [](const std::string& t, const Arguments& a) -> Value {
       const std::string part = argument_text(a, 0, "removeprefix");
       return t.starts_with(part) ? t.substr(part.size()) : t;
     }},
    {"removesuffix", "/", [](const std::string& t, const Arguments& a) -> Value {
       const std::string part = argument_text(a, 0, "removesuffix");
       return t.ends_with(part) ? t.substr(0, t.size() - part.size()) : t;
     }},
    {"replace", "/ / count", replace},
    {"rstrip", "chars", strip<false, true>},
    {"split", "sep maxsplit", split},
    {"splitlines", "keepends", split_lines},
    {"startswith", "/ / /", [](const std::string& t, const Arguments& a) -> Value { return matches_end(t, a, true); }},
    {"strip", "chars", strip<true, true>},
    {"title", "", [](const std::string& t, const Arguments&) -> Value { return capitalised(t, false); }},
    {"upper", "", [](const std::string& t, const Arguments&) -> Value { return raised(t); }},
    {"index", "/ / /", [](const std::string& t, const Arguments& a) -> Value {
       const std::int64_t at = find_in(t, a, "index");
       if (at < 0) template_error("index: the string is not there");
       return at;
     }},
    {"isupper", "", [](const std::string& t, const Arguments&) -> Value { return t == raised(t) && t != lowered(t); }},
}};
// clang-format on

Value dict_method(const Value& subject, const std::string& name) {
  const auto list = [&](auto pick) {
    return Function([subject, name, pick](const Arguments& given) -> Value {
      given.check(name, "");
      List found;
      for (const auto& item : subject.dict()->items()) found.push_back(pick(item));
      return found;
    });
  };
  using Entry = std::pair<Value, Value>;
  if (name == "items") {
    return list([](const Entry& e) { return Value::tuple({e.first, e.second}); });
  }
  if (name == "keys") return list([](const Entry& e) -> Value { return e.first; });
  if (name == "values") return list([](const Entry& e) -> Value { return e.second; });
  if (name != "get") return {};
  return Function([subject](const Arguments& given) -> Value {
    given.check("get", "/ default");
    if (given.positional.empty()) template_error("get needs a key");
    const Value* found = subject.dict()->find_key(given.positional.front());
    if (found != nullptr) return *found;
    const Value* missing = given.find(1, "default");
    return missing == nullptr ? Value(Value::None{}) : *missing;
  });
}

}  // namespace

std::string lowered(std::string_view text) {
  std::string out;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (c == kInvalidCodePoint) {
      out += bytes;
    } else {
      append_lowercase(c, out);
    }
  });
  return out;
}

std::string raised(std::string_view text) {
  std::string out;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (c == kInvalidCodePoint) {
      out += bytes;
    } else {
      append_utf8(uppercase_of(c), out);
    }
  });
  return out;
}

bool is_space(std::string_view character) {
  const char* const end = character.data() + character.size();
  const char32_t c = decode_utf8(character.data(), end).value;
  return class_of(c) == CharClass::space || (c >= 0x1C && c <= 0x1F);
}

std::size_t leading_spaces(std::string_view text) {
  std::size_t count = 0;
  while (count < text.size()) {
    const auto rest = text.substr(count);
    const auto length =
        static_cast<std::size_t>(decode_utf8(rest.data(), rest.data() + rest.size()).length);
    if (!is_space(rest.substr(0, length))) break;
    count += length;
  }
  return count;
}

std::string_view without_spaces_behind(std::string_view text) {
  while (!text.empty() && is_space(text.substr(last_character(text)))) {
    text = text.substr(0, last_character(text));
  }
  return text;
}

/// printf's %s, %d and the like, as Python has them.
std::string printed(const Value& form, const List& values) {
  const std::string text = form.text();
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      out += text[at];
      continue;
    }
    const char letter = ++at < text.size() ? text[at] : '\0';
    if (letter == '%') {
      out += '%';
      continue;
    }
    if (std::string_view("sdir").find(letter) == std::string_view::npos) {
      template_error(fmt::format("a format with %{} is not supported", letter));
    }
    if (next >= values.size()) template_error("a format lacks an argument");
    const Value& value = values[next++];
    out += letter == 's'   ? value.text()
           : letter == 'r' ? value.representation()
                           : std::to_string(value.whole());
  }
  if (next < values.size()) template_error("a format has more arguments than places");
  return out;
}

Value find_method(const Value& subject, const std::string& name) {
  if (subject.dict() != nullptr) return dict_method(subject, name);
  if (subject.string() == nullptr) return {};
  const auto at = std::find_if(kTextMethods.begin(), kTextMethods.end(),
                               [&](const MethodEntry& one) { return one.name == name; });
  if (at == kTextMethods.end()) return {};
  return Function([text = *subject.string(), &entry = *at](const Arguments& given) {
    given.check(entry.name, entry.parameters);
    return entry.method(text, given);
  });
}

}  // namespace heddle::chat
