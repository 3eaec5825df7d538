#pragma once

#include <string>
#include <vector>

namespace heddle::cli {

/// The words of this process's command line, the program's name first.
std::vector<std::string> own_arguments();

/// The same as one could type it into a shell: words with other than harmless characters in quotes.
std::string own_command();

}  // namespace heddle::cli
