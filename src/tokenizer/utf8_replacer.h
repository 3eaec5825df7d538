#pragma once

#include <string>
#include <string_view>

namespace heddle {

/// Turns bytes that arrive in pieces into valid UTF-8: what can no longer become a character is
/// replaced by U+FFFD, once for each longest beginning of one (the Unicode standard's practice, so
/// every way of cutting the bytes gives the same text). At most three bytes are held back.
class Utf8Replacer {
 public:
  void append(std::string_view bytes, std::string& out);
  /// Replaces what is held back.
  void finish(std::string& out);

 private:
  std::string held_;
};

}  // namespace heddle
