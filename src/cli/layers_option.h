#pragma once

#include <string>
#include <vector>

namespace heddle::cli {

/// "0-3,6,5": layers in the order in which tokens go through them. Error(usage) for text that names
/// none.
std::vector<int> parse_layers(const std::string& text);

}  // namespace heddle::cli
