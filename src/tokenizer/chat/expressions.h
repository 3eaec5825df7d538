#pragma once

#include <algorithm>

#include "tokenizer/chat/lexer.h"
#include "tokenizer/chat/syntax.h"

namespace heddle::chat {

/// Goes through tokens.
class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool is_sign(std::string_view text) const { return is(Token::Kind::sign, text); }
  bool is_name(std::string_view text) const { return is(Token::Kind::name, text); }
  bool take_sign(std::string_view text);
  bool take_name(std::string_view text);
  void expect_sign(std::string_view text);
  std::string expect_name();
  void expect(Token::Kind kind, const char* what);
  [[noreturn]] void fail_here(const std::string& what) const;

 private:
  bool is(Token::Kind kind, std::string_view text) const {
    return now().kind == kind && now().text == text;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

/// Reads one expression. `takes_condition` off leaves a following `if` alone.
ExpressionPtr parse_expression(TokenReader& reader, bool takes_condition = true);
ArgumentList parse_arguments(TokenReader& reader);

}  // namespace heddle::chat
