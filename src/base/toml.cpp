#define TOML_IMPLEMENTATION
#include "base/toml.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/strings.h"

namespace heddle {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
constexpr std::ptrdiff_t kMaxDotsPerLine = 250;

/// A dotted key makes one nested table per dot and tables are destroyed recursively, so a line of a
/// million dots would exhaust the stack.
void refuse_hostile_text(std::string_view text, const std::string& name) {
  if (text.size() > kMaxFileBytes) {
    fail(ErrorCode::usage, "{}: {} is too large for a file of settings", name,
         format_bytes(static_cast<double>(text.size())));
  }
  std::size_t line = 1;
  for (const auto& content : split(text, '\n')) {
    if (std::count(content.begin(), content.end(), '.') > kMaxDotsPerLine) {
      fail(ErrorCode::usage,
           "{}:{}:1: a line with more than {} dots is not one of a file of settings", name, line,
           kMaxDotsPerLine);
    }
    ++line;
  }
}

/// The parser's description without its preamble and its own detail.
std::string reason_for(const toml::parse_error& e) {
  std::string reason(e.description());
  reason = reason.substr(0, reason.find('\n'));
  if (reason.starts_with("Error while parsing")) reason = reason.substr(reason.find(": ") + 2);
  if (reason == "could not determine value type")
    reason = "no value has this form; text needs quotes";
  return reason;
}

bool parser_asserts(std::string_view text) {
  try {
    static_cast<void>(toml::parse(text));
  } catch (const TomlAssertion&) {
    return true;
  } catch (const toml::parse_error&) {
  }
  return false;
}

/// The line at which the parser asserts: the first whose inclusion makes it do so.
std::size_t asserting_line(std::string_view text) {
  std::vector<std::size_t> ends;  // of the lines
  for (auto at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) {
    ends.push_back(at + 1);
  }
  const auto first = std::partition_point(ends.begin(), ends.end(), [&](std::size_t end) {
    return !parser_asserts(text.substr(0, end));
  });
  return static_cast<std::size_t>(first - ends.begin()) + 1;
}

}  // namespace

void toml_assertion_failed() { throw TomlAssertion(); }

toml::table parse_toml(std::string_view text, const std::string& name) {
  refuse_hostile_text(text, name);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    fail(ErrorCode::usage, "{}:{}:{}: not valid TOML: {}", name, e.source().begin.line,
         e.source().begin.column, reason_for(e));
  } catch (const TomlAssertion&) {
    fail(ErrorCode::usage, "{}:{}:1: not valid TOML", name, asserting_line(text));
  }
}

}  // namespace heddle
