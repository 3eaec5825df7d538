#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tokenizer/chat/syntax.h"

namespace heddle::chat {
namespace {

const Value& argument(const Arguments& given) {
  if (given.positional.empty()) template_error("a test lacks what it compares with");
  return given.positional.front();
}

bool is_in(const Value& subject, const Arguments& given) {
  const Value& hay = argument(given);
  if (hay.string() != nullptr) return hay.string()->find(subject.text()) != std::string::npos;
  const List all = elements(hay);
  return std::any_of(all.begin(), all.end(), [&](const Value& one) { return equal(one, subject); });
}

// clang-format off
constexpr std::array<Test, 31> kTests = {{
    {"==", "/", [](const Value& v, const Arguments& a) { return equal(v, argument(a)); }},
    {"boolean", "", [](const Value& v, const Arguments&) { return v.boolean() != nullptr; }},
    {"callable", "", [](const Value& v, const Arguments&) { return v.function() != nullptr; }},
    {"defined", "", [](const Value& v, const Arguments&) { return !v.is_undefined(); }},
    {"divisibleby", "/", [](const Value& v, const Arguments& a) {
       const std::int64_t by = argument(a).whole();
       if (by == 0) template_error("division by zero");
       return by == -1 || v.whole() % by == 0;
     }},
    {"eq", "/", [](const Value& v, const Arguments& a) { return equal(v, argument(a)); }},
    {"equalto", "/", [](const Value& v, const Arguments& a) { return equal(v, argument(a)); }},
    {"even", "", [](const Value& v, const Arguments&) { return v.whole() % 2 == 0; }},
    {"false", "", [](const Value& v, const Arguments&) { return v.boolean() != nullptr && !*v.boolean(); }},
    {"float", "", [](const Value& v, const Arguments&) { return v.real() != nullptr; }},
    {"ge", "/", [](const Value& v, const Arguments& a) { return !less(v, argument(a)); }},
    {"greaterthan", "/", [](const Value& v, const Arguments& a) { return less(argument(a), v); }},
    {"gt", "/", [](const Value& v, const Arguments& a) { return less(argument(a), v); }},
    {"in", "/", is_in},
    {"integer", "", [](const Value& v, const Arguments&) { return v.integer() != nullptr; }},
    {"iterable", "", [](const Value& v, const Arguments&) {
       return v.list() != nullptr || v.dict() != nullptr || v.string() != nullptr || v.is_undefined();
     }},
    {"le", "/", [](const Value& v, const Arguments& a) { return !less(argument(a), v); }},
    {"lessthan", "/", [](const Value& v, const Arguments& a) { return less(v, argument(a)); }},
    {"lt", "/", [](const Value& v, const Arguments& a) { return less(v, argument(a)); }},
    {"mapping", "", [](const Value& v, const Arguments&) { return v.dict() != nullptr; }},
    {"ne", "/", [](const Value& v, const Arguments& a) { return !equal(v, argument(a)); }},
    {"none", "", [](const Value& v, const Arguments&) { return v.is_none(); }},
    {"number", "", [](const Value& v, const Arguments&) { return v.is_number() || v.boolean() != nullptr; }},
    {"odd", "", [](const Value& v, const Arguments&) { return v.whole() % 2 != 0; }},
    {"sameas", "/", [](const Value& v, const Arguments& a) { return v.kind() == argument(a).kind() && equal(v, argument(a)); }},
    {"sequence", "", [](const Value& v, const Arguments&) {
       return v.list() != nullptr || v.dict() != nullptr || v.string() != nullptr || v.is_undefined();
     }},
    {"string", "", [](const Value& v, const Arguments&) { return v.string() != nullptr; }},
    {"true", "", [](const Value& v, const Arguments&) { return v.boolean() != nullptr && *v.boolean(); }},
    {"undefined", "", [](const Value& v, const Arguments&) { return v.is_undefined(); }},
    {"lower", "", [](const Value& v, const Arguments&) { return equal(v, (*find_method(v.text(), "lower").function())({})); }},
    {"upper", "", [](const Value& v, const Arguments&) { return equal(v, (*find_method(v.text(), "upper").function())({})); }},
}};
// clang-format on

}  // namespace

const Test* find_test(std::string_view name) {
  const auto at =
      std::find_if(kTests.begin(), kTests.end(), [&](const Test& one) { return one.name == name; });
  return at == kTests.end() ? nullptr : &*at;
}

}  // namespace heddle::chat
