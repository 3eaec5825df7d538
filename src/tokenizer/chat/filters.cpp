#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "tokenizer/chat/operators.h"
#include "tokenizer/chat/syntax.h"
#include "tokenizer/chat/text_methods.h"
#include "tokenizer/unicode/characters.h"

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

/// The elements that a test, given by its name from argument `at` on, takes or leaves. What is
/// false has none.
template <class Subject>
Value filtered_list(const Value& subject, const Arguments& given, std::size_t at, bool keeps,
                    Subject subject_of) {
  if (!subject.is_true()) return List{};
  const Test* test = nullptr;
  Arguments rest{{}, given.named};
  if (at >= given.positional.size()) {
    rest.check("select or reject without a test", "");
  } else {
    const std::string name = given.positional[at].text();
    test = find_test(name);
    if (test == nullptr) template_error(fmt::format("test {} is not supported", name));
    rest.positional.assign(given.positional.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                           given.positional.end());
  }
  List kept;
  for (const Value& one : elements(subject)) {
    const Value value = subject_of(one);
    if ((test == nullptr ? value.is_true() : (*test)(value, rest)) == keeps) kept.push_back(one);
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
  if (!subject.is_true()) return mapped;
  const Value* attribute = given.positional.empty() ? given.find(0, "attribute") : nullptr;
  if (attribute != nullptr) {
    given.check("map", "attribute default");
    const Value* missing = given.find(1, "default");
    for (const Value& one : elements(subject)) {
      Value value = path_of(one, attribute->text());
      mapped.push_back(value.is_undefined() && missing != nullptr ? *missing : value);
    }
    return mapped;
  }
  if (given.positional.empty()) template_error("map without a filter");
  const Filter* filter = find_filter(given.positional[0].text());
  if (filter == nullptr) {
    template_error(fmt::format("filter {} is not supported", given.positional[0].text()));
  }
  Arguments rest{{given.positional.begin() + 1, given.positional.end()}, given.named};
  for (const Value& one : elements(subject)) mapped.push_back((*filter)(one, rest));
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

Value without_case(const Value& value) {
  return value.string() == nullptr ? value : Value(lowered(*value.string()));
}

/// What Jinja compares of elements: all or an attribute of each, texts without regard to case.
class Key {
 public:
  /// The arguments are case_sensitive, at position `at`, and attribute.
  Key(const Arguments& given, std::size_t at)
      : attribute_(given.find(at + 1, "attribute")),
        case_matters_(flag_argument(given, at, "case_sensitive")) {
    if (attribute_ != nullptr && attribute_->is_none()) attribute_ = nullptr;
  }

  Value of(const Value& one) const {
    const Value value = attribute_ == nullptr ? one : path_of(one, attribute_->text());
    return case_matters_ ? value : without_case(value);
  }

 private:
  const Value* attribute_;
  bool case_matters_;
};

/// Sorts so that equal elements stay in their order, also from the largest down.
template <class KeyOf>
List in_order(List all, bool is_reversed, KeyOf key) {
  std::stable_sort(all.begin(), all.end(), [&](const Value& a, const Value& b) {
    return is_reversed ? less(key(b), key(a)) : less(key(a), key(b));
  });
  return all;
}

Value sorted(const Value& subject, const Arguments& given) {
  const Key key(given, 1);
  return in_order(elements(subject), flag_argument(given, 0, "reverse"),
                  [&](const Value& one) { return key.of(one); });
}

Value unique(const Value& subject, const Arguments& given) {
  const Key key(given, 0);
  List kept;
  for (const Value& one : elements(subject)) {
    if (std::none_of(kept.begin(), kept.end(),
                     [&](const Value& b) { return equal(key.of(one), key.of(b)); })) {
      kept.push_back(one);
    }
  }
  return kept;
}

Value items(const Value& subject, const Arguments&) {
  List pairs;
  if (subject.is_undefined()) return pairs;
  if (subject.dict() == nullptr) template_error(fmt::format("items of {}", subject.kind()));
  for (const auto& [key, value] : subject.dict()->items()) {
    pairs.push_back(Value::tuple({key, value}));
  }
  return pairs;
}

Value dictsort(const Value& subject, const Arguments& given) {
  const Value pairs = items(subject, given);
  const std::string by = text_argument(given, 1, "by", "key");
  if (by != "key" && by != "value") template_error(fmt::format("dictsort by {}", by));
  const bool case_matters = flag_argument(given, 0, "case_sensitive");
  return in_order(*pairs.list(), flag_argument(given, 2, "reverse"), [&](const Value& pair) {
    const Value& value = (*pair.list())[by == "key" ? 0 : 1];
    return case_matters ? value : without_case(value);
  });
}

/// A text that is a number for Python's float.
std::optional<double> number_in(const std::string& text) {
  if (text.find_first_of("xXpP(") != std::string::npos) return std::nullopt;  // only strtod's
  const std::string digits = (*find_method(text, "strip").function())({}).text();
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  if (digits.empty() || end != digits.c_str() + digits.size()) return std::nullopt;
  return value;
}

Value whole_part(double value) {
  if (!(std::fabs(value) < 9.2e18)) template_error("int of a number that is too large");
  return static_cast<std::int64_t>(std::trunc(value));
}

Value to_int(const Value& subject, const Arguments& given) {
  if (subject.is_whole()) return subject.whole();
  if (const double* real = subject.real()) return whole_part(*real);
  const Value* missing = given.find(0, "default");
  if (const auto* text = subject.string()) {
    std::int64_t whole = 0;  // of which a real number may not hold all digits
    const char* const end = text->data() + text->size();
    const auto read = std::from_chars(text->data(), end, whole);
    if (read.ec == std::errc() && read.ptr == end) return whole;
    if (const auto value = number_in(*text)) return whole_part(*value);
  }
  return missing == nullptr ? Value(std::int64_t{0}) : *missing;
}

Value to_float(const Value& subject, const Arguments& given) {
  if (subject.is_whole() || subject.real() != nullptr) return subject.number();
  if (const auto* text = subject.string()) {
    if (const auto value = number_in(*text)) return *value;
  }
  const Value* missing = given.find(0, "default");
  return missing == nullptr ? Value(0.0) : *missing;
}

/// To a number of decimals; halves go to the even neighbour, as in Python.
Value rounded(const Value& subject, const Arguments& given) {
  const Value* precision = given.find(0, "precision");
  const std::int64_t decimals = precision == nullptr ? 0 : precision->whole();
  const std::string method = text_argument(given, 1, "method", "common");
  if (decimals < 0 || decimals > 15) template_error(fmt::format("round to {} decimals", decimals));
  const double scale = std::pow(10.0, static_cast<double>(decimals));
  if (method == "ceil") return std::ceil(subject.number() * scale) / scale;
  if (method == "floor") return std::floor(subject.number() * scale) / scale;
  if (method != "common") template_error(fmt::format("round by {} is not supported", method));
  if (subject.is_whole()) return subject.whole();
  return std::strtod(fmt::format("{:.{}f}", subject.number(), decimals).c_str(), nullptr);
}

/// Words are letters, digits and _.
Value word_count(const Value& subject, const Arguments&) {
  std::int64_t words = 0;
  bool is_inside = false;
  for_each_character(subject.text(), [&](char32_t c, std::string_view) {
    const CharClass kind = class_of(c);
    const bool is_word = kind == CharClass::letter || kind == CharClass::number || c == '_';
    if (is_word && !is_inside) ++words;
    is_inside = is_word;
  });
  return words;
}

Value absolute(const Value& subject, const Arguments&) {
  return subject.is_whole() ? Value(std::int64_t{std::abs(subject.whole())})
                            : Value(std::fabs(subject.number()));
}

Value total(const Value& subject, const Arguments& given) {
  const Value* attribute = given.find(0, "attribute");
  const bool takes_all = attribute == nullptr || attribute->is_none();
  const Value* start = given.find(1, "start");
  Value sum = start == nullptr ? Value(std::int64_t{0}) : *start;
  for (const Value& one : elements(subject)) {
    sum = add(sum, takes_all ? one : path_of(one, attribute->text()));
  }
  return sum;
}

template <bool kLargest>
Value extreme(const Value& subject, const Arguments& given) {
  const Key key(given, 0);
  const List all = elements(subject);
  if (all.empty()) return {};
  const auto is_before = [&](const Value& a, const Value& b) {
    return kLargest ? less(key.of(b), key.of(a)) : less(key.of(a), key.of(b));
  };
  return *std::min_element(all.begin(), all.end(), is_before);
}

/// The arguments of `tojson` as transformers has it.
Value to_json(const Value& subject, const Arguments& given) {
  const auto argument = [&](std::size_t at, const char* name) {
    const Value* value = given.find(at, name);
    return value == nullptr || value->is_none() ? nullptr : value;
  };
  JsonStyle style;
  style.is_ascii = flag_argument(given, 0, "ensure_ascii");
  style.sorts_keys = flag_argument(given, 3, "sort_keys");
  if (const Value* indent = argument(1, "indent")) {
    style.item_separator = ",";
    if (indent->string() != nullptr) {
      style.indent = *indent->string();
    } else {
      const std::int64_t width = std::max<std::int64_t>(0, indent->whole());
      if (width > 64) template_error(fmt::format("tojson with an indent of {}", width));
      style.indent = std::string(static_cast<std::size_t>(width), ' ');
    }
  }
  if (const Value* separators = argument(2, "separators")) {
    const List both = elements(*separators);
    if (both.size() != 2) template_error("separators of tojson are two: of items, and of keys");
    style.item_separator = both[0].text();
    style.key_separator = both[1].text();
  }
  return to_json_text(subject, style);
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

Value escape(const Value& subject, const Arguments&) { return Value::safe(escaped(subject)); }

/// Unlike the method, a capital stands only behind blanks, hyphens and opening brackets.
Value title(const Value& subject, const Arguments&) {
  std::string out;
  bool starts = true;
  for_each_character(subject.text(), [&](char32_t, std::string_view bytes) {
    out += starts ? raised(bytes) : lowered(bytes);
    starts = is_space(bytes) || std::string_view("-({[<").find(bytes) != std::string_view::npos;
  });
  return out;
}

/// A filter that is a method of texts, of what is not one as it is printed.
template <const auto& kName>
Value as_method(const Value& subject, const Arguments& given) {
  const Value method = find_method(subject.text(), kName);
  return (*method.function())(given);
}

constexpr char kStrip[] = "strip", kUpper[] = "upper", kLower[] = "lower",
               kCapitalize[] = "capitalize", kReplace[] = "replace";

constexpr std::array<Filter, 39> kFilters = {{
    {"abs", "", absolute},
    {"capitalize", "", as_method<kCapitalize>},
    {"count", "", length},
    {"d", "default_value boolean", otherwise},
    {"default", "default_value boolean", otherwise},
    {"dictsort", "case_sensitive by reverse", dictsort},
    {"e", "", escape},
    {"escape", "", escape},
    {"first", "", first},
    {"float", "default", to_float},
    {"format", "*",
     [](const Value& v, const Arguments& a) -> Value { return printed(v, a.positional); }},
    {"indent", "width first blank", indented},
    {"int", "default", to_int},
    {"items", "", items},
    {"join", "d attribute", join},
    {"last", "", last},
    {"length", "", length},
    {"list", "", [](const Value& v, const Arguments&) -> Value { return elements(v); }},
    {"lower", "", as_method<kLower>},
    {"map", "**", map},
    {"max", "case_sensitive attribute", extreme<true>},
    {"min", "case_sensitive attribute", extreme<false>},
    {"reject", "**", select<false>},
    {"rejectattr", "**", select_by_attribute<false>},
    {"replace", "/ / count", as_method<kReplace>},
    {"reverse", "", reversed},
    {"round", "precision method", rounded},
    {"safe", "", [](const Value& v, const Arguments&) { return Value::safe(v.text()); }},
    {"select", "**", select<true>},
    {"selectattr", "**", select_by_attribute<true>},
    {"sort", "reverse case_sensitive attribute", sorted},
    {"string", "", [](const Value& v, const Arguments&) -> Value { return v.text(); }},
    {"sum", "attribute start", total},
    {"title", "", title},
    {"tojson", "ensure_ascii indent separators sort_keys", to_json},
    {"trim", "chars", as_method<kStrip>},
    {"unique", "case_sensitive attribute", unique},
    {"upper", "", as_method<kUpper>},
    {"wordcount", "", word_count},
}};

}  // namespace

const Filter* find_filter(std::string_view name) {
  const auto at = std::find_if(kFilters.begin(), kFilters.end(),
                               [&](const Filter& one) { return one.name == name; });
  return at == kFilters.end() ? nullptr : &*at;
}

}  // namespace heddle::chat
