#include "parallel/step/sum_windows.h"

#include <fmt/format.h>

#include <charconv>

#include "base/check.h"
#include "base/strings.h"

namespace heddle {
namespace {

std::int64_t number_in(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  HEDDLE_CHECK(error == std::errc() && end == text.data() + text.size() && value >= 0,
               "windows of sums of \"{}\" elements", text);
  return value;
}

}  // namespace

std::string text_of(const SumWindows& windows) {
  std::string text;
  for (const auto& [with_experts, with_rest] : windows) {
    text += fmt::format("{}{}/{}", text.empty() ? "" : " ", with_experts, with_rest);
  }
  return text;
}

SumWindows sum_windows_of(const std::string& text) {
  SumWindows windows;
  if (text.empty()) return windows;
  for (const std::string& word : split(text, ' ')) {
    const std::size_t slash = word.find('/');
    HEDDLE_CHECK(slash != std::string::npos, "windows of sums \"{}\"", text);
    windows.push_back({number_in(word.substr(0, slash)), number_in(word.substr(slash + 1))});
  }
  return windows;
}

}  // namespace heddle
