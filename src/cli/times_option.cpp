#include "cli/times_option.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"

namespace heddle::cli {
namespace {

double parse_time(const std::string& option, const std::string& word) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() || !std::isfinite(value) ||
      value < 0.0) {
    throw Error(ErrorCode::usage, fmt::format("{}: \"{}\" is not a number", option, word),
                "give numbers of 0 or more");
  }
  return value;
}

}  // namespace

std::vector<double> parse_times(const std::string& option, const std::string& text,
                                const std::string& names) {
  const auto words = split(text, ',');
  if (words.size() != split(names, ',').size()) {
    throw Error(ErrorCode::usage, fmt::format("{} {} has {} numbers", option, text, words.size()),
                fmt::format("give {}, separated by commas", names));
  }
  return parse_numbers(option, text);
}

std::vector<double> parse_numbers(const std::string& option, const std::string& text) {
  std::vector<double> numbers;
  for (const auto& word : split(text, ',')) {
    numbers.push_back(parse_time(option + " " + text, word));
  }
  return numbers;
}

}  // namespace heddle::cli
