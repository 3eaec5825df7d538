#pragma once

#include <string>
#include <vector>

namespace heddle::cli {

/// The words of this process's command line, the program's name first.
std::vector<std::string> own_arguments();

/// A word as one could type it into a shell: in quotes where it has other than harmless characters.
std::string quoted(const std::string& word);

/// All words of the command line so.
std::string own_command();

}  // namespace heddle::cli
