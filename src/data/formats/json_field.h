#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace heddle {

/// The string under `field` of the JSON object in `line`, or an Error(data) that says why there is
/// none. No tree is built, so nesting costs nothing; of equal keys the last counts.
Result<std::string> json_field(std::string_view line, const std::string& field);

}  // namespace heddle
