#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heddle::chat {

struct Token {
  enum class Kind {
    text,  ///< to be printed as it is
    begin_output,
    end_output,
    begin_block,
    end_block,
    name,
    integer,
    real,
    string,
    sign,  ///< an operator or a bracket
    end
  };
  Kind kind;
  std::string text;
  int line;
};

/// Cuts a template into tokens as Jinja does with trim_blocks and lstrip_blocks, which chat
/// templates are written for: a block takes the line break behind it and the blanks before it on
/// its line. Throws Error(data) with the line of what is not understood.
std::vector<Token> tokens_of(std::string_view source);

[[noreturn]] void syntax_error(int line, const std::string& what);

}  // namespace heddle::chat
