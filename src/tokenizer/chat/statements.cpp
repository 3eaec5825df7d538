#include <fmt/format.h>

#include <algorithm>

#include "tokenizer/chat/expressions.h"
#include "tokenizer/chat/statement_nodes.h"

namespace heddle::chat {
namespace {

constexpr int kMaxNesting = 100;

class TemplateParser {
 public:
  explicit TemplateParser(std::string_view source) : reader_(tokens_of(source)) {}

  Body parse() {
    Body body = parse_until({});
    if (reader_.now().kind != Token::Kind::end) reader_.fail_here("a block ends that none began");
    return body;
  }

 private:
  using Names = std::vector<std::string_view>;

  /// Statements up to a block that starts with one of `names`, whose name is the next token.
  Body parse_until(const Names& names) {
    if (++depth_ > kMaxNesting) reader_.fail_here("blocks are nested too deeply");
    Body body;
    for (;;) {
      const Token token = reader_.now();
      if (token.kind == Token::Kind::text) {
        body.push_back(std::make_unique<Text>(reader_.take().text));
      } else if (token.kind == Token::Kind::begin_output) {
        reader_.take();
        body.push_back(std::make_unique<Output>(parse_expression(reader_)));
        reader_.expect(Token::Kind::end_output, "'}}'");
      } else if (token.kind == Token::Kind::begin_block) {
        reader_.take();
        if (std::any_of(names.begin(), names.end(),
                        [&](std::string_view name) { return reader_.is_name(name); })) {
          break;
        }
        body.push_back(statement());
      } else {
        if (!names.empty()) reader_.fail_here(fmt::format("{} is missing", names.back()));
        break;
      }
    }
    --depth_;
    return body;
  }

  void end_block() { reader_.expect(Token::Kind::end_block, "'%}'"); }

  std::unique_ptr<const Statement> statement() {
    const std::string name = reader_.expect_name();
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "generation") {
      end_block();
      Body body = parse_until({"endgeneration"});
      reader_.take();
      end_block();
      return std::make_unique<Generation>(std::move(body));
    }
    if (name == "break" || name == "continue") {
      end_block();
      return std::make_unique<LoopControl>(name == "break" ? Flow::leave_loop : Flow::next_turn);
    }
    reader_.fail_here(fmt::format("block {} is not supported", name));
  }

  std::unique_ptr<const Statement> parse_if() {
    std::vector<If::Branch> branches;
    ExpressionPtr test = parse_expression(reader_);
    for (;;) {
      end_block();
      Body body = parse_until({"elif", "else", "endif"});
      branches.push_back({std::move(test), std::move(body)});
      if (reader_.take_name("elif")) {
        test = parse_expression(reader_);
      } else if (reader_.take_name("else")) {
        end_block();
        branches.push_back({nullptr, parse_until({"endif"})});
        reader_.take();
        break;
      } else {
        reader_.take();
        break;
      }
    }
    end_block();
    return std::make_unique<If>(std::move(branches));
  }

  std::vector<std::string> names() {
    std::vector<std::string> found;
    const bool has_parenthesis = reader_.take_sign("(");
    do found.push_back(reader_.expect_name());
    while (reader_.take_sign(","));
    if (has_parenthesis) reader_.expect_sign(")");
    return found;
  }

  std::unique_ptr<const Statement> parse_for() {
    For::Parts parts{.names = names(), .values = {}, .filter = {}, .body = {}, .otherwise = {}};
    if (!reader_.take_name("in")) reader_.fail_here("'in' is missing");
    parts.values = parse_expression(reader_, false);
    if (reader_.take_name("if")) parts.filter = parse_expression(reader_);
    if (reader_.is_name("recursive")) reader_.fail_here("a recursive loop is not supported");
    end_block();
    parts.body = parse_until({"else", "endfor"});
    if (reader_.take_name("else")) {
      end_block();
      parts.otherwise = parse_until({"endfor"});
    }
    reader_.take();
    end_block();
    return std::make_unique<For>(std::move(parts));
  }

  std::unique_ptr<const Statement> parse_set() {
    std::vector<std::string> targets = names();
    std::string field;
    if (targets.size() == 1 && reader_.take_sign(".")) field = reader_.expect_name();
    if (reader_.take_sign("=")) {
      ExpressionPtr value = parse_expression(reader_);
      if (reader_.is_sign(",")) reader_.fail_here("a value without parentheses around its parts");
      end_block();
      return std::make_unique<Set>(std::move(targets), std::move(field), std::move(value), Body{});
    }
    end_block();
    Body body = parse_until({"endset"});
    reader_.take();
    end_block();
    return std::make_unique<Set>(std::move(targets), std::move(field), nullptr, std::move(body));
  }

  std::unique_ptr<const Statement> parse_macro() {
    std::string name = reader_.expect_name();
    std::vector<Macro::Parameter> parameters;
    reader_.expect_sign("(");
    while (!reader_.take_sign(")")) {
      Macro::Parameter parameter{reader_.expect_name(), nullptr};
      if (reader_.take_sign("=")) parameter.otherwise = parse_expression(reader_);
      parameters.push_back(std::move(parameter));
      if (!reader_.is_sign(")")) reader_.expect_sign(",");
    }
    end_block();
    Body body = parse_until({"endmacro"});
    reader_.take();
    if (reader_.now().kind == Token::Kind::name) reader_.take();  // the macro's name again
    end_block();
    return std::make_unique<Macro>(std::move(name), std::move(parameters), std::move(body));
  }

  TokenReader reader_;
  int depth_ = 0;
};

}  // namespace

Body parse_template(std::string_view source) { return TemplateParser(source).parse(); }

}  // namespace heddle::chat
