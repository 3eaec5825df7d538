#include "tokenizer/chat/expressions.h"

#include <fmt/format.h>

#include <array>

#include "tokenizer/chat/nodes.h"
#include "tokenizer/chat/operators.h"

namespace heddle::chat {
namespace {

/// Reads expressions, the loosest binding first.
class Parser {
 public:
  explicit Parser(TokenReader& reader) : reader_(reader) {}

  ExpressionPtr condition() {
    ExpressionPtr value = disjunction();
    while (reader_.take_name("if")) {
      ExpressionPtr test = disjunction(), otherwise;
      if (reader_.take_name("else")) otherwise = condition();
      value = std::make_unique<Condition>(std::move(test), std::move(value), std::move(otherwise));
    }
    return value;
  }

  ExpressionPtr disjunction() {
    ExpressionPtr left = conjunction();
    while (reader_.take_name("or")) {
      left = std::make_unique<Logical>(std::move(left), conjunction(), false);
    }
    return left;
  }

  ArgumentList arguments() {
    ArgumentList list;
    reader_.expect_sign("(");
    while (!reader_.take_sign(")")) {
      const bool is_named = reader_.now().kind == Token::Kind::name &&
                            reader_.ahead().kind == Token::Kind::sign &&
                            reader_.ahead().text == "=";
      if (is_named) {
        std::string name = reader_.expect_name();
        reader_.expect_sign("=");
        list.named.emplace_back(std::move(name), condition());
      } else {
        if (reader_.is_sign("*") || reader_.is_sign("**")) reader_.fail_here("unpacked arguments");
        list.positional.push_back(condition());
      }
      if (!reader_.is_sign(")")) reader_.expect_sign(",");
    }
    return list;
  }

 private:
  ExpressionPtr conjunction() {
    ExpressionPtr left = negation();
    while (reader_.take_name("and")) {
      left = std::make_unique<Logical>(std::move(left), negation(), true);
    }
    return left;
  }

  ExpressionPtr negation() {
    if (reader_.take_name("not")) return std::make_unique<Not>(negation());
    return comparison();
  }

  Comparison::Holds comparison_sign() {
    if (reader_.take_sign("==")) return equal;
    if (reader_.take_sign("!=")) {
      return [](const Value& a, const Value& b) { return !equal(a, b); };
    }
    if (reader_.take_sign("<=")) return [](const Value& a, const Value& b) { return !less(b, a); };
    if (reader_.take_sign(">=")) return [](const Value& a, const Value& b) { return !less(a, b); };
    if (reader_.take_sign("<")) return less;
    if (reader_.take_sign(">")) return [](const Value& a, const Value& b) { return less(b, a); };
    if (reader_.take_name("in")) return contains;
    if (reader_.is_name("not") && reader_.ahead().text == "in") {
      reader_.take();
      reader_.take();
      return [](const Value& a, const Value& b) { return !contains(a, b); };
    }
    return nullptr;
  }

  ExpressionPtr comparison() {
    ExpressionPtr first = sum();
    std::vector<std::pair<Comparison::Holds, ExpressionPtr>> others;
    while (const Comparison::Holds holds = comparison_sign()) others.emplace_back(holds, sum());
    if (others.empty()) return first;
    return std::make_unique<Comparison>(std::move(first), std::move(others));
  }

  ExpressionPtr sum() {
    ExpressionPtr left = joined();
    for (;;) {
      if (reader_.take_sign("+")) {
        left = std::make_unique<Binary>(std::move(left), joined(), add);
      } else if (reader_.take_sign("-")) {
        left = std::make_unique<Binary>(std::move(left), joined(), subtract);
      } else {
        return left;
      }
    }
  }

  ExpressionPtr joined() {
    ExpressionPtr left = product();
    while (reader_.take_sign("~")) {
      left = std::make_unique<Binary>(std::move(left), product(), concatenate);
    }
    return left;
  }

  ExpressionPtr product() {
    ExpressionPtr left = raised();
    for (;;) {
      Binary::Compute compute = reader_.take_sign("*")    ? multiply
                                : reader_.take_sign("//") ? divide_down
                                : reader_.take_sign("/")  ? divide
                                : reader_.take_sign("%")  ? remainder
                                                          : Binary::Compute{nullptr};
      if (compute == nullptr) return left;
      left = std::make_unique<Binary>(std::move(left), raised(), compute);
    }
  }

  ExpressionPtr raised() {
    ExpressionPtr left = signed_value(true);
    while (reader_.take_sign("**")) {
      left = std::make_unique<Binary>(std::move(left), signed_value(true), power);
    }
    return left;
  }

  ExpressionPtr signed_value(bool with_filters) {
    ExpressionPtr value;
    if (reader_.take_sign("-")) {
      auto zero = std::make_unique<Literal>(std::int64_t{0});
      value = std::make_unique<Binary>(std::move(zero), signed_value(false), subtract);
    } else if (reader_.take_sign("+")) {
      value = signed_value(false);
    } else {
      value = primary();
    }
    value = with_suffixes(std::move(value));
    return with_filters ? filtered(std::move(value)) : std::move(value);
  }

  ExpressionPtr primary() {
    const Token token = reader_.take();
    switch (token.kind) {
      case Token::Kind::name: return named(token.text);
      case Token::Kind::integer: return std::make_unique<Literal>(to_integer(token));
      case Token::Kind::real: return std::make_unique<Literal>(std::stod(token.text));
      case Token::Kind::string: {
        std::string text = token.text;  // neighbours are one
        while (reader_.now().kind == Token::Kind::string) text += reader_.take().text;
        return std::make_unique<Literal>(std::move(text));
      }
      default: break;
    }
    if (token.kind == Token::Kind::sign && token.text == "(") return in_parentheses();
    if (token.kind == Token::Kind::sign && token.text == "[") {
      return std::make_unique<ListExpression>(items_until("]"), false);
    }
    if (token.kind == Token::Kind::sign && token.text == "{") return dict();
    syntax_error(token.line, token.text.empty() ? "an expression is missing"
                                                : "unexpected '" + token.text + "'");
  }

  static std::int64_t to_integer(const Token& token) {
    if (token.text.size() > 18) syntax_error(token.line, token.text + " is too large");
    return std::stoll(token.text);
  }

  static ExpressionPtr named(const std::string& name) {
    if (name == "true" || name == "True") return std::make_unique<Literal>(true);
    if (name == "false" || name == "False") return std::make_unique<Literal>(false);
    if (name == "none" || name == "None") return std::make_unique<Literal>(Value::None{});
    return std::make_unique<Name>(name);
  }

  std::vector<ExpressionPtr> items_until(const char* close) {
    std::vector<ExpressionPtr> items;
    while (!reader_.take_sign(close)) {
      items.push_back(condition());
      if (!reader_.is_sign(close)) reader_.expect_sign(",");
    }
    return items;
  }

  ExpressionPtr in_parentheses() {
    if (reader_.take_sign(")")) {
      return std::make_unique<ListExpression>(std::vector<ExpressionPtr>{}, true);
    }
    ExpressionPtr first = condition();
    if (reader_.take_sign(")")) return first;
    reader_.expect_sign(",");
    std::vector<ExpressionPtr> items = items_until(")");
    items.insert(items.begin(), std::move(first));
    return std::make_unique<ListExpression>(std::move(items), true);
  }

  ExpressionPtr dict() {
    DictExpression::Items items;
    while (!reader_.take_sign("}")) {
      ExpressionPtr key = condition();
      reader_.expect_sign(":");
      items.emplace_back(std::move(key), condition());
      if (!reader_.is_sign("}")) reader_.expect_sign(",");
    }
    return std::make_unique<DictExpression>(std::move(items));
  }

  ExpressionPtr with_suffixes(ExpressionPtr value) {
    for (;;) {
      if (reader_.take_sign(".")) {
        if (reader_.now().kind == Token::Kind::integer) {
          auto key = std::make_unique<Literal>(to_integer(reader_.take()));
          value = std::make_unique<Item>(std::move(value), std::move(key));
        } else {
          value = std::make_unique<Attribute>(std::move(value), reader_.expect_name());
        }
      } else if (reader_.take_sign("[")) {
        value = subscript(std::move(value));
      } else if (reader_.is_sign("(")) {
        value = std::make_unique<Call>(std::move(value), arguments());
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr subject) {
    std::array<ExpressionPtr, 3> bounds;
    std::size_t colons = 0;
    for (;;) {
      if (reader_.take_sign("]")) break;
      if (reader_.take_sign(":")) {
        if (++colons > 2) reader_.fail_here("a slice with more than three parts");
      } else {
        bounds[colons] = condition();
      }
    }
    if (colons == 0) {
      if (bounds[0] == nullptr) reader_.fail_here("an index is missing");
      return std::make_unique<Item>(std::move(subject), std::move(bounds[0]));
    }
    return std::make_unique<Slice>(std::move(subject), std::move(bounds[0]), std::move(bounds[1]),
                                   std::move(bounds[2]));
  }

  ExpressionPtr filtered(ExpressionPtr value) {
    for (;;) {
      if (reader_.take_sign("|")) {
        value = with_filter(std::move(value));
      } else if (reader_.take_name("is")) {
        value = tested(std::move(value));
      } else if (reader_.is_sign("(")) {
        value = std::make_unique<Call>(std::move(value), arguments());
      } else {
        return value;
      }
    }
  }

  ExpressionPtr with_filter(ExpressionPtr value) {
    const int line = reader_.now().line;
    const std::string name = reader_.expect_name();
    ArgumentList given;
    if (reader_.is_sign("(")) given = arguments();
    const Filter* filter = find_filter(name);
    if (filter == nullptr) return std::make_unique<Unsupported>(line, "filter " + name);
    return std::make_unique<Filtered>(std::move(value), *filter, std::move(given));
  }

  /// A test's one argument may stand without parentheses.
  bool starts_argument() const {
    const Token& token = reader_.now();
    if (token.kind == Token::Kind::name) {
      return token.text != "else" && token.text != "or" && token.text != "and" &&
             token.text != "if" && token.text != "is" && token.text != "in" && token.text != "not";
    }
    return token.kind == Token::Kind::string || token.kind == Token::Kind::integer ||
           token.kind == Token::Kind::real ||
           (token.kind == Token::Kind::sign && (token.text == "[" || token.text == "{"));
  }

  ExpressionPtr tested(ExpressionPtr value) {
    const bool negated = reader_.take_name("not");
    const int line = reader_.now().line;
    const std::string name = reader_.expect_name();
    ArgumentList given;
    if (reader_.is_sign("(")) {
      given = arguments();
    } else if (starts_argument()) {
      given.positional.push_back(with_suffixes(primary()));
    }
    const Test* test = find_test(name);
    if (test == nullptr) return std::make_unique<Unsupported>(line, "test " + name);
    return std::make_unique<Tested>(std::move(value), *test, std::move(given), negated);
  }

  TokenReader& reader_;
};

}  // namespace

bool TokenReader::take_sign(std::string_view text) {
  if (!is_sign(text)) return false;
  take();
  return true;
}

bool TokenReader::take_name(std::string_view text) {
  if (!is_name(text)) return false;
  take();
  return true;
}

void TokenReader::expect_sign(std::string_view text) {
  if (!take_sign(text)) fail_here(fmt::format("'{}' is missing", text));
}

std::string TokenReader::expect_name() {
  if (now().kind != Token::Kind::name) fail_here("a name is missing");
  return take().text;
}

void TokenReader::expect(Token::Kind kind, const char* what) {
  if (now().kind != kind) fail_here(fmt::format("{} is missing", what));
  take();
}

void TokenReader::fail_here(const std::string& what) const { syntax_error(now().line, what); }

ExpressionPtr parse_expression(TokenReader& reader, bool takes_condition) {
  Parser parser(reader);
  return takes_condition ? parser.condition() : parser.disjunction();
}

ArgumentList parse_arguments(TokenReader& reader) { return Parser(reader).arguments(); }

}  // namespace heddle::chat
