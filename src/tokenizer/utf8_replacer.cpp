#include "tokenizer/utf8_replacer.h"

#include "base/strings.h"

namespace heddle {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Length of the longest prefix of `bytes` (not empty, starting with no whole character) that
/// begins some character; 0 when its first byte begins none.
std::size_t beginning_length(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = at(0);
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  std::size_t n = 1;
  while (n < length && n < bytes.size()) {
    const unsigned low = n > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = n > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (at(n) < low || at(n) > high) break;
    ++n;
  }
  return n;
}

}  // namespace

void Utf8Replacer::append(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_.append(bytes);
    held_.clear();
    bytes = joined;
  }
  while (!bytes.empty()) {
    const auto valid = valid_utf8_prefix(bytes);
    out.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    const auto beginning = beginning_length(bytes);
    if (beginning == bytes.size()) {
      held_ = bytes;
      return;
    }
    out.append(kReplacement);
    bytes.remove_prefix(beginning == 0 ? 1 : beginning);
  }
}

void Utf8Replacer::finish(std::string& out) {
  if (!held_.empty()) out.append(kReplacement);
  held_.clear();
}

}  // namespace heddle
