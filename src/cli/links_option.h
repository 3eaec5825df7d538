#pragma once

#include <string>

#include "planner/given_links.h"

namespace heddle::cli {

/// "rate=100mbit,delay=50ms,loss=0.1%,devices=8", or a file as `heddle bench link --json` prints
/// it, of which the slowest link counts. Error(usage) names the word that makes no sense.
planner::GivenLinks parse_links(const std::string& text);

}  // namespace heddle::cli
