#include <fmt/format.h>

#include "tokenizer/chat/operators.h"
#include "tokenizer/chat/syntax.h"

namespace heddle::chat {
namespace {

[[noreturn]] void fail_access(const Value& subject, const std::string& name) {
  template_error(fmt::format("{} has no \"{}\"", subject.kind(), name));
}

Value range(const Arguments& given) {
  given.check("range", "/ / /");
  const auto& list = given.positional;
  if (list.empty() || list.size() > 3) template_error("range needs one to three numbers");
  const std::int64_t start = list.size() == 1 ? 0 : list[0].whole();
  const std::int64_t stop = list[list.size() == 1 ? 0 : 1].whole();
  const std::int64_t step = list.size() == 3 ? list[2].whole() : 1;
  if (step == 0) template_error("range with step 0");
  List numbers;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (numbers.size() >= 100'000) template_error("range of more than 100,000 numbers");
    numbers.emplace_back(i);
  }
  return numbers;
}

Dict dict_of(const Arguments& given) {
  Arguments{given.positional, {}}.check("dict or namespace", "/");
  Dict dict;
  if (!given.positional.empty()) {
    const Value& from = given.positional.front();
    if (from.dict() == nullptr) template_error(fmt::format("a dict of {}", from.kind()));
    dict = *from.dict();
  }
  for (const auto& [name, value] : given.named) dict.set(name, value);
  return dict;
}

}  // namespace

/// Jinja looks for an attribute, then for an element.
Value attribute_of(const Value& subject, const std::string& name) {
  if (subject.is_undefined() || subject.function() != nullptr) fail_access(subject, name);
  if (const Dict* fields = subject.fields()) {
    const Value* value = fields->find(name);
    return value == nullptr ? Value(Value::Undefined{name}) : *value;
  }
  if (Value method = find_method(subject, name); !method.is_undefined()) return method;
  if (const Dict* dict = subject.dict()) {
    if (const Value* value = dict->find(name)) return *value;
  }
  return Value::Undefined{name};
}

Value item_of(const Value& subject, const Value& key) {
  if (subject.is_undefined()) fail_access(subject, key.text());
  if (const Dict* dict = subject.dict()) {
    if (const Value* value = dict->find_key(key)) return *value;
  }
  const bool is_indexed = subject.list() != nullptr || subject.string() != nullptr;
  if (is_indexed && key.is_whole()) {
    const List all = elements(subject);
    const auto size = static_cast<std::int64_t>(all.size());
    const std::int64_t at = key.whole() < 0 ? key.whole() + size : key.whole();
    if (at < 0 || at >= size) return Value::Undefined{fmt::format("element {}", key.whole())};
    return all[static_cast<std::size_t>(at)];
  }
  return key.string() == nullptr ? Value(Value::Undefined{key.text()})
                                 : attribute_of(subject, *key.string());
}

Value add(const Value& a, const Value& b) {
  if (a.string() != nullptr && b.string() != nullptr) {
    if (a.is_safe() || b.is_safe()) return Value::safe(escaped(a) + escaped(b));
    return *a.string() + *b.string();
  }
  if (a.list() != nullptr && b.list() != nullptr && a.is_tuple() == b.is_tuple()) {
    List joined = *a.list();
    joined.insert(joined.end(), b.list()->begin(), b.list()->end());
    return a.is_tuple() ? Value::tuple(std::move(joined)) : joined;
  }
  const auto is_number = [](const Value& v) { return v.is_whole() || v.real() != nullptr; };
  if (!is_number(a) || !is_number(b)) {
    template_error(fmt::format("{} and {} cannot be added", a.kind(), b.kind()));
  }
  if (a.is_whole() && b.is_whole()) {
    return exact(a.whole(), b.whole(),
                 [](auto x, auto y, auto* sum) { return __builtin_add_overflow(x, y, sum); });
  }
  return a.number() + b.number();
}

Dict builtin_functions() {
  Dict names;
  names.set("range", Function(range));
  names.set("dict", Function([](const Arguments& given) -> Value { return dict_of(given); }));
  names.set("namespace", Function([](const Arguments& given) -> Value {
              return Value::Namespace{std::make_shared<Dict>(dict_of(given))};
            }));
  names.set("raise_exception", Function([](const Arguments& given) -> Value {
              given.check("raise_exception", "/");
              template_error("it refuses: " +
                             (given.positional.empty() ? "" : given.positional.front().text()));
            }));
  return names;
}

}  // namespace heddle::chat
