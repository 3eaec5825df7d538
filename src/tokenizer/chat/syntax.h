#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/chat/value.h"

namespace heddle::chat {

/// Names and their values while a template runs: what `set` in a loop or macro gives a name is gone
/// behind it.
class Scope {
 public:
  explicit Scope(Dict globals) : levels_{std::move(globals)} {}

  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value) { levels_.back().set(name, std::move(value)); }
  void push() { levels_.emplace_back(); }
  void pop() { levels_.pop_back(); }
  /// The names that are not outermost.
  std::vector<Dict> inner() const { return {levels_.begin() + 1, levels_.end()}; }
  /// A macro sees the outermost names, those around it where it was made, and its own.
  std::vector<Dict> enter_macro(const std::vector<Dict>& around);
  void leave_macro(std::vector<Dict> outside) { levels_ = std::move(outside); }

  /// Each of these bounds what a template can take: they throw Error(data) beyond it.
  void count_step();
  void deepen();
  void rise() { --depth_; }

  /// Where of the text that the template prints into `output` something was printed that it marks.
  struct Mark {
    std::size_t begin = 0, end = 0;
  };
  void watch(const std::string& output) { output_ = &output; }
  /// Of texts that become values first nothing is known.
  void mark(const std::string& out, std::size_t begin) {
    if (const auto printed = printed_since(out, begin)) marks_.push_back(*printed);
  }
  const std::vector<Mark>& marks() const { return marks_; }

  /// From here on it is known what loops print while they are at one of `messages`.
  void follow(const List& messages);
  void end_round(const Value& element, const std::string& out, std::size_t begin);
  /// Of each message; several where several loops printed something of it.
  const std::vector<std::vector<Mark>>& rounds() const { return rounds_; }

 private:
  std::optional<Mark> printed_since(const std::string& out, std::size_t begin) const {
    if (&out != output_ || out.size() == begin) return std::nullopt;
    return Mark{begin, out.size()};
  }

  const std::string* output_ = nullptr;
  std::vector<Mark> marks_;
  std::unordered_map<const Dict*, std::size_t> messages_;
  std::vector<std::vector<Mark>> rounds_;
  std::vector<Dict> levels_;
  std::int64_t steps_ = 0;
  int depth_ = 0;
};

/// An expression that has been read.
class Expression {
 public:
  virtual ~Expression() = default;
  virtual Value evaluate(Scope& scope) const = 0;
};
using ExpressionPtr = std::unique_ptr<const Expression>;

/// What ends a pass through the body of a loop early.
enum class Flow { next, leave_loop, next_turn };

/// A statement, or text.
class Statement {
 public:
  virtual ~Statement() = default;
  virtual Flow run(Scope& scope, std::string& out) const = 0;
};
using Body = std::vector<std::unique_ptr<const Statement>>;
Flow run_body(const Body& body, Scope& scope, std::string& out);

/// Arguments of a call that are still to be evaluated.
struct ArgumentList {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  Arguments evaluate(Scope& scope) const;
};

/// A filter or test. `parameters` are those of Arguments::check.
template <class Result>
struct Builtin {
  std::string_view name, parameters;
  Result (*compute)(const Value& subject, const Arguments& arguments);

  Result operator()(const Value& subject, const Arguments& arguments) const {
    arguments.check(name, parameters);
    return compute(subject, arguments);
  }
};
using Filter = Builtin<Value>;
using Test = Builtin<bool>;
/// nullptr: there is none of this name.
const Filter* find_filter(std::string_view name);
const Test* find_test(std::string_view name);
/// A method of a text, list or dict, or an undefined value.
Value find_method(const Value& subject, const std::string& name);
/// What templates may call: range, namespace, dict, raise_exception, strftime_now.
Dict builtin_functions();

/// Elements and fields, as Jinja looks for both spellings.
Value item_of(const Value& subject, const Value& key);
Value attribute_of(const Value& subject, const std::string& name);
Value add(const Value& a, const Value& b);

/// Makes statements of a template. Throws Error(data) with the line of what is not understood.
Body parse_template(std::string_view source);

}  // namespace heddle::chat
