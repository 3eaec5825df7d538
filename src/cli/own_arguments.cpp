#include "cli/own_arguments.h"

#include <algorithm>
#include <fstream>
#include <iterator>

namespace heddle::cli {

std::string quoted(const std::string& word) {
  constexpr const char* kHarmless =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./=:,+@%-";
  if (!word.empty() && word.find_first_not_of(kHarmless) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> arguments;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('\0', begin), all.size());
    arguments.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return arguments;
}

std::string own_command() {
  std::string command;
  for (const auto& word : own_arguments()) command += (command.empty() ? "" : " ") + quoted(word);
  return command;
}

}  // namespace heddle::cli
