#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "tokenizer/chat/syntax.h"

namespace heddle::chat {

/// What templates consist of.

class Text final : public Statement {
 public:
  explicit Text(std::string text) : text_(std::move(text)) {}
  Flow run(Scope&, std::string& out) const override {
    out += text_;
    return Flow::next;
  }

 private:
  std::string text_;
};

/// More than this is printed by no conversation.
inline constexpr std::size_t kMaxOutput = std::size_t{64} << 20;

class Output final : public Statement {
 public:
  explicit Output(ExpressionPtr value) : value_(std::move(value)) {}
  Flow run(Scope& scope, std::string& out) const override {
    out += value_->evaluate(scope).text();
    if (out.size() > kMaxOutput) template_error("it prints more than 64 MiB");
    return Flow::next;
  }

 private:
  ExpressionPtr value_;
};

class If final : public Statement {
 public:
  struct Branch {
    ExpressionPtr test;  ///< absent: else
    Body body;
  };
  explicit If(std::vector<Branch> branches) : branches_(std::move(branches)) {}
  Flow run(Scope& scope, std::string& out) const override {
    for (const Branch& branch : branches_) {
      if (branch.test == nullptr || branch.test->evaluate(scope).is_true()) {
        return run_body(branch.body, scope, out);
      }
    }
    return Flow::next;
  }

 private:
  std::vector<Branch> branches_;
};

inline void bind(const std::vector<std::string>& names, const Value& value, Scope& scope) {
  if (names.size() == 1) return scope.set(names.front(), value);
  const List parts = elements(value);
  if (parts.size() != names.size()) {
    template_error(fmt::format("{} values for {} names", parts.size(), names.size()));
  }
  for (std::size_t i = 0; i < names.size(); ++i) scope.set(names[i], parts[i]);
}

class For final : public Statement {
 public:
  struct Parts {
    std::vector<std::string> names;
    ExpressionPtr values, filter;
    Body body, otherwise;
  };
  explicit For(Parts parts) : parts_(std::move(parts)) {}

  Flow run(Scope& scope, std::string& out) const override {
    const List values = chosen(scope);
    if (values.empty()) return run_body(parts_.otherwise, scope, out);
    for (std::size_t i = 0; i < values.size(); ++i) {
      scope.count_step();
      scope.push();
      const std::size_t begin = out.size();
      bind(parts_.names, values[i], scope);
      scope.set("loop", loop_at(values, i));
      const Flow flow = run_body(parts_.body, scope, out);
      scope.pop();
      scope.end_round(values[i], out, begin);
      if (flow == Flow::leave_loop) break;
    }
    return Flow::next;
  }

 private:
  List chosen(Scope& scope) const {
    List values = elements(parts_.values->evaluate(scope));
    if (parts_.filter == nullptr) return values;
    scope.push();
    std::erase_if(values, [&](const Value& value) {
      bind(parts_.names, value, scope);
      return !parts_.filter->evaluate(scope).is_true();
    });
    scope.pop();
    return values;
  }

  static Value loop_at(const List& values, std::size_t i) {
    const auto at = static_cast<std::int64_t>(i), size = static_cast<std::int64_t>(values.size());
    Dict loop;
    loop.set("index", at + 1);
    loop.set("index0", at);
    loop.set("revindex", size - at);
    loop.set("revindex0", size - at - 1);
    loop.set("first", i == 0);
    loop.set("last", i + 1 == values.size());
    loop.set("length", size);
    loop.set("depth", std::int64_t{1});  // of loops that are not recursive
    loop.set("depth0", std::int64_t{0});
    loop.set("previtem", i == 0 ? Value() : values[i - 1]);
    loop.set("nextitem", i + 1 == values.size() ? Value() : values[i + 1]);
    loop.set("cycle", Function([i](const Arguments& given) -> Value {
               given.check("loop.cycle", "*");
               if (given.positional.empty()) template_error("loop.cycle without values");
               return given.positional[i % given.positional.size()];
             }));
    return loop;
  }

  Parts parts_;
};

/// set name = value, set space.field = value, or what a block prints.
class Set final : public Statement {
 public:
  Set(std::vector<std::string> names, std::string field, ExpressionPtr value, Body body)
      : names_(std::move(names)),
        field_(std::move(field)),
        value_(std::move(value)),
        body_(std::move(body)) {}

  Flow run(Scope& scope, std::string& out) const override {
    static_cast<void>(out);
    const Value value = value_ != nullptr ? value_->evaluate(scope) : printed(scope);
    if (field_.empty()) {
      bind(names_, value, scope);
      return Flow::next;
    }
    const Value* space = scope.find(names_.front());
    if (space == nullptr || space->fields() == nullptr) {
      template_error(fmt::format("{} is no namespace", names_.front()));
    }
    space->fields()->set(field_, value);
    return Flow::next;
  }

 private:
  Value printed(Scope& scope) const {
    std::string text;
    scope.push();
    run_body(body_, scope, text);
    scope.pop();
    return text;
  }

  std::vector<std::string> names_;
  std::string field_;
  ExpressionPtr value_;
  Body body_;
};

class Macro final : public Statement {
 public:
  struct Parameter {
    std::string name;
    ExpressionPtr otherwise;
  };
  Macro(std::string name, std::vector<Parameter> parameters, Body body)
      : name_(std::move(name)), parameters_(std::move(parameters)), body_(std::move(body)) {}

  Flow run(Scope& scope, std::string&) const override {
    // Both live as long as the function can be called: until the template has ended.
    scope.set(name_, Function([this, &scope, around = scope.inner()](const Arguments& given) {
                return call(scope, around, given);
              }));
    return Flow::next;
  }

 private:
  Value call(Scope& scope, const std::vector<Dict>& around, const Arguments& given) const {
    std::string names;
    for (const Parameter& parameter : parameters_) {
      names += (names.empty() ? "" : " ") + parameter.name;
    }
    given.check("macro " + name_, names);
    std::vector<Dict> outside = scope.enter_macro(around);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const Parameter& parameter = parameters_[i];
      const Value* value = given.find(i, parameter.name);
      scope.set(parameter.name, value != nullptr ? *value
                                : parameter.otherwise == nullptr
                                    ? Value()
                                    : parameter.otherwise->evaluate(scope));
    }
    std::string text;
    run_body(body_, scope, text);
    scope.leave_macro(std::move(outside));
    return text;
  }

  std::string name_;
  std::vector<Parameter> parameters_;
  Body body_;
};

class LoopControl final : public Statement {
 public:
  explicit LoopControl(Flow flow) : flow_(flow) {}
  Flow run(Scope&, std::string&) const override { return flow_; }

 private:
  Flow flow_;
};

/// `generation` marks what a model is trained on; it prints what it holds.
class Generation final : public Statement {
 public:
  explicit Generation(Body body) : body_(std::move(body)) {}
  Flow run(Scope& scope, std::string& out) const override {
    const std::size_t begin = out.size();
    const Flow flow = run_body(body_, scope, out);
    scope.mark(out, begin);
    return flow;
  }

 private:
  Body body_;
};

}  // namespace heddle::chat
