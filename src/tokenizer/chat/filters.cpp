#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "tokenizer/chat/syntax.h"
#include "tokenizer/chat/text_methods.h"

namespace heddle::chat {
namespace {

std::string text_argument(const Arguments& given, std::size_t at, std::string_view name,
                          const char* otherwise) {
  const Value* value = given.find(at, name);
  return value == nullptr ? otherwise : value->text();
}

bool flag_argument(const Arguments& given, std::size_t at, std::string_view name) {
  const Value* value = given.find(at, name);
  return value != nullptr && value->is_true();
}

/// a.b.c of a value.
Value path_of(Value value, std::string_view path) {
  while (!path.empty()) {
    const std::size_t dot = path.find('.');
    value = item_of(value, std::string(path.substr(0, dot)));
    if (dot == std::string_view::npos) break;
    path.remove_prefix(dot + 1);
  }
  return value;
}

Value length(const Value& subject, const Arguments&) {
  if (subject.is_number() || subject.boolean() != nullptr || subject.is_none()) {
    template_error(fmt::format("{} has no length", subject.kind()));
  }
  return static_cast<std::int64_t>(elements(subject).size());
}

Value otherwise(const Value& subject, const Arguments& given) {
  const bool is_missing =
      subject.is_undefined() || (flag_argument(given, 1, "boolean") && !subject.is_true());
  if (!is_missing) return subject;
  const Value* value = given.find(0, "default_value");
  return value == nullptr ? Value("") : *value;
}

Value join(const Value& subject, const Arguments& given) {
  const std::string separator = text_argument(given, 0, "d", "");
  const Value* attribute = given.find(1, "attribute");
  std::string out;
  bool is_first = true;
  for (const Value& one : elements(subject)) {
    if (!is_first) out += separator;
    is_first = false;
    out += attribute == nullptr ? one.text() : path_of(one, attribute->text()).text();
  }
  return out;
}

/// The elements that a test, given by its name from argument `at` on, takes or leaves.
template <class Subject>
Value filtered_list(const Value& subject, const Arguments& given, std::size_t at, bool keeps,
                    Subject subject_of) {
  Test test = nullptr;
  Arguments rest;
  if (at < given.positional.size()) {
    const std::string name = given.positional[at].text();
    test = find_test(name);
    if (test == nullptr) template_error(fmt::format("test {} is not supported", name));
    rest.positional.assign(given.positional.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                           given.positional.end());
  }
  List kept;
  for (const Value& one : elements(subject)) {
    const Value value = subject_of(one);
    if ((test == nullptr ? value.is_true() : test(value, rest)) == keeps) kept.push_back(one);
  }
  return kept;
}

template <bool kKeeps>
Value select(const Value& subject, const Arguments& given) {
  return filtered_list(subject, given, 0, kKeeps, [](const Value& one) { return one; });
}

template <bool kKeeps>
Value select_by_attribute(const Value& subject, const Arguments& given) {
  if (given.positional.empty()) template_error("selectattr without an attribute");
  const std::string path = given.positional[0].text();
  return filtered_list(subject, given, 1, kKeeps,
                       [&](const Value& one) { return path_of(one, path); });
}

Value map(const Value& subject, const Arguments& given) {
  List mapped;
  if (const Value* attribute = given.find(99, "attribute")) {
    const Value* missing = given.find(99, "default");
    for (const Value& one : elements(subject)) {
      Value value = path_of(one, attribute->text());
      mapped.push_back(value.is_undefined() && missing != nullptr ? *missing : value);
    }
    return mapped;
  }
  if (given.positional.empty()) template_error("map without a filter");
  const Filter filter = find_filter(given.positional[0].text());
  if (filter == nullptr) {
    template_error(fmt::format("filter {} is not supported", given.positional[0].text()));
  }
  Arguments rest{{given.positional.begin() + 1, given.positional.end()}, given.named};
  for (const Value& one : elements(subject)) mapped.push_back(filter(one, rest));
  return mapped;
}

Value first(const Value& subject, const Arguments&) {
  const List all = elements(subject);
  return all.empty() ? Value() : all.front();
}

Value last(const Value& subject, const Arguments&) {
  const List all = elements(subject);
  return all.empty() ? Value() : all.back();
}

Value reversed(const Value& subject, const Arguments&) {
  List all = elements(subject);
  std::reverse(all.begin(), all.end());
  if (subject.string() == nullptr) return all;
  std::string text;
  for (const Value& one : all) text += one.text();
  return text;
}

Value sorted(const Value& subject, const Arguments& given) {
  List all = elements(subject);
  const Value* attribute = given.find(2, "attribute");
  const auto key = [&](const Value& one) {
    const Value value = attribute == nullptr ? one : path_of(one, attribute->text());
    return value.string() == nullptr ? value : Value(lowered(*value.string()));
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const Value& a, const Value& b) { return less(key(a), key(b)); });
  if (flag_argument(given, 0, "reverse")) std::reverse(all.begin(), all.end());
  return all;
}

Value unique(const Value& subject, const Arguments&) {
  List kept;
  for (const Value& one : elements(subject)) {
    if (std::none_of(kept.begin(), kept.end(), [&](const Value& b) { return equal(one, b); })) {
      kept.push_back(one);
    }
  }
  return kept;
}

Value items(const Value& subject, const Arguments&) {
  List pairs;
  if (subject.is_undefined()) return pairs;
  if (subject.dict() == nullptr) template_error(fmt::format("items of {}", subject.kind()));
  for (const auto& [key, value] : subject.dict()->items()) pairs.emplace_back(List{key, value});
  return pairs;
}

Value dictsort(const Value& subject, const Arguments& given) {
  const Value pairs = items(subject, given);
  List all = *pairs.list();
  std::stable_sort(all.begin(), all.end(), [](const Value& a, const Value& b) {
    return lowered(a.list()->front().text()) < lowered(b.list()->front().text());
  });
  return all;
}

Value to_int(const Value& subject, const Arguments& given) {
  if (subject.is_whole()) return subject.whole();
  if (const double* real = subject.real()) return static_cast<std::int64_t>(std::trunc(*real));
  const Value* missing = given.find(0, "default");
  if (const auto* text = subject.string()) {
    char* end = nullptr;
    const double value = std::strtod(text->c_str(), &end);
    if (end != text->c_str() && *end == '\0') return static_cast<std::int64_t>(std::trunc(value));
  }
  return missing == nullptr ? Value(std::int64_t{0}) : *missing;
}

Value to_float(const Value& subject, const Arguments&) {
  if (subject.is_whole() || subject.real() != nullptr) return subject.number();
  return subject.string() == nullptr ? 0.0 : std::strtod(subject.string()->c_str(), nullptr);
}

Value absolute(const Value& subject, const Arguments&) {
  return subject.is_whole() ? Value(std::int64_t{std::abs(subject.whole())})
                            : Value(std::fabs(subject.number()));
}

Value total(const Value& subject, const Arguments&) {
  Value sum = std::int64_t{0};
  for (const Value& one : elements(subject)) sum = add(sum, one);
  return sum;
}

template <bool kLargest>
Value extreme(const Value& subject, const Arguments&) {
  const List all = elements(subject);
  if (all.empty()) return {};
  return kLargest ? *std::max_element(all.begin(), all.end(), less)
                  : *std::min_element(all.begin(), all.end(), less);
}

Value to_json(const Value& subject, const Arguments& given) {
  const Value* indent = given.find(1, "indent");
  const bool is_line = indent == nullptr || indent->is_none();
  return to_json_text(subject, is_line ? -1 : static_cast<int>(indent->whole() & 63));
}

Value indented(const Value& subject, const Arguments& given) {
  const Value* width = given.find(0, "width");
  const std::string blanks = width == nullptr             ? "    "
                             : width->string() != nullptr ? *width->string()
                                                          : std::string(width->whole() & 255, ' ');
  const bool first_too = flag_argument(given, 1, "first"),
             blank_too = flag_argument(given, 2, "blank");
  const std::string text = subject.text();
  std::string out;
  bool is_first = true;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (is_first ? first_too : end > at || blank_too) out += blanks;
    out += text.substr(at, end - at);
    if (end < text.size()) out += '\n';
    is_first = false;
    at = end + 1;
  }
  return out;
}

/// A filter that is a method of texts, of what is not one as it is printed.
template <const auto& kName>
Value as_method(const Value& subject, const Arguments& given) {
  const Value method = find_method(subject.text(), kName);
  return (*method.function())(given);
}

constexpr char kStrip[] = "strip", kUpper[] = "upper", kLower[] = "lower", kTitle[] = "title",
               kCapitalize[] = "capitalize", kReplace[] = "replace";

struct FilterEntry {
  std::string_view name;
  Filter filter;
};

constexpr std::array<FilterEntry, 34> kFilters = {{
    {"abs", absolute},
    {"capitalize", as_method<kCapitalize>},
    {"count", length},
    {"d", otherwise},
    {"default", otherwise},
    {"dictsort", dictsort},
    {"first", first},
    {"float", to_float},
    {"indent", indented},
    {"int", to_int},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", [](const Value& v, const Arguments&) -> Value { return elements(v); }},
    {"lower", as_method<kLower>},
    {"map", map},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", select<false>},
    {"rejectattr", select_by_attribute<false>},
    {"replace", as_method<kReplace>},
    {"reverse", reversed},
    {"safe", [](const Value& v, const Arguments&) { return v; }},
    {"select", select<true>},
    {"selectattr", select_by_attribute<true>},
    {"sort", sorted},
    {"string", [](const Value& v, const Arguments&) -> Value { return v.text(); }},
    {"sum", total},
    {"title", as_method<kTitle>},
    {"tojson", to_json},
    {"trim", as_method<kStrip>},
    {"unique", unique},
    {"upper", as_method<kUpper>},
}};

}  // namespace

Filter find_filter(std::string_view name) {
  const auto at = std::find_if(kFilters.begin(), kFilters.end(),
                               [&](const FilterEntry& one) { return one.name == name; });
  return at == kFilters.end() ? nullptr : at->filter;
}

}  // namespace heddle::chat
