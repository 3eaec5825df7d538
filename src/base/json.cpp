#include "base/json.h"

#include <algorithm>

#include "base/file_system.h"
#include "base/strings.h"

namespace heddle {
namespace {

constexpr int kMaxDepth = 200;

/// Deepest bracket nesting outside strings: nlohmann's parser recurses only in its destructor and
/// dump, but both overflow the stack on a few hundred thousand brackets.
int nesting_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  if (nesting_depth(text) > kMaxDepth) {
    fail(ErrorCode::data, "{}: JSON nested deeper than {} levels", where, kMaxDepth);
  }
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    throw json_error(text, where, e.byte, e.what());
  } catch (const nlohmann::json::out_of_range& e) {  // a number beyond a double, without its place
    const std::string_view reason = e.what();
    fail(ErrorCode::data, "{}: not valid JSON: {}", where,
         shortened(reason.substr(reason.find("] ") + 2), 200));
  }
}

Error json_error(std::string_view text, const std::string& where, std::size_t byte,
                 std::string reason) {
  const auto end = std::min(byte == 0 ? 0 : byte - 1, text.size());
  const auto head = text.substr(0, end);
  const auto line = 1 + std::count(head.begin(), head.end(), '\n');
  const auto last_newline = head.rfind('\n');
  const auto column = last_newline == std::string_view::npos ? end + 1 : end - last_newline;
  if (const auto at = reason.rfind(": "); at != std::string::npos) reason = reason.substr(at + 2);
  return {ErrorCode::data,
          fmt::format("{}:{}:{}: not valid JSON: {}", where, line, column, shortened(reason, 200))};
}

Json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path), path.string());
}

}  // namespace heddle
