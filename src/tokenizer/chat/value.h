#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json_fwd.h"

namespace heddle::chat {

class Value;

/// Keeps the order in which keys came, as Python's dict does.
class Dict {
 public:
  using Items = std::vector<std::pair<Value, Value>>;

  const Value* find(std::string_view key) const;
  const Value* find_key(const Value& key) const;
  void set(const Value& key, Value value);
  const Items& items() const { return items_; }
  std::size_t size() const;

 private:
  Items items_;
};

using List = std::vector<Value>;

/// Arguments of a call, filter or test: in order, then by name.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  /// The argument at `position` or of this name, or nullptr.
  const Value* find(std::size_t position, std::string_view name) const;

  /// Throws Error(data) where `callee` is given what it does not use. `parameters` are the names of
  /// what it takes, in order, with blanks between; "/" has no name, "*" is any number of these, and
  /// "**" of any.
  void check(std::string_view callee, std::string_view parameters) const;
};

using Function = std::function<Value(const Arguments&)>;

/// A value of a template: one of Python's kinds, as far as templates have them. Lists, dicts and
/// namespaces are shared between copies; only namespaces change.
class Value {
 public:
  struct Undefined {
    std::string name;  ///< what was asked for, for messages
  };
  struct None {};
  struct Namespace {
    std::shared_ptr<Dict> fields;
  };

  Value() : data_(Undefined{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(None none) : data_(none) {}
  Value(bool value) : data_(value) {}
  Value(std::int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string value) : data_(std::move(value)) {}
  Value(const char* value) : data_(std::string(value)) {}
  Value(List list) : data_(std::make_shared<const List>(std::move(list))) {}
  Value(Dict dict) : data_(std::make_shared<const Dict>(std::move(dict))) {}
  Value(Namespace space) : data_(std::move(space)) {}
  Value(Function function) : data_(std::make_shared<const Function>(std::move(function))) {}
  static Value from_json(const Json& json);
  /// A list that cannot be changed, which prints in parentheses.
  static Value tuple(List list);
  /// A text that Jinja takes for HTML: what is added to it is escaped.
  static Value safe(std::string text);

  bool is_undefined() const { return get<Undefined>() != nullptr; }
  bool is_none() const { return get<None>() != nullptr; }
  const bool* boolean() const { return get<bool>(); }
  const std::int64_t* integer() const { return get<std::int64_t>(); }
  const double* real() const { return get<double>(); }
  const std::string* string() const { return get<std::string>(); }
  const List* list() const { return shared<List>(); }
  const Dict* dict() const;
  Dict* fields() const;  ///< of a namespace
  const Function* function() const { return shared<Function>(); }
  bool is_tuple() const { return kind_ == Kind::tuple; }
  bool is_safe() const { return kind_ == Kind::safe; }
  bool is_number() const { return integer() != nullptr || real() != nullptr; }
  /// As Python counts, True is 1.
  double number() const;
  /// Of an integer or a boolean.
  std::int64_t whole() const;
  bool is_whole() const { return integer() != nullptr || boolean() != nullptr; }

  bool is_true() const;
  /// "string", "list", ... for messages.
  std::string kind() const;
  /// What {{ }} prints: Python's str.
  std::string text() const;
  /// As it stands inside of a printed list: Python's repr.
  std::string representation() const;

 private:
  template <class T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }
  template <class T>
  const T* shared() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&data_);
    return held == nullptr ? nullptr : held->get();
  }

  std::variant<Undefined, None, bool, std::int64_t, double, std::string,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, Namespace,
               std::shared_ptr<const Function>>
      data_;
  enum class Kind : std::uint8_t { plain, tuple, safe };  // of lists and of texts
  Kind kind_ = Kind::plain;
};

bool equal(const Value& a, const Value& b);
/// Numbers with numbers, texts with texts; others are refused with Error(data).
bool less(const Value& a, const Value& b);
/// What a loop over the value sees: elements, keys, characters.
List elements(const Value& value);

/// Arguments of Python's json.dumps.
struct JsonStyle {
  std::optional<std::string> indent;  ///< of one level; absent: all is one line
  std::string item_separator = ", ", key_separator = ": ";
  bool sorts_keys = false, is_ascii = false;
};
std::string to_json_text(const Value& value, const JsonStyle& style);

/// Throws Error(data): a template that does what Jinja refuses too.
[[noreturn]] void template_error(const std::string& what);

}  // namespace heddle::chat
