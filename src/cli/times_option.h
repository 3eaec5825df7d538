#pragma once

#include <string>
#include <vector>

namespace heddle::cli {

/// The numbers of "--option 1,2,3", as many as `names` ("F,B,W") names, none of them negative.
/// Error(usage) for anything else.
std::vector<double> parse_times(const std::string& option, const std::string& text,
                                const std::string& names);
/// The same for one or more numbers.
std::vector<double> parse_numbers(const std::string& option, const std::string& text);

}  // namespace heddle::cli
