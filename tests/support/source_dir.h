#pragma once

#include <string>

namespace heddle {

/// Where the project lies, for tests that read its files. Of one library and not a macro of each
/// test, so that tests are compiled alike in every clone.
std::string source_dir();

}  // namespace heddle
