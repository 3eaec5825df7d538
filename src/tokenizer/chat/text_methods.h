#pragma once

#include <string>
#include <string_view>

namespace heddle::chat {

std::string lowered(std::string_view text);
/// Letters that have one capital; ß, which has two, stays.
std::string raised(std::string_view text);

}  // namespace heddle::chat
