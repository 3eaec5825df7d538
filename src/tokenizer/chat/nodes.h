#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "tokenizer/chat/lexer.h"
#include "tokenizer/chat/syntax.h"

namespace heddle::chat {

/// What expressions consist of.

class Literal final : public Expression {
 public:
  explicit Literal(Value value) : value_(std::move(value)) {}
  Value evaluate(Scope&) const override { return value_; }

 private:
  Value value_;
};

class Name final : public Expression {
 public:
  explicit Name(std::string name) : name_(std::move(name)) {}
  Value evaluate(Scope& scope) const override {
    const Value* value = scope.find(name_);
    return value == nullptr ? Value(Value::Undefined{name_}) : *value;
  }

 private:
  std::string name_;
};

class ListExpression final : public Expression {
 public:
  ListExpression(std::vector<ExpressionPtr> items, bool is_tuple)
      : items_(std::move(items)), is_tuple_(is_tuple) {}
  Value evaluate(Scope& scope) const override {
    List list;
    for (const auto& item : items_) list.push_back(item->evaluate(scope));
    return is_tuple_ ? Value::tuple(std::move(list)) : Value(std::move(list));
  }

 private:
  std::vector<ExpressionPtr> items_;
  bool is_tuple_;
};

class DictExpression final : public Expression {
 public:
  using Items = std::vector<std::pair<ExpressionPtr, ExpressionPtr>>;
  explicit DictExpression(Items items) : items_(std::move(items)) {}
  Value evaluate(Scope& scope) const override {
    Dict dict;
    for (const auto& [key, value] : items_) {
      const Value name = key->evaluate(scope);
      if (name.dict() != nullptr || (name.list() != nullptr && !name.is_tuple())) {
        template_error(fmt::format("{} is a key of a dict", name.kind()));
      }
      dict.set(name, value->evaluate(scope));
    }
    return dict;
  }

 private:
  Items items_;
};

class Attribute final : public Expression {
 public:
  Attribute(ExpressionPtr subject, std::string name)
      : subject_(std::move(subject)), name_(std::move(name)) {}
  Value evaluate(Scope& scope) const override {
    return attribute_of(subject_->evaluate(scope), name_);
  }

 private:
  ExpressionPtr subject_;
  std::string name_;
};

class Item final : public Expression {
 public:
  Item(ExpressionPtr subject, ExpressionPtr key)
      : subject_(std::move(subject)), key_(std::move(key)) {}
  Value evaluate(Scope& scope) const override {
    return item_of(subject_->evaluate(scope), key_->evaluate(scope));
  }

 private:
  ExpressionPtr subject_, key_;
};

/// subject[start:stop:step], each of them optional, as Python cuts.
class Slice final : public Expression {
 public:
  Slice(ExpressionPtr subject, ExpressionPtr start, ExpressionPtr stop, ExpressionPtr step)
      : subject_(std::move(subject)),
        start_(std::move(start)),
        stop_(std::move(stop)),
        step_(std::move(step)) {}

  Value evaluate(Scope& scope) const override {
    const Value subject = subject_->evaluate(scope);
    if (subject.list() == nullptr && subject.string() == nullptr) {
      template_error(fmt::format("a slice of {}", subject.kind()));
    }
    const List all = elements(subject);
    const auto size = static_cast<std::int64_t>(all.size());
    const std::int64_t step = bound(step_, scope).value_or(1);
    if (step == 0) template_error("a slice with step 0");
    const auto clamp = [&](const ExpressionPtr& at, std::int64_t otherwise) {
      const auto given = bound(at, scope);
      if (!given) return otherwise;
      const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
      return std::clamp(*given < 0 ? *given + size : *given, low, high);
    };
    const std::int64_t start = clamp(start_, step > 0 ? 0 : size - 1);
    const std::int64_t stop = clamp(stop_, step > 0 ? size : -1);
    List part;
    for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
      part.push_back(all[static_cast<std::size_t>(i)]);
    }
    if (subject.is_tuple()) return Value::tuple(std::move(part));
    if (subject.string() == nullptr) return part;
    std::string text;
    for (const Value& one : part) text += one.text();
    return text;
  }

 private:
  static std::optional<std::int64_t> bound(const ExpressionPtr& at, Scope& scope) {
    if (at == nullptr) return std::nullopt;
    const Value value = at->evaluate(scope);
    return value.is_none() ? std::nullopt : std::optional(value.whole());
  }

  ExpressionPtr subject_, start_, stop_, step_;
};

class Call final : public Expression {
 public:
  Call(ExpressionPtr function, ArgumentList arguments)
      : function_(std::move(function)), arguments_(std::move(arguments)) {}
  Value evaluate(Scope& scope) const override {
    const Value function = function_->evaluate(scope);
    if (function.function() == nullptr) {
      template_error(function.is_undefined()
                         ? fmt::format("{} is called; it may be a function or method that is "
                                       "not supported",
                                       function.kind())
                         : fmt::format("{} is called", function.kind()));
    }
    scope.deepen();
    Value result = (*function.function())(arguments_.evaluate(scope));
    scope.rise();
    return result;
  }

 private:
  ExpressionPtr function_;
  ArgumentList arguments_;
};

/// A filter or test that there is not: an error only where the template gets to it.
class Unsupported final : public Expression {
 public:
  Unsupported(int line, std::string what) : line_(line), what_(std::move(what)) {}
  Value evaluate(Scope&) const override { syntax_error(line_, what_ + " is not supported"); }

 private:
  int line_;
  std::string what_;
};

class Filtered final : public Expression {
 public:
  Filtered(ExpressionPtr subject, const Filter& filter, ArgumentList arguments)
      : subject_(std::move(subject)), filter_(filter), arguments_(std::move(arguments)) {}
  Value evaluate(Scope& scope) const override {
    return filter_(subject_->evaluate(scope), arguments_.evaluate(scope));
  }

 private:
  ExpressionPtr subject_;
  const Filter& filter_;
  ArgumentList arguments_;
};

class Tested final : public Expression {
 public:
  Tested(ExpressionPtr subject, const Test& test, ArgumentList arguments, bool negated)
      : subject_(std::move(subject)),
        test_(test),
        arguments_(std::move(arguments)),
        negated_(negated) {}
  Value evaluate(Scope& scope) const override {
    return test_(subject_->evaluate(scope), arguments_.evaluate(scope)) != negated_;
  }

 private:
  ExpressionPtr subject_;
  const Test& test_;
  ArgumentList arguments_;
  bool negated_;
};

class Condition final : public Expression {
 public:
  Condition(ExpressionPtr test, ExpressionPtr yes, ExpressionPtr no)
      : test_(std::move(test)), yes_(std::move(yes)), no_(std::move(no)) {}
  Value evaluate(Scope& scope) const override {
    if (test_->evaluate(scope).is_true()) return yes_->evaluate(scope);
    return no_ == nullptr ? Value() : no_->evaluate(scope);
  }

 private:
  ExpressionPtr test_, yes_, no_;
};

class Not final : public Expression {
 public:
  explicit Not(ExpressionPtr value) : value_(std::move(value)) {}
  Value evaluate(Scope& scope) const override { return !value_->evaluate(scope).is_true(); }

 private:
  ExpressionPtr value_;
};

/// `and` and `or` give one of their values, as in Python.
class Logical final : public Expression {
 public:
  Logical(ExpressionPtr left, ExpressionPtr right, bool is_and)
      : left_(std::move(left)), right_(std::move(right)), is_and_(is_and) {}
  Value evaluate(Scope& scope) const override {
    Value left = left_->evaluate(scope);
    return left.is_true() == is_and_ ? right_->evaluate(scope) : left;
  }

 private:
  ExpressionPtr left_, right_;
  bool is_and_;
};

class Binary final : public Expression {
 public:
  using Compute = Value (*)(const Value&, const Value&);
  Binary(ExpressionPtr left, ExpressionPtr right, Compute compute)
      : left_(std::move(left)), right_(std::move(right)), compute_(compute) {}
  Value evaluate(Scope& scope) const override {
    const Value left = left_->evaluate(scope);
    return compute_(left, right_->evaluate(scope));
  }

 private:
  ExpressionPtr left_, right_;
  Compute compute_;
};

/// a < b <= c: each pair must hold.
class Comparison final : public Expression {
 public:
  using Holds = bool (*)(const Value&, const Value&);
  Comparison(ExpressionPtr first, std::vector<std::pair<Holds, ExpressionPtr>> others)
      : first_(std::move(first)), others_(std::move(others)) {}
  Value evaluate(Scope& scope) const override {
    Value left = first_->evaluate(scope);
    for (const auto& [holds, other] : others_) {
      Value right = other->evaluate(scope);
      if (!holds(left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

 private:
  ExpressionPtr first_;
  std::vector<std::pair<Holds, ExpressionPtr>> others_;
};

}  // namespace heddle::chat
