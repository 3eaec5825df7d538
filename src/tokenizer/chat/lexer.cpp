#include "tokenizer/chat/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "tokenizer/chat/text_methods.h"
#include "tokenizer/unicode/characters.h"

namespace heddle::chat {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// Line ends become \n, and the last one goes.
std::string cleaned(std::string_view source) {
  std::string out;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(cleaned(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t open = next_tag();
      text_before(open);
      if (open == std::string::npos) break;
      at_ = open + 2;
      skip_sign();
      switch (source_[open + 1]) {
        case '#': comment(); break;
        case '%':
          if (!raw()) tag(Token::Kind::begin_block, Token::Kind::end_block, "%}");
          break;
        default: tag(Token::Kind::begin_output, Token::Kind::end_output, "}}"); break;
      }
    }
    put(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  void put(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }
  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  std::size_t next_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' &&
          (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) {
        return i;
      }
    }
    return std::string::npos;
  }

  /// The text up to a tag, without what the tag takes of it.
  void text_before(std::size_t open) {
    std::string text = source_.substr(at_, open == std::string::npos ? open : open - at_);
    const std::string whole = text;
    if (open != std::string::npos) {
      const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
      if (sign == '-') {
        text.resize(without_spaces_behind(text).size());
      } else if (sign != '+' && source_[open + 1] != '{') {
        strip_line_start(text);
      }
    }
    if (!text.empty()) put(Token::Kind::text, text);
    advance_over(whole);
  }
  /// Blanks between the start of the line and the tag go.
  void strip_line_start(std::string& text) const {
    const std::size_t line = text.rfind('\n') + 1;
    if (line == 0 && !line_starts_) return;
    if (leading_spaces(std::string_view(text).substr(line)) == text.size() - line) {
      text.resize(line);
    }
  }

  void advance_over(std::string_view text) {
    line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    if (!text.empty()) line_starts_ = text.back() == '\n';
    at_ += text.size();
  }
  void skip_sign() {
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
  }

  /// Behind the end of a tag: `-` takes all blanks, a block without `+` one line break.
  void after_tag(char sign, bool is_block) {
    line_starts_ = false;
    std::size_t count = 0;
    if (sign == '-') {
      count = leading_spaces(rest());
    } else if (is_block && sign != '+' && rest().starts_with('\n')) {
      count = 1;
    }
    advance_over(rest().substr(0, count));
  }

  void comment() {
    const std::size_t close = source_.find("#}", at_);
    if (close == std::string::npos) syntax_error(line_, "a comment does not end");
    const char sign = close > at_ ? source_[close - 1] : '\0';
    advance_over(source_.substr(at_, close + 2 - at_));
    after_tag(sign, true);
  }

  struct BareBlock {
    std::size_t size;
    char sign;  ///< before its end, if one stands there
  };
  /// A block that is this name alone, from behind "{%" and its sign on.
  std::optional<BareBlock> bare_block(std::size_t begin, std::string_view name) const {
    const auto from = [&](std::size_t at) { return std::string_view(source_).substr(at); };
    std::size_t at = begin + leading_spaces(from(begin));
    if (!from(at).starts_with(name)) return std::nullopt;
    at += name.size();
    at += leading_spaces(from(at));
    const bool has_sign = from(at).starts_with('-') || from(at).starts_with('+');
    const char sign = has_sign ? source_[at++] : '\0';
    if (!from(at).starts_with("%}")) return std::nullopt;
    return BareBlock{at + 2 - begin, sign};
  }

  /// Text in which tags mean nothing, if a block `raw` begins here.
  bool raw() {
    const int line = line_;
    const auto begin = bare_block(at_, "raw");
    if (!begin) return false;
    advance_over(rest().substr(0, begin->size));
    after_tag(begin->sign, false);
    for (std::size_t open = at_; (open = source_.find("{%", open)) != std::string::npos; ++open) {
      const bool has_sign =
          source_.compare(open, 3, "{%-") == 0 || source_.compare(open, 3, "{%+") == 0;
      const std::size_t inside = open + (has_sign ? 3 : 2);
      const auto end = bare_block(inside, "endraw");
      if (!end) continue;
      text_before(open);
      advance_over(rest().substr(0, inside + end->size - open));
      after_tag(end->sign, true);
      return true;
    }
    syntax_error(line, "endraw is missing");
  }

  void tag(Token::Kind begin, Token::Kind end, std::string_view close) {
    put(begin, "");
    std::string brackets;  // open ones
    for (;;) {
      advance_over(rest().substr(0, leading_spaces(rest())));
      if (at_ >= source_.size()) syntax_error(line_, "a tag does not end");
      const bool takes_plus = end == Token::Kind::end_block;
      const bool has_sign = (rest()[0] == '-' || (takes_plus && rest()[0] == '+')) &&
                            rest().substr(1).starts_with(close);
      if (brackets.empty() && (has_sign || rest().starts_with(close))) {
        const char sign = has_sign ? rest()[0] : '\0';
        put(end, "");
        at_ += close.size() + (has_sign ? 1 : 0);
        return after_tag(sign, end == Token::Kind::end_block);
      }
      token(brackets);
    }
  }

  void token(std::string& brackets) {
    const char c = source_[at_];
    if (is_name_start(c)) {
      std::size_t end = at_;
      while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
      put(Token::Kind::name, source_.substr(at_, end - at_));
      at_ = end;
    } else if (is_digit(c)) {
      number();
    } else if (c == '\'' || c == '"') {
      string(c);
    } else {
      sign(brackets);
    }
  }

  void number() {
    std::size_t end = at_;
    bool is_real = false;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) ++end;
    };
    digits();
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      is_real = true;
      ++end;
      digits();
    }
    std::size_t exponent = end + 1;
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      if (exponent < source_.size() && (source_[exponent] == '-' || source_[exponent] == '+')) {
        ++exponent;
      }
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        is_real = true;
        end = exponent;
        digits();
      }
    }
    if (end < source_.size() && is_name_start(source_[end])) {
      syntax_error(line_, "a number of this form is not supported");
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    put(is_real ? Token::Kind::real : Token::Kind::integer, text);
    at_ = end;
  }

  void string(char quote) {
    std::string text;
    std::size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\') {
        text += source_[i];
      } else if (++i < source_.size()) {
        i = escape(i, text);
      }
    }
    if (i >= source_.size()) syntax_error(line_, "a string does not end");
    put(Token::Kind::string, std::move(text));
    advance_over(source_.substr(at_, i + 1 - at_));
  }
  /// The escape whose letter stands at `i`; gives its last position.
  std::size_t escape(std::size_t i, std::string& text) const {
    static constexpr std::string_view kLetters = "ntrfvab0", kMeanings("\n\t\r\f\v\a\b\0", 8);
    const char c = source_[i];
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      const std::string code = source_.substr(i + 1, digits);
      if (code.size() < digits || code.find_first_not_of("0123456789abcdefABCDEF") != code.npos) {
        syntax_error(line_, "an escape of a string is cut off");
      }
      append_utf8(static_cast<char32_t>(std::stoul(code, nullptr, 16)), text);
      return i + digits;
    }
    if (const std::size_t at = kLetters.find(c); at != std::string_view::npos) {
      text += kMeanings[at];
    } else if (c == '\\' || c == '\'' || c == '"') {
      text += c;
    } else if (c != '\n') {
      text += {'\\', c};
    }
    return i;
  }

  void sign(std::string& brackets) {
    static constexpr std::array<std::string_view, 6> kPairs = {"**", "//", "==", "!=", "<=", ">="};
    static constexpr std::string_view kSingles = "+-*/%~<>=.,:|()[]{}";
    for (const std::string_view pair : kPairs) {
      if (!rest().starts_with(pair)) continue;
      put(Token::Kind::sign, std::string(pair));
      at_ += 2;
      return;
    }
    const char c = source_[at_];
    if (kSingles.find(c) == std::string_view::npos) {
      const char* const at = source_.data() + at_;
      const int length = decode_utf8(at, source_.data() + source_.size()).length;
      syntax_error(line_, fmt::format("unexpected {:?}",
                                      rest().substr(0, static_cast<std::size_t>(length))));
    }
    if (c == '(' || c == '[' || c == '{') brackets += c;
    if (c == ')' || c == ']' || c == '}') {
      const char open = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (brackets.empty() || brackets.back() != open) {
        syntax_error(line_, std::string("'") + c + "' closes nothing");
      }
      brackets.pop_back();
    }
    put(Token::Kind::sign, std::string(1, c));
    ++at_;
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) { return Lexer(source).run(); }

void syntax_error(int line, const std::string& what) {
  throw Error(ErrorCode::data, fmt::format("the chat template, line {}: {}", line, what), "");
}

}  // namespace heddle::chat
