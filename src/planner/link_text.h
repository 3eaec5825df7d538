#pragma once

#include <string>

#include "base/json_value.h"
#include "planner/compare_links.h"

namespace heddle::planner {

std::string links_text(const LinkComparison& comparison);
JsonValue links_json(const LinkComparison& comparison);
/// A section of the plan's page.
std::string links_section(const LinkComparison& comparison);

}  // namespace heddle::planner
