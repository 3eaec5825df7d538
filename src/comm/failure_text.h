#pragma once

#include <exception>
#include <string>

namespace heddle {

/// The message of an exception, without its hint, for the other ranks.
std::string failure_text(const std::exception_ptr& failure);

}  // namespace heddle
